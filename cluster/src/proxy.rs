//! The proxy that the environment of a program names for API servers, read as Go's programs read it, so that one file of
//! settings is good for them and for us. Owns what may stand there and which server it is for. TLS goes through it from
//! end to end: it learns the name of the server and nothing else. Its password is nobody's to read.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::sync::OnceLock;

use http::Uri;
use http::uri::Authority;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use thiserror::Error;

/// The first that is not empty counts.
const VARIABLES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// The value is not shown: it may hold a password.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "environment variable {variable} {problem}: give http://<host>:<port>, or http://<user>:<password>@<host>:<port> with what is no letter or digit percent-encoded; empty for none"
)]
pub struct ProxyError {
    variable: &'static str,
    problem: &'static str,
}

#[derive(Clone)]
pub struct Proxy {
    variable: &'static str,
    url: SecretString,
    /// Without user and password.
    shown: String,
    exceptions: String,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As it stands in logs and errors.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.shown, self.variable)
    }
}

impl Proxy {
    pub fn from_environment() -> Result<Option<Self>, ProxyError> {
        Self::read(std::env::var_os)
    }

    fn read(environment: impl Fn(&'static str) -> Option<OsString>) -> Result<Option<Self>, ProxyError> {
        let Some((variable, value)) = first(VARIABLES, &environment) else {
            return Ok(None);
        };
        let wrong = |problem| ProxyError { variable, problem };
        let url = value.into_string().map_err(|_| wrong("is no text"))?;
        let url = match url.trim().split_once("://") {
            Some(("http", _)) => url.trim().to_owned(),
            Some(_) => return Err(wrong("names a kind of proxy that is not supported")),
            None => format!("http://{}", url.trim()),
        };
        let parsed: Uri = url.parse().map_err(|_| wrong("is no URL"))?;
        if parsed.path() != "/" || parsed.query().is_some() {
            return Err(wrong("has something behind host and port"));
        }
        let url = SecretString::from(url);
        // What the library makes nothing of, it would go past.
        let matched = matcher(&url, "").intercept(&Uri::from_static("https://any.example"));
        let shown = matched.and_then(|found| found.uri().authority().cloned());
        let fits = |found: &Authority| match found.as_str().strip_prefix(found.host()) {
            Some(port) => {
                !found.host().is_empty() && (port.is_empty() || found.port_u16().is_some_and(|port| port > 0))
            }
            None => false,
        };
        let shown = shown.filter(fits);
        let shown = format!("http://{}", shown.ok_or_else(|| wrong("is no URL"))?);
        let exceptions = first(EXCEPTIONS, &environment).map(|(_, value)| value.to_string_lossy().into_owned());
        Ok(Some(Self {
            variable,
            url,
            shown,
            exceptions: exceptions.unwrap_or_default(),
        }))
    }

    /// What of it is for this server; nothing, if that is reached directly.
    pub(crate) fn toward(&self, server: &Uri) -> Option<Intercept> {
        let host = server.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
        let ip: Option<IpAddr> = host.parse().ok();
        // Whatever the exceptions say: the proxy's own loopback is another machine's.
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return None;
        }
        let port = server.port_u16().unwrap_or(443);
        let exceptions: Vec<&str> = self
            .exceptions
            .split(',')
            .filter_map(|entry| applies(entry.trim(), &host, port))
            .collect();
        matcher(&self.url, &exceptions.join(",")).intercept(server)
    }
}

fn first(
    names: [&'static str; 2],
    environment: impl Fn(&'static str) -> Option<OsString>,
) -> Option<(&'static str, OsString)> {
    let mut found = names.into_iter().filter_map(|name| Some((name, environment(name)?)));
    found.find(|(_, value)| !value.is_empty())
}

fn matcher(url: &SecretString, exceptions: &str) -> Matcher {
    Matcher::builder().https(url.expose_secret()).no(exceptions).build()
}

/// The library knows hosts, domains and networks. Go knows ports too, and tells a domain from what is below it.
fn applies<'a>(entry: &'a str, host: &str, port: u16) -> Option<&'a str> {
    let address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let entry = match entry.rsplit_once(':') {
        Some((name, of)) if !address(entry) && !entry.contains('/') => (of.parse() == Ok(port)).then_some(name)?,
        _ => entry,
    };
    let entry = entry.strip_prefix('*').filter(|rest| !rest.is_empty()).unwrap_or(entry);
    let below = entry
        .strip_prefix('.')
        .is_some_and(|domain| domain.eq_ignore_ascii_case(host));
    (!below).then(|| entry.trim_matches(['[', ']']))
}

static USED: OnceLock<Option<Proxy>> = OnceLock::new();

/// From here on every client of `client::connect` goes through what the environment names. Called once, by programs that
/// stand where a proxy may be the only way out; whoever does not call it goes past any proxy.
pub fn use_environment() -> Result<Option<&'static Proxy>, ProxyError> {
    let proxy = Proxy::from_environment()?;
    Ok(USED.get_or_init(|| proxy).as_ref())
}

