//! What a machine is to carry so that the agent begins by itself, and where that stands in its userdata. Only text:
//! where the credential comes from and who asks is other modules' business.
//!
//! An Ignition config keeps every byte that is not ours: whoever reads what became of his template finds it again.

mod formats;
mod text;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use thiserror::Error;

pub use formats::{butane, cloud_config};
use text::{TextError, member, members, put};

/// The agent's unit. It needs nothing on the machine beside the program.
pub const UNIT: &str = include_str!("../../../agent/packaging/firewall-agent.service");
pub const UNIT_NAME: &str = "firewall-agent.service";
pub const BOOTSTRAP_KUBECONFIG: &str = "/etc/firewall-controller/.bootstrap.kubeconfig";
/// The unit's EnvironmentFile.
pub const SETTINGS: &str = "/etc/default/firewall-agent";
/// Found before what an image carries in /usr/bin.
pub const PROGRAM: &str = "/usr/local/bin/firewall-agent";

/// Larger ones are not read: what is read takes many times the memory.
const USERDATA_MAX: usize = 256 * 1024;
/// What an empty userdata becomes: metal-stack's images read Ignition 2.
const EMPTY: &str = r#"{"ignition":{"version":"2.3.0"}}"#;

/// What is put onto a machine.
pub struct Baked<'a> {
    pub bootstrap_kubeconfig: &'a SecretString,
    /// Name and value of the agent's settings; none leaves alone what the machine has of them.
    pub settings: &'a [(String, String)],
    /// Where the agent comes from; without it the image carries it.
    pub download: Option<&'a Download>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Download {
    pub url: String,
    /// Of the program, in hex.
    pub sha512: String,
}

/// Why a userdata stays as it is. Nothing of its content is told: there are other people's secrets in it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UserdataError {
    #[error("it is no JSON: {0}")]
    NotJson(String),
    #[error("it is no Ignition config: it has no `ignition.version`")]
    NotIgnition,
    #[error("its Ignition version is {0:?}: 2.x and 3.x are known")]
    Version(String),
    #[error("its `ignition.config.replace` puts another config in its place: put the agent into that one")]
    Replaced,
    #[error("its {0}")]
    Unclear(String),
    #[error("it has {0} bytes, and at most {USERDATA_MAX} are read")]
    TooLarge(usize),
}

impl From<TextError> for UserdataError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::NotJson(why) => Self::NotJson(why),
            other => Self::Unclear(other.to_string()),
        }
    }
}

/// The userdata with ours in it. What is there already stays to the byte, so that twice is as good as once.
pub fn render(userdata: &str, baked: &Baked<'_>) -> Result<String, UserdataError> {
    if userdata.len() > USERDATA_MAX {
        return Err(UserdataError::TooLarge(userdata.len()));
    }
    let userdata = if userdata.trim().is_empty() { EMPTY } else { userdata };
    let dialect = dialect(userdata)?;
    let files: Vec<Value> = files(baked).iter().map(|file| dialect.file(file)).collect();
    let text = put(userdata, ["storage", "files"], "path", &files)?;
    Ok(put(&text, ["systemd", "units"], "name", &[dialect.unit()])?)
}

/// The bootstrap kubeconfig that stands in it, as this renders it.
pub fn bootstrap_kubeconfig(userdata: &str) -> Option<SecretString> {
    let read = Some(userdata).filter(|userdata| userdata.len() <= USERDATA_MAX)?;
    let config: Value = serde_json::from_str(read).ok()?;
    let mut files = config.get("storage")?.get("files")?.as_array()?.iter();
    let file = files.find(|file| file["path"] == BOOTSTRAP_KUBECONFIG && file["append"] != true)?;
    let data = file["contents"]["source"].as_str()?.strip_prefix("data:;base64,")?;
    let text = String::from_utf8(STANDARD.decode(data).ok()?).ok()?;
    Some(text.into())
}

enum Content<'a> {
    Text(String),
    From(&'a Download),
}

struct File<'a> {
    path: &'static str,
    mode: u32,
    content: Content<'a>,
}

fn files<'a>(baked: &Baked<'a>) -> Vec<File<'a>> {
    let mut files = vec![File {
        path: BOOTSTRAP_KUBECONFIG,
        mode: 0o600,
        content: Content::Text(baked.bootstrap_kubeconfig.expose_secret().to_owned()),
    }];
    if !baked.settings.is_empty() {
        files.push(File {
            path: SETTINGS,
            // A proxy's address may have a password in it.
            mode: 0o600,
            content: Content::Text(environment_file(baked.settings)),
        });
    }
    if let Some(download) = baked.download {
        files.push(File {
            path: PROGRAM,
            mode: 0o755,
            content: Content::From(download),
        });
    }
    files
}

/// As systemd reads it: within quotes only these two have a meaning.
fn environment_file(settings: &[(String, String)]) -> String {
    let line = |(name, value): &(String, String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        format!("{name}=\"{value}\"\n")
    };
    settings.iter().map(line).collect()
}

/// What differs between the versions of Ignition, as far as we write it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// 2.0: a unit is switched on by `enable`.
    First,
    /// 2.1 to 2.x.
    Second,
    /// 3.x: no filesystems, and what an image has at a path has to be replaced explicitly.
    Third,
}

impl Dialect {
    fn file(self, file: &File<'_>) -> Value {
        let contents = match &file.content {
            Content::Text(text) => json!({ "source": format!("data:;base64,{}", STANDARD.encode(text)) }),
            Content::From(Download { url, sha512 }) => {
                json!({ "source": url, "verification": { "hash": format!("sha512-{sha512}") } })
            }
        };
        let (path, mode) = (file.path, file.mode);
        match self {
            Self::First | Self::Second => {
                json!({ "filesystem": "root", "path": path, "mode": mode, "contents": contents })
            }
            Self::Third => json!({ "path": path, "mode": mode, "overwrite": true, "contents": contents }),
        }
    }

    fn unit(self) -> Value {
        let on = match self {
            Self::First => "enable",
            Self::Second | Self::Third => "enabled",
        };
        json!({ "name": UNIT_NAME, on: true, "contents": UNIT })
    }
}

fn dialect(userdata: &str) -> Result<Dialect, UserdataError> {
    let top = members(userdata)?;
    let ignition = member(&top, "ignition")?.ok_or(UserdataError::NotIgnition)?;
    let ignition = members(ignition.get()).map_err(|_| UserdataError::NotIgnition)?;
    let version = member(&ignition, "version")?.ok_or(UserdataError::NotIgnition)?;
    let version: String = serde_json::from_str(version.get()).map_err(|_| UserdataError::NotIgnition)?;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let dialect = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(2), Some(0)) => Dialect::First,
        (Some(2), Some(_)) => Dialect::Second,
        (Some(3), Some(_)) => Dialect::Third,
        // What somebody wrote there may be anything, and is told to people.
        _ => return Err(UserdataError::Version(version.chars().take(20).collect())),
    };
    if let Some(config) = member(&ignition, "config")?
        && let Ok(config) = serde_json::from_str::<Value>(config.get())
        && config["replace"]["source"]
            .as_str()
            .is_some_and(|source| !source.is_empty())
    {
        return Err(UserdataError::Replaced);
    }
    Ok(dialect)
}

#[cfg(test)]
#[path = "userdata/tests.rs"]
mod tests;
