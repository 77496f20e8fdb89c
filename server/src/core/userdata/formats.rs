//! The same for people who write userdata themselves, in the two other languages of the field. Both are read by programs
//! and changed by people: YAML with the texts as they are.

use secrecy::SecretString;
use serde_json::{Value, json};

use super::{Baked, Content, File, UNIT, UNIT_NAME, files};

/// A Butane config; its `variant` and `version` are those of Flatcar, and the rest is the same for Fedora CoreOS.
pub fn butane(baked: &Baked<'_>) -> Result<SecretString, serde_saphyr::ser::Error> {
    let file = |File { path, mode, content }: &File<'_>| {
        let contents = match content {
            Content::Text(text) => json!({ "inline": text }),
            Content::From(download) => {
                json!({ "source": download.url, "verification": { "hash": format!("sha512-{}", download.sha512) } })
            }
        };
        json!({ "path": path, "mode": mode, "overwrite": true, "contents": contents })
    };
    let files: Vec<Value> = files(baked).iter().map(file).collect();
    yaml(
        "",
        &json!({
            "variant": "flatcar",
            "version": "1.0.0",
            "storage": { "files": files },
            "systemd": { "units": [{ "name": UNIT_NAME, "enabled": true, "contents": UNIT }] },
        }),
    )
}

/// A cloud-config. cloud-init verifies no download: a command does.
pub fn cloud_config(baked: &Baked<'_>) -> Result<SecretString, serde_saphyr::ser::Error> {
    let mut written = Vec::new();
    let mut commands = Vec::new();
    for File { path, mode, content } in files(baked) {
        match content {
            Content::Text(text) => written.push(write_file(path, mode, &text)),
            Content::From(download) => {
                // Nobody starts what is not whole: it gets its name after its digest was right.
                let loaded = format!("{path}.download");
                let [url, sum] = [&download.url, &download.sha512];
                let script = "set -e; curl --fail --silent --show-error --location --retry 10 --output \"$1\" \"$2\"; \
                              echo \"$3  $1\" | sha512sum --check --status; chmod 0755 \"$1\"; mv \"$1\" \"$4\"";
                commands.push(json!(["sh", "-c", script, "sh", loaded, url, sum, path]));
            }
        }
    }
    written.push(write_file(&format!("/etc/systemd/system/{UNIT_NAME}"), 0o644, UNIT));
    commands.push(json!(["systemctl", "daemon-reload"]));
    commands.push(json!(["systemctl", "enable", "--now", UNIT_NAME]));
    yaml(
        "#cloud-config\n",
        &json!({ "write_files": written, "runcmd": commands }),
    )
}

fn write_file(path: &str, mode: u32, content: &str) -> Value {
    json!({ "path": path, "owner": "root:root", "permissions": format!("{mode:04o}"), "content": content })
}

fn yaml(first: &str, value: &Value) -> Result<SecretString, serde_saphyr::ser::Error> {
    Ok(format!("{first}{}", serde_saphyr::to_string(value)?).into())
}
