//! A kubeconfig that is accepted says what was read from it and nothing else: written again from what was read, it has
//! the same meaning to a reader that is not strict.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use contract::kubeconfig::{BOOTSTRAP_EXTENSION, KUBECONFIG_MAX, Kubeconfig, KubeconfigError, TOKEN_PLACEHOLDER};
use serde_json::{Map, Value, json};

use super::{is_fit_for_a_log, split};

/// Where the text came from, as the four readers have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Given,
    Local,
    Operators,
    Template,
}

impl Source {
    pub const ALL: [Self; 4] = [Self::Given, Self::Local, Self::Operators, Self::Template];

    pub fn read(self, text: &str) -> Result<Kubeconfig, KubeconfigError> {
        match self {
            Self::Given => Kubeconfig::read("it", text),
            Self::Local => Kubeconfig::read_local("it", text),
            Self::Operators => Kubeconfig::read_operators("it", text),
            Self::Template => Kubeconfig::read_template("it", text),
        }
    }
}

pub fn check_input(input: &[u8]) {
    let (mode, text) = split(input);
    let _ = check(Source::ALL[usize::from(mode % 4)], &String::from_utf8_lossy(text));
}

/// Gives what the reader made of it.
pub fn check(source: Source, text: &str) -> Result<Kubeconfig, KubeconfigError> {
    let verdict = source.read(text);
    match &verdict {
        Err(error) => {
            is_fit_for_a_log(error);
            tells_no_secret(source, text);
        }
        Ok(config) => {
            assert!(text.len() <= KUBECONFIG_MAX);
            let written = config.write();
            assert_eq!(meaning(source, text), meaning(source, &written));
            // What was short as UTF-8 may be too long where each character is escaped.
            if written.len() <= KUBECONFIG_MAX {
                assert_eq!(*source.read(&written).unwrap().write(), *written);
            }
        }
    }
    verdict
}

/// Stands in no message of the reader's own.
const SECRET: &str = "hq7xk2vz9wj4";

/// What stands where a secret belongs is in no message, unless it stands elsewhere too. Another is put in its place: a file
/// may have the reader's own words there.
fn tells_no_secret(source: Source, text: &str) {
    let Ok(file) = serde_saphyr::from_str::<Value>(text) else {
        return;
    };
    let Some(users) = file["users"].as_array() else { return };
    let of = |user: &Value| ["token", "client-key-data", "password"].map(|field| user["user"][field].clone());
    for secret in users.iter().flat_map(of) {
        let secret = secret.as_str().unwrap_or_default();
        if secret.len() >= SECRET.len()
            && text.matches(secret).count() == 1
            && let Err(error) = source.read(&text.replacen(secret, SECRET, 1))
        {
            let error = error.to_string();
            assert!(!error.contains(SECRET), "{error}");
        }
    }
}

/// Everything that is in a file, without what has no meaning: order, nulls, spelling, foreign extensions.
fn meaning(source: Source, text: &str) -> Value {
    let mut file: Value = serde_saphyr::from_str(text).unwrap();
    without_nulls(&mut file);
    take(&mut file, "preferences", &json!({}));
    if let Some(extensions) = file.get_mut("extensions").and_then(Value::as_array_mut) {
        extensions.retain(|entry| entry["name"] == BOOTSTRAP_EXTENSION);
    }
    take(&mut file, "extensions", &json!([]));

    let cluster = &mut file["clusters"][0]["cluster"];
    take(cluster, "insecure-skip-tls-verify", &json!(false));
    for field in ["disable-compression", "extensions"] {
        cluster.as_object_mut().unwrap().remove(field);
    }
    let server = cluster["server"].as_str().unwrap();
    cluster["server"] = json!(server.strip_suffix('/').unwrap_or(server));
    let ca = decoded(&cluster["certificate-authority-data"]);
    let certificates: Vec<Vec<u8>> = x509_parser::pem::Pem::iter_from_buffer(&ca)
        .map(|block| block.unwrap().contents)
        .collect();
    cluster["certificate-authority-data"] = json!(certificates);

    let context = &mut file["contexts"][0]["context"];
    context.as_object_mut().unwrap().remove("extensions");
    if matches!(source, Source::Operators | Source::Template) {
        // Nobody asks for the namespace there, and the names have only to agree.
        context.as_object_mut().unwrap().remove("namespace");
        let agree = |one: &str, other: &str| assert_eq!(file.pointer(one), file.pointer(other));
        agree("/clusters/0/name", "/contexts/0/context/cluster");
        agree("/users/0/name", "/contexts/0/context/user");
        agree("/current-context", "/contexts/0/name");
        let name = file["contexts"][0]["name"].clone();
        for at in [
            "/clusters/0/name",
            "/contexts/0/context/cluster",
            "/users/0/name",
            "/contexts/0/context/user",
        ] {
            file.pointer_mut(at).unwrap().clone_from(&name);
        }
    }

    let entry = file["users"][0].as_object_mut().unwrap();
    let user = entry.entry("user").or_insert_with(|| Value::Object(Map::new()));
    if source == Source::Template {
        take(user, "tokenFile", &json!(TOKEN_PLACEHOLDER));
    }
    for field in ["client-certificate-data", "client-key-data"] {
        if let Some(data) = user.get_mut(field) {
            *data = json!(decoded(data));
        }
    }
    file
}

/// Removes a field that has no meaning because it has this value.
fn take(value: &mut Value, field: &str, meaningless: &Value) {
    if value.get(field) == Some(meaningless) {
        value.as_object_mut().unwrap().remove(field);
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn decoded(data: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(data.as_str().unwrap().trim_ascii()).unwrap()
}
