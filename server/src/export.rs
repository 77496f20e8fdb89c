//! `firewall-approver export`: a bootstrap kubeconfig to carry to a machine that nobody can tell of its way in. Runs as
//! the operator; the running approver makes the credential, asked by an annotation, so that there is one place that
//! decides about credentials.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use contract::kubeconfig::Kubeconfig;
use contract::names::{self, FirewallName};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use cluster::api::{call, call_opt};
use cluster::client;
use cluster::failure::{Class, Failure};
use cluster::firewall::Firewall;
use cluster::operator::Operator;

use crate::args::{self, Export};
use crate::core::standing::State;

const DEADLINE: Duration = Duration::from_secs(60);
/// A firewall that lives comes in within a second, and what was made for it is gone then.
const LOOK: Duration = Duration::from_millis(100);

pub async fn export(export: &Export) -> anyhow::Result<()> {
    let (namespace, name) = args::object(&export.firewall)?;
    let client = Operator::connect(export.kubeconfig.as_deref()).await?.client();
    let firewalls: Api<Firewall> = Api::namespaced(client.clone(), namespace);
    let firewall = call(format!("get Firewall {namespace}/{name}"), firewalls.get(name.as_str())).await?;
    let before = handed_out(&client, namespace, &name).await?;

    let value = format!(
        "{}/{}",
        firewall.uid().unwrap_or_default(),
        Timestamp::now().as_millisecond()
    );
    let patch = json!({ "metadata": { "annotations": { names::EXPORT: value } } });
    let what = format!("annotate Firewall {namespace}/{name} with {}", names::EXPORT);
    let params = PatchParams::default();
    call(
        what,
        firewalls.patch_metadata(name.as_str(), &params, &Patch::Merge(&patch)),
    )
    .await?;

    let end = tokio::time::Instant::now() + DEADLINE;
    let told_before = firewall.annotations().get(names::SEED_ACCESS_STATE).cloned();
    let mut pending = false;
    loop {
        let kubeconfig = patiently(handed_out(&client, namespace, &name).await)?.flatten();
        if let Some(kubeconfig) = kubeconfig.filter(|now| before.as_ref() != Some(now)) {
            if works(&kubeconfig).await {
                std::io::stdout().write_all(kubeconfig.as_bytes())?;
                let said = "on the machine, write it to /etc/firewall-controller/.bootstrap.kubeconfig with mode 0600; \
                            it is good for an hour, for that machine's own key only, or for the first that comes if none is known\n";
                std::io::stderr().write_all(said.as_bytes())?;
                return Ok(());
            }
            pending = true;
        }
        let what = format!("get Firewall {namespace}/{name}");
        let seen = patiently(call(what, firewalls.get(name.as_str())).await.map_err(Into::into))?;
        let state = seen
            .as_ref()
            .and_then(|seen| seen.annotations().get(names::SEED_ACCESS_STATE));
        let changed = state.is_some() && state != told_before.as_ref();
        match state.and_then(|told| state_of(told)) {
            // Nothing is printed, and whoever would carry that away is told so by the exit code too.
            Some(State::Ready) if pending => {
                bail!("nothing has to be carried: the firewall was told through its shoot, and has come in by itself")
            }
            Some(State::Waiting | State::Refused | State::Failing) if changed => pending = true,
            _ => {}
        }
        if tokio::time::Instant::now() > end {
            bail!(
                "no bootstrap kubeconfig for Firewall {namespace}/{name} that works from here appeared within {} s: is the firewall-approver running, does it serve this namespace, and is the address that firewalls use reached from here? Its last word: {}",
                DEADLINE.as_secs(),
                state.map_or("none", String::as_str)
            );
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A server that is busy or away for a moment is asked again.
fn patiently<T>(answer: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error)
            if error
                .downcast_ref::<Failure>()
                .is_some_and(|failure| matches!(failure.class, Class::Unreachable | Class::Busy)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn state_of(told: &str) -> Option<State> {
    let told: serde_json::Value = serde_json::from_str(told).ok()?;
    serde_json::from_value(told.get("state")?.clone()).ok()
}

async fn handed_out(client: &Client, namespace: &str, name: &FirewallName) -> anyhow::Result<Option<String>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = name.bootstrap_kubeconfig_secret();
    let found = call_opt(format!("get Secret {namespace}/{secret}"), secrets.get(&secret)).await?;
    let Some(bytes) = found.and_then(|secret| secret.data?.remove("kubeconfig")) else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes.0).with_context(|| format!("Secret {namespace}/{secret}, key kubeconfig"))?;
    ensure!(!text.is_empty(), "Secret {namespace}/{secret}: key kubeconfig is empty");
    Ok(Some(text))
}

/// The API server has to know the token before anybody carries it away.
async fn works(kubeconfig: &str) -> bool {
    let Ok(kubeconfig) = Kubeconfig::read("the bootstrap kubeconfig", kubeconfig) else {
        return false;
    };
    let Ok(client) = client::connect("the bootstrap kubeconfig", &kubeconfig) else {
        return false;
    };
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    let asked = call("ask who it is (SelfSubjectReview)", reviews.create(&params, &review));
    asked.await.is_ok()
}
