//! Kubeconfigs and clients for tests. A client belongs to the runtime it was made in, and each test
//! has its own: they are made where they are used and never kept in a `Cluster`.

use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::init_crypto;
use super::pki::Pair;

/// How a kubeconfig says who its user is.
pub(super) enum User<'a> {
    Token(&'a str),
    Certificate(&'a Pair),
}

/// JSON, which is YAML as well, with everything inline.
pub(super) fn kubeconfig(name: &str, server: &str, ca: &str, user: &User<'_>) -> String {
    let user: Value = match user {
        User::Token(token) => json!({ "token": token }),
        User::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
    };
    let cluster = json!({ "server": server, "certificate-authority-data": STANDARD.encode(ca) });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": name, "cluster": cluster }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": name, "context": { "cluster": name, "user": name } }],
        "current-context": name,
    })
    .to_string()
}

/// A client for the text of a kubeconfig, without retries: a test wants to see each answer.
pub async fn client_from(kubeconfig: &str) -> anyhow::Result<Client> {
    init_crypto();
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).context("the kubeconfig cannot be read")?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // A proxy in the environment cannot reach a loopback address of this machine.
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
