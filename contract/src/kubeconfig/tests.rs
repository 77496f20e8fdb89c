use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, KeyPair};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::*;
use crate::key::PrivateKey;

mod properties;

const WHAT: &str = "Secret shoot--p--c/kubeconfig";
const TOKEN: &str = "abcdef.0123456789abcdef";

fn certificate() -> String {
    CertificateParams::default()
        .self_signed(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
}

fn bundle() -> CaBundle {
    CaBundle::from_pem(&certificate()).unwrap()
}

fn config(credential: Credential) -> Kubeconfig {
    Kubeconfig {
        server: "https://api.seed.example.org:6443".to_owned(),
        tls_server_name: Some("kubernetes.default".to_owned()),
        ca: bundle(),
        credential,
        namespace: "shoot--project--cluster".to_owned(),
        bootstrap: Some(BootstrapExtension {
            firewall: FirewallName::parse("firewall-0a1b2").unwrap(),
            handover_keys: (0..2).map(|_| PrivateKey::generate().unwrap().public()).collect(),
        }),
    }
}

/// A kubeconfig as JSON, which is YAML, to be spoilt in one place.
fn good() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "ns", "cluster": {
            "server": "https://10.0.0.1:6443",
            "certificate-authority-data": bundle().to_base64(),
        }}],
        "contexts": [{"name": "ns", "context": {"cluster": "ns", "namespace": "ns", "user": "ns"}}],
        "current-context": "ns",
        "users": [{"name": "ns", "user": {"token": TOKEN}}],
    })
}

fn with(pointer: &str, field: &str, value: Value) -> String {
    let mut config = good();
    config.pointer_mut(pointer).unwrap()[field] = value;
    config.to_string()
}

fn without(pointer: &str, field: &str) -> String {
    let mut config = good();
    config
        .pointer_mut(pointer)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove(field)
        .unwrap();
    config.to_string()
}

fn refusal(text: &str) -> String {
    Kubeconfig::read(WHAT, text).unwrap_err().to_string()
}

fn template(user: Value) -> String {
    let mut config = good();
    config["users"][0]["user"] = user;
    config["contexts"][0]["context"]
        .as_object_mut()
        .unwrap()
        .remove("namespace");
    config.to_string()
}

#[test]
fn what_is_written_is_read_back_and_written_the_same() {
    let key_pem = KeyPair::generate().unwrap().serialize_pem();
    let pair = Credential::Certificate {
        certificate_pem: certificate(),
        key_pem: key_pem.into(),
    };
    for credential in [
        Credential::Token(TOKEN.into()),
        Credential::Token("1234.5678".into()),
        pair,
    ] {
        let config = config(credential);
        let text = config.write();
        let again = Kubeconfig::read(WHAT, &text).unwrap();
        assert_eq!(*again.write(), *text);
        assert_eq!(again.ca, config.ca);
        assert_eq!(again.bootstrap, config.bootstrap);
        assert_eq!(again.tls_server_name, config.tls_server_name);
    }
}