pub(crate) fn used() -> Option<&'static Proxy> {
    USED.get().and_then(Option::as_ref)
}

/// What is in force, for `--print-config`.
pub fn shown() -> Map<String, Value> {
    let proxy = Proxy::from_environment().ok().flatten();
    let exceptions = proxy.as_ref().and_then(|_| first(EXCEPTIONS, std::env::var_os));
    let entry = |value: Option<String>, from: Option<&str>| json!({"value": value, "from": from.unwrap_or("default")});
    let url = proxy.as_ref().map(|proxy| proxy.shown.clone());
    let except = proxy
        .as_ref()
        .map(|proxy| proxy.exceptions.clone())
        .filter(|all| !all.is_empty());
    Map::from_iter([
        (
            "https-proxy".to_owned(),
            entry(url, proxy.as_ref().map(|proxy| proxy.variable)),
        ),
        ("no-proxy".to_owned(), entry(except, exceptions.map(|(name, _)| name))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Proxy>, ProxyError> {
        let found = |name: &str| variables.iter().find(|(of, _)| *of == name);
        Proxy::read(|name| found(name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_variables_are_read_as_go_reads_them() {
        assert!(read(&[]).unwrap().is_none());
        assert!(
            read(&[("HTTPS_PROXY", ""), ("HTTP_PROXY", "http://p:1")])
                .unwrap()
                .is_none()
        );
        for (variables, shown) in [
            (
                vec![("HTTPS_PROXY", "http://p:3128"), ("https_proxy", "http://q:1")],
                "http://p:3128 (HTTPS_PROXY)",
            ),
            (
                vec![("HTTPS_PROXY", ""), ("https_proxy", "http://q:1/")],
                "http://q:1 (https_proxy)",
            ),
            (
                vec![("https_proxy", "proxy.example.org:3128")],
                "http://proxy.example.org:3128 (https_proxy)",
            ),
            (
                vec![("https_proxy", "http://[fd00::9]:3128")],
                "http://[fd00::9]:3128 (https_proxy)",
            ),
            (
                vec![("HTTPS_PROXY", "http://u:s%40cret@p:3128")],
                "http://p:3128 (HTTPS_PROXY)",
            ),
        ] {
            let proxy = read(&variables).unwrap().unwrap();
            assert_eq!(
                (proxy.to_string(), format!("{proxy:?}")),
                (shown.to_owned(), shown.to_owned())
            );
        }
    }

    #[test]
    fn what_is_no_proxy_of_ours_is_refused_by_its_variable_without_its_value() {
        for value in [
            "https://u:secret@p:3128",
            "socks5://u:secret@p:1080",
            "http://u:secret@",
            "http://u:se@cret@p:3128",
            "http://u:sec ret@p:3128",
            "http://u:secret@p:99999",
            "http://u:secret@p:3128/path",
            "http://p:3128?secret",
            "http://",
        ] {
            let error = read(&[("https_proxy", value)]).unwrap_err().to_string();
            assert!(
                error.contains("https_proxy") && error.contains("http://<host>"),
                "{error}"
            );
            assert!(!error.contains("cret@") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn who_is_reached_directly_is_told_as_go_tells_it() {
        let direct = |no: &str, server: &'static str| {
            let proxy = read(&[("HTTPS_PROXY", "http://p:3128"), ("NO_PROXY", no)])
                .unwrap()
                .unwrap();
            proxy.toward(&Uri::from_static(server)).is_none()
        };
        for (no, server) in [
            ("", "https://localhost:6443"),
            ("", "https://127.0.0.9:6443"),
            ("", "https://[::1]:6443"),
            ("*", "https://api.example.org"),
            ("example.org", "https://api.example.org"),
            (" other.org , API.Example.org", "https://api.example.org:6443"),
            (".example.org", "https://api.example.org"),
            ("*.example.org", "https://api.example.org"),
            ("example.org:6443", "https://api.example.org:6443"),
            ("example.org:443", "https://api.example.org"),
            ("10.0.0.1", "https://10.0.0.1:6443"),
            ("10.0.0.1:6443", "https://10.0.0.1:6443"),
            ("10.0.0.0/8", "https://10.1.2.3"),
            ("fd00::/16", "https://[fd00::1]:6443"),
            ("fd00::1", "https://[fd00::1]:6443"),
            ("[fd00::1]:6443", "https://[fd00::1]:6443"),
        ] {
            assert!(direct(no, server), "{no:?} {server}");
        }
        for (no, server) in [
            ("", "https://api.example.org"),
            ("example.org", "https://notexample.org"),
            (".example.org", "https://example.org"),
            ("*.example.org", "https://example.org"),
            ("example.org:6443", "https://api.example.org"),
            ("10.0.0.1:443", "https://10.0.0.1:6443"),
            ("10.0.0.0/8", "https://11.0.0.1"),
            ("fd00::2", "https://[fd00::1]:6443"),
            ("[fd00::1]:443", "https://[fd00::1]:6443"),
        ] {
            assert!(!direct(no, server), "{no:?} {server}");
        }
    }
}
