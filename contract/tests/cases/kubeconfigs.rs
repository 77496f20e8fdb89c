//! Kubeconfigs as a shoot's tenant, a template or a careless hand may write them.

use contract::kubeconfig::{BOOTSTRAP_EXTENSION, Fault, TOKEN_PLACEHOLDER};
use serde_json::{Value, json};

use super::variant;
use crate::properties::kubeconfig::Source::{self, Given, Local, Operators, Template};
use crate::properties::{FIREWALL, OTHER, key};

pub const TOKEN: &str = "abcdef.0123456789abcdef";
/// Signed by itself, of a key that nobody has.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----
MIIBcTCCARegAwIBAgIUL5jqrxymBdppMLzoOKz4p76ZNoMwCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCY2EwIBcNMjYxMTIxMjIzMzE5WhgPMjEyNjEwMjgyMjMzMTla
MA0xCzAJBgNVBAMMAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEagIdgt1u
86Xn+w9xh8qEhs7hWeDVhswNdvCBlNtASsGxJASVoem7/G3YYg2rgscm/kBWyupf
YLsK50cKoyLBB6NTMFEwHQYDVR0OBBYEFKbecaNqKEj7idu0kBO5zmzQJXClMB8G
A1UdIwQYMBaAFKbecaNqKEj7idu0kBO5zmzQJXClMA8GA1UdEwEB/wQFMAMBAf8w
CgYIKoZIzj0EAwIDSAAwRQIhAJVDY344GlP3kQj+oJAHlYbjesDlJXKY56Z3gKzF
iXZ4AiAwv0XC+8BSdYoj+lhv9DnXh5YSyfRnWdSJeIv6AM4MMA==
-----END CERTIFICATE-----
";

/// Name, reader, answer, and what makes it different from the good one: of its fields, or of its text.
pub type Case = (&'static str, Source, &'static str, Edit);

pub enum Edit {
    Fields(fn(&mut Value)),
    Text(fn(String) -> String),
}

use Edit::{Fields, Text};