#[test]
fn a_local_file_may_name_the_files_of_its_certificate() {
    let credential = Credential::CertificateFiles {
        certificate: "/var/lib/firewall-agent/current".into(),
        key: "/var/lib/firewall agent/\"käy\\".into(),
    };
    let text = config(credential).write();
    let local = Kubeconfig::read_local(WHAT, &text).unwrap();
    assert_eq!(*local.write(), *text);
    assert!(refusal(&text).contains("users[0].user.client-certificate is not allowed"));

    let token = config(Credential::TokenFile("/var/lib/firewall-agent/current.token".into())).write();
    let local = Kubeconfig::read_local(WHAT, &token).unwrap();
    assert_eq!(*local.write(), *token);
    assert!(refusal(&token).contains("users[0].user.tokenFile is not allowed"));
    for (user, words) in [
        (json!({"tokenFile": "current.token"}), "is not an absolute path"),
        (
            json!({"tokenFile": "/token", "token": "abc"}),
            "another credential beside it",
        ),
        (
            json!({"tokenFile": "/token", "client-certificate": "/pair", "client-key": "/pair"}),
            "another credential beside it",
        ),
    ] {
        let mut file = good();
        file["users"][0]["user"] = user;
        let error = Kubeconfig::read_local(WHAT, &file.to_string()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    let mut relative = good();
    relative["users"][0]["user"] = json!({"client-certificate": "current", "client-key": "/key"});
    let error = Kubeconfig::read_local(WHAT, &relative.to_string())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("users[0].user.client-certificate: is not an absolute path"),
        "{error}"
    );
}

#[test]
fn a_template_has_no_credential_and_its_placeholder_is_never_a_path() {
    for user in [json!({"tokenFile": TOKEN_PLACEHOLDER}), json!({}), json!(null)] {
        let config = Kubeconfig::read_template(WHAT, &template(user)).unwrap();
        assert!(matches!(config.credential, Credential::None));
        assert_eq!(config.namespace, "ns");
        assert!(matches!(
            Kubeconfig::read_template(WHAT, &config.write()).unwrap().credential,
            Credential::None
        ));
    }
    for (user, named) in [
        (json!({"tokenFile": "/etc/shadow"}), "users[0].user.tokenFile"),
        (json!({"token": TOKEN}), "users[0].user.token"),
        (
            json!({"tokenFile": TOKEN_PLACEHOLDER, "token": TOKEN}),
            "users[0].user.token",
        ),
        (json!({"client-key-data": "x"}), "users[0].user.client-key-data"),
        (json!({"exec": {"command": "sh"}}), "users[0].user.exec"),
    ] {
        let error = Kubeconfig::read_template(WHAT, &template(user))
            .unwrap_err()
            .to_string();
        assert!(error.contains(named), "{error}");
    }
    let error = refusal(&template(json!({"tokenFile": TOKEN_PLACEHOLDER})));
    assert!(error.contains("namespace"), "{error}");
}

#[test]
fn ordinary_harmless_fields_do_no_harm() {
    let mut config = good();
    config["preferences"] = json!({});
    let foreign = json!([{"name": "somebody.example.org", "extension": {"anything": [1, {"token": 2}]}}]);
    config["extensions"] = foreign.clone();
    config["clusters"][0]["cluster"]["extensions"] = foreign.clone();
    config["clusters"][0]["cluster"]["disable-compression"] = json!(true);
    config["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = json!(false);
    config["clusters"][0]["cluster"]["server"] = json!("https://[2001:db8::1]:6443/");
    config["contexts"][0]["context"]["extensions"] = foreign;
    let config = Kubeconfig::read(WHAT, &config.to_string()).unwrap();
    assert_eq!(config.server, "https://[2001:db8::1]:6443");
    assert_eq!(config.bootstrap, None);
    let Credential::Token(token) = config.credential else {
        panic!("not a token")
    };
    assert_eq!(token.expose_secret(), TOKEN);
}

const CLUSTER: &str = "/clusters/0/cluster";
const USER: &str = "/users/0/user";

fn forbidden() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        (CLUSTER, "certificate-authority", json!("/etc/ssl/ca.pem")),
        (CLUSTER, "insecure-skip-tls-verify", json!(true)),
        (CLUSTER, "proxy-url", json!("http://proxy.example.org:3128")),
        (USER, "as", json!("admin")),
        (USER, "as-groups", json!(["system:masters"])),
        (USER, "as-uid", json!("1")),
        (USER, "as-user-extra", json!({"scope": ["all"]})),
        (USER, "auth-provider", json!({"name": "oidc"})),
        (USER, "client-certificate", json!("/etc/ssl/cert.pem")),
        (USER, "client-key", json!("/etc/ssl/key.pem")),
        (
            USER,
            "exec",
            json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}),
        ),
        (USER, "password", json!("secret")),
        (USER, "tokenFile", json!("/etc/shadow")),
        (USER, "username", json!("admin")),
    ]
}

#[test]
fn a_forbidden_field_refuses_the_whole_file_by_name() {
    for (pointer, field, value) in forbidden() {
        for value in [value, json!(null)] {
            if value.is_null() && field == "insecure-skip-tls-verify" {
                continue; // Absent and null are the same: the server is checked.
            }
            let text = with(pointer, field, value);
            let path = pointer[1..].replace("/0/", "[0].");
            let start = format!("kubeconfig {WHAT}: {path}.{field} is not allowed: ");
            for error in [Kubeconfig::read(WHAT, &text), Kubeconfig::read_template(WHAT, &text)].map(Result::unwrap_err)
            {
                let wrong_source = error.to_string().contains("users[0].user.token");
                assert!(
                    error.to_string().starts_with(&start) || (pointer == USER && wrong_source),
                    "{error}"
                );
            }
            assert!(refusal(&text).starts_with(&start), "{}", refusal(&text));
        }
    }
}

#[test]
fn whatever_is_not_known_is_refused_wherever_it_stands() {
    for pointer in [
        "",
        "/clusters/0",
        CLUSTER,
        "/contexts/0",
        "/contexts/0/context",
        "/users/0",
        USER,
    ] {
        let error = refusal(&with(pointer, "surprise", json!(1)));
        assert!(error.contains("surprise is not known here"), "{error}");
    }
    assert!(refusal(&with("", "preferences", json!({"colors": true}))).contains("preferences.colors"));
    assert!(refusal(&with(USER, "extensions", json!([]))).contains("users[0].user.extensions"));
}

