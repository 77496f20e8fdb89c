//! What a machine makes of its userdata at its first boot: an Ignition config of 2.x or 3.x, laid out below a folder. Strict,
//! as Ignition is: a key that it does not know, a digest that is wrong, a file that is named twice is an error. What is
//! fetched comes from whoever asks for it: nothing here goes onto a network.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// What was laid out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LaidOut {
    pub files: Vec<PathBuf>,
    /// Units that are switched on.
    pub enabled: Vec<String>,
}

/// Lays the config out below `root`. `fetch` brings what stands at a URL that holds no data itself.
pub fn lay_out(config: &str, root: &Path, fetch: impl Fn(&str) -> anyhow::Result<Vec<u8>>) -> anyhow::Result<LaidOut> {
    let config: Value = serde_json::from_str(config).context("it is no JSON")?;
    let top = object(
        &config,
        "the config",
        &["ignition", "storage", "systemd", "passwd", "networkd"],
    )?;
    let ignition = top.get("ignition").context("no `ignition`")?;
    let version = ignition["version"].as_str().context("no `ignition.version`")?;
    let third = match version.split_once('.') {
        Some(("2", _)) => false,
        Some(("3", _)) => true,
        _ => bail!("version {version:?} is neither 2.x nor 3.x"),
    };
    let mut made = LaidOut::default();
    let mut seen = BTreeSet::new();
    for file in list(top, "storage", "files")? {
        let path = file_of(file, third, root, &fetch)?;
        ensure!(seen.insert(path.clone()), "{} stands there twice", path.display());
        made.files.push(path);
    }
    for unit in list(top, "systemd", "units")? {
        unit_of(unit, version, root, &mut made)?;
    }
    Ok(made)
}

fn file_of(
    file: &Value,
    third: bool,
    root: &Path,
    fetch: &impl Fn(&str) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<PathBuf> {
    let keys: &[&str] = if third {
        &["path", "mode", "overwrite", "contents", "user", "group", "append"]
    } else {
        &[
            "filesystem",
            "path",
            "mode",
            "overwrite",
            "contents",
            "user",
            "group",
            "append",
        ]
    };
    let file = object(file, "a file", keys)?;
    let path = file
        .get("path")
        .and_then(Value::as_str)
        .context("a file without a path")?;
    ensure!(path.starts_with('/') && !path.contains(".."), "path {path:?}");
    if !third {
        ensure!(
            file.get("filesystem").is_some_and(|f| f == "root"),
            "{path}: filesystem is not root"
        );
    }
    ensure!(
        file.get("append").is_none(),
        "{path}: what is appended is not read here"
    );
    let contents = file.get("contents").context("a file without contents")?;
    let contents = object(contents, path, &["source", "verification", "compression"])?;
    let source = contents.get("source").and_then(Value::as_str).context("no source")?;
    let bytes = match source.strip_prefix("data:") {
        Some(data) => data_of(data).with_context(|| format!("{path}: its data"))?,
        None => {
            let hash = contents.get("verification").and_then(|v| v["hash"].as_str());
            ensure!(hash.is_some(), "{path} is loaded from {source} and verified by nothing");
            fetch(source).with_context(|| format!("{path}: {source}"))?
        }
    };
    if let Some(hash) = contents.get("verification").and_then(|v| v["hash"].as_str()) {
        let wanted = hash
            .strip_prefix("sha512-")
            .with_context(|| format!("{path}: hash {hash}"))?;
        let found = digest::digest(&digest::SHA512, &bytes);
        let found: String = found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(found == wanted, "{path}: its SHA-512 is {found}, not {wanted}");
    }
    let target = root.join(path.trim_start_matches('/'));
    ensure!(
        !target.exists() || !third || file.get("overwrite") == Some(&Value::Bool(true)),
        "{path} is there already"
    );
    let mode = file
        .get("mode")
        .map_or(Some(0o644), Value::as_u64)
        .context("a mode that is no number")?;
    write(&target, &bytes, u32::try_from(mode)?)?;
    Ok(target)
}

fn unit_of(unit: &Value, version: &str, root: &Path, made: &mut LaidOut) -> anyhow::Result<()> {
    let on = if version.starts_with("2.0") {
        "enable"
    } else {
        "enabled"
    };
    let unit = object(unit, "a unit", &["name", on, "mask", "contents", "dropins"])?;
    let name = unit
        .get("name")
        .and_then(Value::as_str)
        .context("a unit without a name")?;
    ensure!(!name.contains('/'), "unit {name:?}");
    if let Some(contents) = unit.get("contents").and_then(Value::as_str) {
        let path = root.join("etc/systemd/system").join(name);
        write(&path, contents.as_bytes(), 0o644)?;
        made.files.push(path);
    }
    if unit.get(on) == Some(&Value::Bool(true)) {
        made.enabled.push(name.to_owned());
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    fs::create_dir_all(path.parent().context("no folder")?)?;
    if mode & 0o111 != 0 {
        return write_program(path, bytes, mode);
    }
    fs::write(path, bytes)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// Another process writes it: while one of ours holds a program open for writing, none of our children could be started from
/// it.
fn write_program(path: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut install = Command::new("install")
        .args(["-m", &format!("{mode:o}"), "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .context("install cannot be started")?;
    install.stdin.take().context("no stdin")?.write_all(bytes)?;
    let ended = install.wait()?;
    ensure!(ended.success(), "{} was not written: {ended}", path.display());
    Ok(())
}

/// What follows `data:`, in base64 or with percents.
fn data_of(data: &str) -> anyhow::Result<Vec<u8>> {
    let (kind, data) = data.split_once(',').context("no comma")?;
    if kind.ends_with(";base64") {
        return Ok(STANDARD.decode(data)?);
    }
    let mut bytes = Vec::new();
    let mut rest = data.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().context("cut")?, rest.next().context("cut")?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits)?, 16)?);
        } else {
            bytes.push(byte);
        }
    }
    Ok(bytes)
}

