//! What the command line says about the agent that is put onto machines.

use axum::http::Uri;
use clap::Args;

use crate::core::userdata::{Baked, Download};
use secrecy::SecretString;

/// Settings of the agent that are none of its own, by the names that everybody gives them.
const PROXY_SETTINGS: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];
const AGENT_PREFIX: &str = "FIREWALL_AGENT_";

#[derive(Args, Clone, Debug, Default)]
pub struct Agent {
    /// Where machines whose image does not carry the agent load it from (http or https); with --agent-sha512.
    #[arg(long, env = "FIREWALL_APPROVER_AGENT_URL", value_parser = url, value_name = "URL")]
    pub agent_url: Option<String>,

    /// SHA-512 of that program, in hex.
    #[arg(long, env = "FIREWALL_APPROVER_AGENT_SHA512", value_parser = sha512, value_name = "DIGEST")]
    pub agent_sha512: Option<String>,

    /// A setting of the agent for /etc/default/firewall-agent on machines: FIREWALL_AGENT_..., HTTPS_PROXY or NO_PROXY. May be
    /// given more than once, or several on a line each. Without it that file is left as it is.
    #[arg(
        long = "agent-setting",
        env = "FIREWALL_APPROVER_AGENT_SETTING",
        value_delimiter = '\n',
        value_parser = setting,
        value_name = "NAME=VALUE"
    )]
    pub agent_settings: Vec<(String, String)>,
}

impl Agent {
    /// What does not go together.
    pub fn check(&self) -> Result<(), String> {
        match (&self.agent_url, &self.agent_sha512) {
            (Some(_), None) => Err(
                "--agent-url (FIREWALL_APPROVER_AGENT_URL) stands alone: nothing is loaded onto a firewall whose digest \
                 nobody named, give --agent-sha512 (FIREWALL_APPROVER_AGENT_SHA512) too"
                    .into(),
            ),
            (None, Some(_)) => Err(
                "--agent-sha512 (FIREWALL_APPROVER_AGENT_SHA512) stands alone: give --agent-url \
                 (FIREWALL_APPROVER_AGENT_URL) too"
                    .into(),
            ),
            _ => Ok(()),
        }
    }

    pub fn download(&self) -> Option<Download> {
        let (url, sha512) = (self.agent_url.clone()?, self.agent_sha512.clone()?);
        Some(Download { url, sha512 })
    }

    pub fn baked<'a>(&'a self, bootstrap_kubeconfig: &'a SecretString, download: Option<&'a Download>) -> Baked<'a> {
        Baked {
            bootstrap_kubeconfig,
            settings: &self.agent_settings,
            download,
        }
    }
}

/// The digest makes it safe over http; a password in it would be in every userdata.
fn url(text: &str) -> Result<String, String> {
    let wanted = || "an address as https://<host>/<path> is wanted".to_owned();
    let uri: Uri = text.parse().map_err(|_| wanted())?;
    let authority = uri.authority().ok_or_else(wanted)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || authority.host().is_empty() || uri.path().len() < 2 {
        return Err(wanted());
    }
    if authority.as_str().contains('@') {
        return Err("it names a user: whoever reads a userdata reads that too".into());
    }
    Ok(text.to_owned())
}

fn sha512(text: &str) -> Result<String, String> {
    if text.len() == 128 && text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("128 hexadecimal digits are wanted, as sha512sum prints them".into())
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
    let own = name.strip_prefix(AGENT_PREFIX).is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_')
    });
    if !own && !PROXY_SETTINGS.contains(&name) {
        return Err("the agent has settings that begin with FIREWALL_AGENT_, HTTPS_PROXY and NO_PROXY".into());
    }
    if value.chars().any(char::is_control) {
        return Err("its value has a control character in it".into());
    }
    if !own && value.contains('@') {
        return Err("it names a user: whoever reads a userdata reads that too; put it into the image".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_agent_reads_is_put_onto_machines() {
        assert_eq!(
            setting("FIREWALL_AGENT_HOOK=systemctl restart x=y").unwrap(),
            ("FIREWALL_AGENT_HOOK".into(), "systemctl restart x=y".into())
        );
        setting("HTTPS_PROXY=http://proxy.example:3128").unwrap();
        setting("no_proxy=").unwrap();
        for bad in [
            "FIREWALL_AGENT_HOOK",
            "FIREWALL_AGENT_=x",
            "FIREWALL_AGENT_hook=x",
            "LD_PRELOAD=/x",
            "PATH=/x",
            "FIREWALL_AGENT_HOOK=a\tb",
            "HTTPS_PROXY=http://user:word@proxy.example",
        ] {
            setting(bad).unwrap_err();
        }
    }

    #[test]
    fn nothing_is_loaded_that_nobody_named_the_digest_of() {
        let digest = "Ab".repeat(64);
        assert_eq!(sha512(&digest).unwrap(), digest.to_lowercase());
        for bad in ["", "ab", &"ag".repeat(64), &"a".repeat(127)] {
            sha512(bad).unwrap_err();
        }
        url("http://images.example/firewall-agent?x=y").unwrap();
        for bad in [
            "images.example/a",
            "ftp://images.example/a",
            "https://images.example",
            "https://user:word@images.example/a",
            "--output",
        ] {
            url(bad).unwrap_err();
        }
        let (url, sha512) = (Some("https://a/b".to_owned()), Some(digest));
        let agent = |agent_url: &Option<String>, agent_sha512: &Option<String>| Agent {
            agent_url: agent_url.clone(),
            agent_sha512: agent_sha512.clone(),
            ..Agent::default()
        };
        agent(&url, &sha512).check().unwrap();
        agent(&None, &None).check().unwrap();
        assert!(agent(&url, &None).check().unwrap_err().contains("--agent-sha512"));
        assert!(agent(&None, &sha512).check().unwrap_err().contains("--agent-url"));
    }
}