#[test]
fn whatever_is_needed_is_missed_by_name() {
    for (pointer, field) in [
        ("", "apiVersion"),
        ("", "kind"),
        ("", "current-context"),
        ("/clusters/0", "name"),
        ("/clusters/0", "cluster"),
        (CLUSTER, "server"),
        (CLUSTER, "certificate-authority-data"),
        ("/contexts/0", "name"),
        ("/contexts/0", "context"),
        ("/contexts/0/context", "cluster"),
        ("/contexts/0/context", "namespace"),
        ("/contexts/0/context", "user"),
        ("/users/0", "name"),
        ("/users/0", "user"),
        (USER, "token"),
    ] {
        let error = refusal(&without(pointer, field));
        assert!(error.contains(field) && error.contains("missing"), "{error}");
    }
    for field in ["clusters", "contexts", "users"] {
        assert!(refusal(&without("", field)).contains(&format!("{field}: 0 entries, exactly one")));
        let twice = json!([good()[field][0], good()[field][0]]);
        assert!(refusal(&with("", field, twice)).contains(&format!("{field}: 2 entries, exactly one")));
    }
}

#[test]
fn names_that_do_not_agree_are_refused() {
    for (pointer, field) in [
        ("", "current-context"),
        ("/clusters/0", "name"),
        ("/contexts/0", "name"),
        ("/contexts/0/context", "cluster"),
        ("/contexts/0/context", "namespace"),
        ("/contexts/0/context", "user"),
        ("/users/0", "name"),
    ] {
        let error = refusal(&with(pointer, field, json!("other")));
        assert!(error.contains("\"other\""), "{error}");
    }
    let renamed = good().to_string().replace("\"ns\"", "\"NS/../other\"");
    assert!(refusal(&renamed).contains("is not the name of a namespace"));
}

#[test]
fn one_credential_is_needed_and_one_is_enough() {
    let pem = BASE64_STANDARD.encode(certificate());
    let key = BASE64_STANDARD.encode(KeyPair::generate().unwrap().serialize_pem());
    let both = json!({"token": TOKEN, "client-certificate-data": pem, "client-key-data": key});
    assert!(refusal(&with("/users/0", "user", both)).contains("another credential beside it"));
    let lone = json!({"client-certificate-data": pem});
    assert!(refusal(&with("/users/0", "user", lone)).contains("users[0].user.client-key-data is missing"));
    let lone = json!({"client-key-data": key});
    assert!(refusal(&with("/users/0", "user", lone)).contains("users[0].user.client-certificate-data is missing"));
    let swapped = json!({"client-certificate-data": key, "client-key-data": pem});
    assert!(refusal(&with("/users/0", "user", swapped)).contains("is not base64 of a PEM certificate"));
    let garbage = json!({"client-certificate-data": pem, "client-key-data": "c2VjcmV0"});
    let error = refusal(&with("/users/0", "user", garbage));
    assert!(
        error.contains("is not base64 of a PEM private key") && !error.contains("c2VjcmV0"),
        "{error}"
    );
    assert!(refusal(&with(USER, "token", json!("two words"))).contains("characters that no token has"));
    assert!(refusal(&with(USER, "token", json!("one\r\nHeader: two"))).contains("characters that no token has"));
    assert!(refusal(&with(USER, "token", json!(1234))).contains("put it into quotes"));
    assert!(refusal(&with(USER, "token", json!(""))).contains("not empty"));
}