fn list<'a>(top: &'a Map<String, Value>, section: &str, key: &str) -> anyhow::Result<&'a [Value]> {
    match top.get(section).and_then(|section| section.get(key)) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => bail!("{section}.{key} is no list"),
    }
}

fn object<'a>(value: &'a Value, what: &str, keys: &[&str]) -> anyhow::Result<&'a Map<String, Value>> {
    let object = value.as_object().with_context(|| format!("{what} is no object"))?;
    match object.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => bail!("{what} has a key {key:?} that is unknown"),
        None => Ok(object),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn laid_out(config: &Value) -> anyhow::Result<(tempfile::TempDir, LaidOut)> {
        let root = tempfile::tempdir()?;
        let made = lay_out(&config.to_string(), root.path(), |_| Ok(b"program".to_vec()))?;
        Ok((root, made))
    }

    #[test]
    fn files_and_units_are_laid_out_in_both_dialects() {
        for (version, on, root) in [
            ("2.0.0", "enable", true),
            ("2.3.0", "enabled", true),
            ("3.4.0", "enabled", false),
        ] {
            let mut file = json!({ "path": "/a/b", "mode": 0o600, "contents": { "source": "data:,a%20b%0A" } });
            if root {
                file["filesystem"] = json!("root");
            }
            let config = json!({ "ignition": { "version": version }, "storage": { "files": [file] },
                "systemd": { "units": [{ "name": "a.service", on: true, "contents": "[Unit]" }] } });
            let (root, made) = laid_out(&config).unwrap();
            assert_eq!(fs::read_to_string(root.path().join("a/b")).unwrap(), "a b\n");
            assert_eq!(made.enabled, ["a.service"]);
        }
    }

    #[test]
    fn what_ignition_would_refuse_is_refused() {
        let file = |more: Value| {
            let mut file = json!({ "path": "/a", "contents": { "source": "data:;base64,eA==" } });
            for (key, value) in more.as_object().unwrap() {
                file[key] = value.clone();
            }
            json!({ "ignition": { "version": "3.4.0" }, "storage": { "files": [file] } })
        };
        laid_out(&file(json!({}))).unwrap();
        let mut twice = file(json!({}));
        let one = twice["storage"]["files"][0].clone();
        twice["storage"]["files"].as_array_mut().unwrap().push(one);
        let loaded = |hash: &str| json!({ "contents": { "source": "https://x/y", "verification": { "hash": hash } } });
        for wrong in [
            file(json!({ "filesystem": "root" })),
            file(json!({ "inline": "x" })),
            file(json!({ "path": "a" })),
            file(json!({ "mode": "0600" })),
            file(json!({ "contents": { "source": "https://x/y" } })),
            file(loaded(&format!("sha512-{}", "0".repeat(128)))),
            twice,
            json!({ "ignition": { "version": "1.0.0" } }),
            json!({}),
        ] {
            assert!(laid_out(&wrong).is_err(), "{wrong}");
        }
    }
}