// One line each.
#[rustfmt::skip]
pub const CASES: &[Case] = &[
    ("good", Given, "Ok", Fields(|_| {})),
    ("good-of-the-operator", Operators, "Ok", Fields(|f| { f["contexts"][0]["name"] = json!("admin@seed"); f["current-context"] = json!("admin@seed") })),
    ("good-yaml", Given, "Ok", Text(|t| serde_saphyr::to_string(&serde_json::from_str::<Value>(&t).unwrap()).unwrap())),
    ("good-certificate", Given, "Ok", Fields(|f| f["users"][0]["user"] = json!({"client-certificate-data": base64(CERTIFICATE), "client-key-data": base64(OTHER)}))),
    ("good-certificate-files", Local, "Ok", Fields(|f| f["users"][0]["user"] = json!({"client-certificate": "/var/lib/firewall-agent/current", "client-key": "/var/lib/firewall-agent/current"}))),
    ("good-template", Template, "Ok", Fields(|f| f["users"][0]["user"] = json!({"tokenFile": TOKEN_PLACEHOLDER}))),
    ("good-without-extension", Given, "Ok", Fields(|f| without(f, "extensions"))),
    ("good-foreign-extension", Given, "Ok", Fields(|f| f["clusters"][0]["cluster"]["extensions"] = json!([{"name": "other", "extension": {"exec": "sh"}}]))),
    ("good-nulls", Given, "Ok", Fields(|f| f["clusters"][0]["cluster"]["tls-server-name"] = json!(null))),
    ("user-exec", Given, "Forbidden users[0].user.exec", Fields(|f| f["users"][0]["user"]["exec"] = json!({"command": "sh"}))),
    ("user-exec-null", Given, "Forbidden users[0].user.exec", Fields(|f| f["users"][0]["user"]["exec"] = json!(null))),
    ("user-exec-in-a-template", Template, "Forbidden users[0].user.exec", Fields(|f| f["users"][0]["user"] = json!({"exec": {"command": "sh"}}))),
    ("user-exec-in-our-own-file", Local, "Forbidden users[0].user.exec", Fields(|f| f["users"][0]["user"]["exec"] = json!({"command": "sh"}))),
    ("user-exec-upper-case", Given, "Unknown users[0].user.Exec", Fields(|f| f["users"][0]["user"]["Exec"] = json!({"command": "sh"}))),
    ("user-auth-provider", Given, "Forbidden users[0].user.auth-provider", Fields(|f| f["users"][0]["user"]["auth-provider"] = json!({"name": "oidc"}))),
    ("user-as", Given, "Forbidden users[0].user.as", Fields(|f| f["users"][0]["user"]["as"] = json!("admin"))),
    ("user-as-groups", Given, "Forbidden users[0].user.as-groups", Fields(|f| f["users"][0]["user"]["as-groups"] = json!(["system:masters"]))),
    ("user-as-uid", Given, "Forbidden users[0].user.as-uid", Fields(|f| f["users"][0]["user"]["as-uid"] = json!("1"))),
    ("user-as-extra", Given, "Forbidden users[0].user.as-user-extra", Fields(|f| f["users"][0]["user"]["as-user-extra"] = json!({"scopes": ["all"]}))),
    ("user-password", Given, "Forbidden users[0].user.password", Fields(|f| f["users"][0]["user"]["password"] = json!("correct horse battery"))),
    ("user-token-file", Given, "Forbidden users[0].user.tokenFile", Fields(|f| f["users"][0]["user"] = json!({"tokenFile": "/etc/shadow"}))),
    ("user-token-file-placeholder", Given, "Forbidden users[0].user.tokenFile", Fields(|f| f["users"][0]["user"] = json!({"tokenFile": TOKEN_PLACEHOLDER}))),
    ("user-token-file-in-a-template", Template, "Forbidden users[0].user.tokenFile", Fields(|f| f["users"][0]["user"] = json!({"tokenFile": "/etc/shadow"}))),
    ("user-token-in-a-template", Template, "Forbidden users[0].user.token", Fields(|_| {})),
    ("user-certificate-file", Given, "Forbidden users[0].user.client-certificate", Fields(|f| f["users"][0]["user"] = json!({"client-certificate": "/etc/ssl/cert.pem", "client-key-data": base64(OTHER)}))),
    ("user-certificate-file-relative", Local, "Value users[0].user.client-certificate", Fields(|f| f["users"][0]["user"] = json!({"client-certificate": "../cert.pem", "client-key": "/key.pem"}))),
    ("user-key-file", Given, "Forbidden users[0].user.client-key", Fields(|f| f["users"][0]["user"] = json!({"client-certificate-data": base64(CERTIFICATE), "client-key": "/etc/ssl/key.pem"}))),
    ("user-certificate-without-key", Given, "Missing users[0].user.client-key-data", Fields(|f| f["users"][0]["user"] = json!({"client-certificate-data": base64(CERTIFICATE)}))),
    ("user-certificate-and-token", Given, "Forbidden users[0].user.token", Fields(|f| { f["users"][0]["user"]["client-certificate-data"] = json!(base64(CERTIFICATE)); f["users"][0]["user"]["client-key-data"] = json!(base64(OTHER)) })),
    ("user-key-for-certificate", Given, "Value users[0].user.client-certificate-data", Fields(|f| f["users"][0]["user"] = json!({"client-certificate-data": base64(OTHER), "client-key-data": base64(OTHER)}))),
    ("user-none", Given, "Missing users[0].user.token", Fields(|f| f["users"][0]["user"] = json!({}))),
    ("user-twice", Given, "Count users", Fields(|f| { let user = f["users"][0].clone(); f["users"].as_array_mut().unwrap().push(user) })),
    ("token-empty", Given, "Type users[0].user.token", Fields(|f| f["users"][0]["user"]["token"] = json!(""))),
    ("token-number", Given, "Type users[0].user.token", Fields(|f| f["users"][0]["user"]["token"] = json!(12_345_678_901_234_567_u64))),
    ("token-with-a-header", Given, "Value users[0].user.token", Fields(|f| f["users"][0]["user"]["token"] = json!("abcdef.0123456789abcdef\r\nImpersonate-User: admin"))),
    ("token-for-a-field", Given, "Unknown users[0].user.(no field's name)", Fields(|f| f["users"][0]["user"] = json!({TOKEN: null}))),
    ("token-twice", Given, "NotYaml", Text(|t| t.replacen("\"token\"", "\"token\":\"a\",\"token\"", 1))),
    ("server-twice", Given, "NotYaml", Text(|t| t.replacen("\"server\"", "\"server\":\"https://evil.example.org\",\"server\"", 1))),
    ("server-twice-escaped", Given, "NotYaml", Text(|t| t.replacen("\"server\"", "\"\\u0073erver\":\"https://evil.example.org\",\"server\"", 1))),
    ("server-http", Given, "Value clusters[0].cluster.server", Fields(|f| f["clusters"][0]["cluster"]["server"] = json!("http://10.0.0.1:6443"))),
    ("server-user", Given, "Value clusters[0].cluster.server", Fields(|f| f["clusters"][0]["cluster"]["server"] = json!("https://10.0.0.1@evil.example.org"))),
    ("server-path", Given, "Value clusters[0].cluster.server", Fields(|f| f["clusters"][0]["cluster"]["server"] = json!("https://10.0.0.1/../evil"))),
    ("server-newline", Given, "Value clusters[0].cluster.server", Fields(|f| f["clusters"][0]["cluster"]["server"] = json!("https://10.0.0.1\n"))),
    ("server-missing", Given, "Missing clusters[0].cluster.server", Fields(|f| without(&mut f["clusters"][0]["cluster"], "server"))),
    ("server-name-wildcard", Given, "Value clusters[0].cluster.tls-server-name", Fields(|f| f["clusters"][0]["cluster"]["tls-server-name"] = json!("*.example.org"))),
    ("cluster-insecure", Given, "Forbidden clusters[0].cluster.insecure-skip-tls-verify", Fields(|f| f["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = json!(true))),
    ("cluster-insecure-as-text", Given, "Type clusters[0].cluster.insecure-skip-tls-verify", Fields(|f| f["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = json!("true"))),
    ("cluster-proxy", Given, "Forbidden clusters[0].cluster.proxy-url", Fields(|f| f["clusters"][0]["cluster"]["proxy-url"] = json!("http://evil.example.org"))),
    ("cluster-ca-file", Given, "Forbidden clusters[0].cluster.certificate-authority", Fields(|f| f["clusters"][0]["cluster"]["certificate-authority"] = json!("/etc/ssl/certs/ca.pem"))),
    ("cluster-twice", Given, "Count clusters", Fields(|f| { let cluster = f["clusters"][0].clone(); f["clusters"].as_array_mut().unwrap().push(cluster) })),
    ("ca-missing", Given, "Missing clusters[0].cluster.certificate-authority-data", Fields(|f| without(&mut f["clusters"][0]["cluster"], "certificate-authority-data"))),
    ("ca-empty", Given, "Value clusters[0].cluster.certificate-authority-data", Fields(|f| f["clusters"][0]["cluster"]["certificate-authority-data"] = json!(base64("\n")))),
    ("ca-with-a-key", Given, "Value clusters[0].cluster.certificate-authority-data", Fields(|f| f["clusters"][0]["cluster"]["certificate-authority-data"] = json!(base64(&format!("{CERTIFICATE}{OTHER}"))))),
    ("ca-seventeen", Given, "Value clusters[0].cluster.certificate-authority-data", Fields(|f| f["clusters"][0]["cluster"]["certificate-authority-data"] = json!(base64(&CERTIFICATE.repeat(17))))),
    ("ca-damaged", Given, "Value clusters[0].cluster.certificate-authority-data", Fields(|f| f["clusters"][0]["cluster"]["certificate-authority-data"] = json!(base64(&CERTIFICATE.replacen("MII", "MIA", 1))))),
    ("context-other-user", Given, "Name contexts[0].context.user", Fields(|f| f["contexts"][0]["context"]["user"] = json!("admin"))),
    ("context-none-current", Given, "Missing current-context", Fields(|f| f["current-context"] = json!(null))),
    ("context-twice", Given, "Count contexts", Fields(|f| { let context = f["contexts"][0].clone(); f["contexts"].as_array_mut().unwrap().push(context) })),
    ("namespace-with-a-path", Given, "Value contexts[0].context.namespace", Text(|t| t.replace("\"ns\"", "\"../kube-system\""))),
    ("namespace-missing", Given, "Missing contexts[0].context.namespace", Fields(|f| without(&mut f["contexts"][0]["context"], "namespace"))),
    ("extension-twice", Given, "Count extensions[name=firewall.metal-stack.io/bootstrap]", Fields(|f| { let ours = f["extensions"][0].clone(); f["extensions"].as_array_mut().unwrap().push(ours) })),
    ("extension-in-the-cluster", Given, "Forbidden clusters[0].cluster.extensions[name=firewall.metal-stack.io/bootstrap]", Fields(|f| f["clusters"][0]["cluster"]["extensions"] = f["extensions"].clone())),
    ("extension-no-key", Given, "Value extensions[0].extension.handoverKeys", Fields(|f| f["extensions"][0]["extension"]["handoverKeys"] = json!([]))),
    ("extension-key-off-curve", Given, "Value extensions[0].extension.handoverKeys", Fields(|f| f["extensions"][0]["extension"]["handoverKeys"] = json!(["BA".repeat(43)]))),
    ("extension-unknown-field", Given, "Unknown extensions[0].extension.trust", Fields(|f| f["extensions"][0]["extension"]["trust"] = json!("all"))),
    ("file-unknown-field", Given, "Unknown import", Fields(|f| f["import"] = json!("/etc/kubeconfig"))),
    ("file-kind", Given, "Type kind", Fields(|f| f["kind"] = json!("List"))),
    ("file-preferences", Given, "Unknown preferences.colors", Fields(|f| f["preferences"] = json!({"colors": true}))),
    ("text-anchor", Given, "NotYaml", Text(|t| t.replacen("\"ns\"", "&a \"ns\"", 1))),
    ("text-alias", Given, "NotYaml", Text(|t| t.replacen("\"ns\"", "&a \"ns\"", 1).replacen("\"ns\"", "*a", 1))),
    ("text-merge-key", Given, "NotYaml", Text(|t| t.replacen("{\"token\"", "{<<: {\"exec\":{}},\"token\"", 1))),
    ("text-tag", Given, "NotYaml", Text(|t| t.replacen("\"https:", "!!python/object \"https:", 1))),
    ("text-two-documents", Given, "NotYaml", Text(|t| format!("{t}\n---\n{t}\n"))),
    ("text-deep", Given, "NotYaml", Text(|t| t.replacen("{\"token\"", &format!("{{\"later\":{}{},\"token\"", "[".repeat(999), "]".repeat(999)), 1))),
    ("text-empty", Given, "Type the file", Text(|_| String::new())),
    ("text-cut", Given, "NotYaml", Text(|t| t[..t.len() - 1].to_owned())),
    ("text-too-large", Given, "TooLarge", Text(|t| t + &" ".repeat(64 * 1024))),
    ("text-nul", Given, "NotYaml", Text(|t| t.replacen("\"ns\"", "\"ns\0\"", 1))),
];

pub fn text(edit: &Edit) -> String {
    let mut file = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "ns", "cluster": {
            "server": "https://10.0.0.1:6443",
            "certificate-authority-data": base64(CERTIFICATE),
        }}],
        "contexts": [{"name": "ns", "context": {"cluster": "ns", "namespace": "ns", "user": "ns"}}],
        "current-context": "ns",
        "users": [{"name": "ns", "user": {"token": TOKEN}}],
        "extensions": [{"name": BOOTSTRAP_EXTENSION, "extension": {
            "firewall": FIREWALL,
            "handoverKeys": [key().public()],
        }}],
    });
    match edit {
        Fields(edit) => {
            edit(&mut file);
            file.to_string()
        }
        Text(edit) => edit(file.to_string()),
    }
}

/// Kind of the fault and field.
pub fn answer(source: Source, text: &str) -> String {
    let fault = match source.read(text) {
        Ok(_) => return "Ok".to_owned(),
        Err(error) => error.fault,
    };
    match &fault {
        Fault::Count { field, .. }
        | Fault::Forbidden { field, .. }
        | Fault::Missing { field, .. }
        | Fault::Name { field, .. }
        | Fault::Type { field, .. }
        | Fault::Unknown { field }
        | Fault::Value { field, .. } => format!("{} {field}", variant(&fault)),
        Fault::NotYaml { .. } | Fault::TooLarge { .. } => variant(&fault),
    }
}

fn base64(text: &str) -> String {
    use base64::Engine;
    base64::prelude::BASE64_STANDARD.encode(text)
}

fn without(value: &mut Value, field: &str) {
    value.as_object_mut().unwrap().remove(field).unwrap();
}