#[test]
fn a_ca_that_is_none_is_refused() {
    let key = KeyPair::generate().unwrap().serialize_pem();
    let certificate = certificate();
    let broken = certificate.replacen("MII", "AII", 1);
    for (text, part) in [
        (String::new(), "holds no certificate"),
        ("garbage".to_owned(), "holds no certificate"),
        (key.clone(), "holds something that is no certificate"),
        (format!("{certificate}{key}"), "holds something that is no certificate"),
        (format!("{certificate}{broken}"), "certificate 2 is damaged"),
        (certificate.repeat(17), "more than 16"),
        (certificate[..certificate.len() / 2].to_owned(), "is not clean PEM text"),
    ] {
        let error = CaBundle::from_pem(&text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        let data = BASE64_STANDARD.encode(text);
        let error = refusal(&with(CLUSTER, "certificate-authority-data", json!(data)));
        assert!(error.contains("certificate-authority-data"), "{error}");
    }
    assert!(refusal(&with(CLUSTER, "certificate-authority-data", json!("!"))).contains("is not base64"));
}

#[test]
fn equal_bundles_have_equal_texts_however_they_were_written() {
    let (one, two) = (certificate(), certificate());
    let bundle = CaBundle::from_pem(&format!("{one}{two}")).unwrap();
    let commented = format!("# the old one\r\n{}\n# the new one\n{two}", one.replace('\n', "\r\n"));
    assert_eq!(CaBundle::from_pem(&commented).unwrap(), bundle);
    assert_eq!(CaBundle::from_base64(&bundle.to_base64()).unwrap(), bundle);
    assert_eq!(CaBundle::from_pem(bundle.pem()).unwrap().pem(), bundle.pem());
    assert_eq!(bundle.certificates().len(), 2);
}

#[test]
fn a_server_that_is_not_plain_https_is_refused() {
    for server in [
        "http://10.0.0.1",
        "https://user@10.0.0.1",
        "https://10.0.0.1/path",
        "10.0.0.1",
    ] {
        let error = refusal(&with(CLUSTER, "server", json!(server)));
        assert!(error.contains("clusters[0].cluster.server: "), "{error}");
    }
    assert!(refusal(&with(CLUSTER, "tls-server-name", json!("a b"))).contains("tls-server-name"));
}

#[test]
fn another_kind_of_document_is_refused() {
    assert!(refusal(&with("", "kind", json!("Secret"))).contains("kind has to be Config"));
    assert!(refusal(&with("", "apiVersion", json!("v2"))).contains("apiVersion has to be v1"));
    for text in ["", "null", "- a\n- b\n", "hello", "42"] {
        assert!(
            refusal(text).contains("the file has to be a mapping"),
            "{text:?}: {}",
            refusal(text)
        );
    }
    assert!(refusal(&" ".repeat(KUBECONFIG_MAX + 1)).contains("65536 at most"));
}

#[test]
fn yaml_with_a_double_bottom_is_refused() {
    let text = config(Credential::Token(TOKEN.into())).write();
    Kubeconfig::read(WHAT, &text).unwrap();
    let twice = text.replace("    token:", "    token: \"x\"\n    token:");
    let anchored = text.replace("current-context: ", "current-context: &name ");
    let merged = text.replace("    token:", "    <<: {exec: {command: sh}}\n    token:");
    let tagged = text.replace("    token: ", "    token: !env ");
    let second = format!("{}---\n{}", *text, *text);
    let bomb = "a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n";
    let deep = "[".repeat(10_000);
    for (number, text) in [
        &twice, &anchored, &merged, &tagged, &second, bomb, &deep, "a: b: c", "\u{0}",
    ]
    .into_iter()
    .enumerate()
    {
        let error = refusal(text);
        assert!(error.contains("not valid YAML at line"), "{number}: {error}");
        assert!(!error.contains(TOKEN));
    }
}

#[test]
fn our_extension_is_read_strictly() {
    let key = PrivateKey::generate().unwrap().public();
    let entry = |extension: Value| json!({"name": BOOTSTRAP_EXTENSION, "extension": extension});
    let fine = entry(json!({"firewall": "fw", "handoverKeys": [key]}));
    let config = Kubeconfig::read(WHAT, &with("", "extensions", json!([fine]))).unwrap();
    assert_eq!(config.bootstrap.unwrap().handover_keys, std::slice::from_ref(&key));

    for (extensions, part) in [
        (json!([fine, fine]), "2 entries"),
        (json!([entry(json!(null))]), "extensions[0].extension is missing"),
        (
            json!([entry(json!({"handoverKeys": [key]}))]),
            "extension.firewall is missing",
        ),
        (
            json!([entry(json!({"firewall": "FW", "handoverKeys": [key]}))]),
            "extension.firewall: ",
        ),
        (json!([entry(json!({"firewall": "fw"}))]), "has to hold 1 to 8 keys"),
        (
            json!([entry(json!({"firewall": "fw", "handoverKeys": vec![&key; 9]}))]),
            "has to hold 1 to 8 keys",
        ),
        (
            json!([entry(json!({"firewall": "fw", "handoverKeys": ["BAAA"]}))]),
            "no P-256 key",
        ),
        (
            json!([entry(json!({"firewall": "fw", "handoverKeys": [key], "server": "x"}))]),
            "extension.server is not known",
        ),
    ] {
        let error = refusal(&with("", "extensions", extensions));
        assert!(error.contains(part), "{error}");
    }
    let misplaced = refusal(&with(CLUSTER, "extensions", json!([fine])));
    assert!(
        misplaced.contains("belongs into the file's own extensions"),
        "{misplaced}"
    );
}

#[test]
fn no_secret_is_printed() {
    let key_pem = KeyPair::generate().unwrap().serialize_pem();
    let body = key_pem.lines().nth(1).unwrap().to_owned();
    let pair = Credential::Certificate {
        certificate_pem: certificate(),
        key_pem: key_pem.into(),
    };
    let printed = format!("{:?} {:?}", config(Credential::Token(TOKEN.into())), config(pair));
    assert!(!printed.contains(TOKEN) && !printed.contains(&body), "{printed}");
}
