//! The unit, laid out as on a machine, in the eyes of `systemd-analyze`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const UNIT: &str = "firewall-agent.service";
/// Of 100, in tenths of what systemd calls exposure: up to here it is "OK".
const EXPOSED: &str = "30";

/// The binary in this folder, and the unit where the package puts it.
fn laid_out(binary: Option<&str>, text: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let units = root.path().join("usr/lib/systemd/system");
    fs::create_dir_all(&units).unwrap();
    fs::write(units.join(UNIT), text).unwrap();
    // What systemd itself brings, and the unit refers to.
    for target in ["sysinit", "basic", "shutdown", "network-online", "multi-user"] {
        fs::write(
            units.join(format!("{target}.target")),
            "[Unit]\nDescription=of systemd\n",
        )
        .unwrap();
    }
    if let Some(folder) = binary {
        let folder = root.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        let binary = folder.join("firewall-agent");
        fs::write(&binary, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    }
    root
}

fn analyze(root: &Path, arguments: &[&str]) -> Output {
    Command::new("systemd-analyze")
        .args(arguments)
        .arg(format!("--root={}", root.display()))
        .arg(UNIT)
        .output()
        .unwrap_or_else(|e| panic!("systemd-analyze cannot be run: `make tools`: {e}"))
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat()
}

fn unit() -> String {
    fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../agent/packaging/firewall-agent.service"
    ))
    .unwrap()
}

#[test]
fn the_unit_is_one_that_systemd_takes_wherever_its_binary_is() {
    for folder in ["usr/bin", "usr/local/bin"] {
        let root = laid_out(Some(folder), &unit());
        let verified = analyze(root.path(), &["verify", "--man=no"]);
        assert!(
            verified.status.success() && said(&verified).is_empty(),
            "{}",
            said(&verified)
        );
    }
    // That it would be found out.
    for (binary, text) in [
        (None, unit()),
        (Some("usr/bin"), unit().replace("Type=notify", "Type=notifies")),
        (Some("usr/bin"), unit().replace("@system-service", "@system-services")),
    ] {
        let root = laid_out(binary, &text);
        let verified = analyze(root.path(), &["verify", "--man=no"]);
        assert!(
            !verified.status.success() || !said(&verified).is_empty(),
            "not found out: {binary:?}\n{text}"
        );
    }
}

#[test]
fn the_unit_holds_the_agent_to_what_it_needs() {
    let root = laid_out(Some("usr/bin"), &unit());
    let threshold = format!("--threshold={EXPOSED}");
    let measured = analyze(root.path(), &["security", "--offline=true", &threshold]);
    assert!(measured.status.success(), "{}", said(&measured));
    let last = said(&measured).lines().last().unwrap_or_default().to_owned();
    println!("{last}");
    // Without any of this it would be far above.
    let bare = unit()
        .lines()
        .take_while(|line| !line.starts_with("ProtectSystem"))
        .collect::<Vec<_>>()
        .join("\n");
    let root = laid_out(Some("usr/bin"), &bare);
    let measured = analyze(root.path(), &["security", "--offline=true", &threshold]);
    assert!(!measured.status.success(), "{}", said(&measured));
}

/// It is put into userdata as it is: there is nothing beside the binary.
#[test]
fn the_unit_needs_nothing_beside_the_binary() {
    let text = unit();
    let commands: Vec<_> = text.lines().filter(|line| line.starts_with("Exec")).collect();
    assert_eq!(commands, ["ExecStart=firewall-agent run"]);
    let files: Vec<_> = text.lines().filter(|line| line.contains("File=")).collect();
    assert_eq!(files, ["EnvironmentFile=-/etc/default/firewall-agent"]);
}
