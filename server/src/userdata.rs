//! `firewall-approver userdata`: what a machine is to carry, for people who write its userdata themselves. Runs as the
//! operator and reads the Secret in which the running approver put the bootstrap kubeconfig; makes nothing.

use std::io::Write;

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use secrecy::{ExposeSecret, SecretString};

use cluster::api::{call, call_opt};
use cluster::firewall::Firewall;
use cluster::operator::Operator;

use crate::args::{self, Format, Userdata};
use crate::core::userdata;

pub async fn userdata(asked: &Userdata) -> anyhow::Result<()> {
    let (namespace, name) = args::object(&asked.firewall)?;
    let template = match &asked.template {
        Some(file) => {
            ensure!(
                asked.format == Format::Ignition,
                "--template is for --format ignition only: the others are put together by who reads them"
            );
            std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?
        }
        None => String::new(),
    };
    let client = Operator::connect(asked.kubeconfig.as_deref()).await?.client();
    let firewalls: Api<Firewall> = Api::namespaced(client.clone(), namespace);
    call(format!("get Firewall {namespace}/{name}"), firewalls.get(name.as_str())).await?;
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let secret = name.bootstrap_kubeconfig_secret();
    let found = call_opt(format!("get Secret {namespace}/{secret}"), secrets.get(&secret)).await?;
    let Some(bytes) = found.and_then(|secret| secret.data?.remove("kubeconfig")) else {
        bail!(
            "Firewall {namespace}/{name} has no bootstrap kubeconfig (Secret {namespace}/{secret}): it is in already, or no \
             firewall-approver serves it; for a machine that has to begin again, `firewall-approver export {namespace}/{name}`"
        );
    };
    let kubeconfig =
        String::from_utf8(bytes.0).with_context(|| format!("Secret {namespace}/{secret}, key kubeconfig"))?;
    let kubeconfig = SecretString::from(kubeconfig);
    let download = asked.agent.download();
    let baked = asked.agent.baked(&kubeconfig, download.as_ref());
    let text = match asked.format {
        Format::Ignition => {
            let template_name = asked
                .template
                .as_deref()
                .map_or("userdata".into(), |file| file.display().to_string());
            userdata::render(&template, &baked)
                .map(SecretString::from)
                .with_context(|| format!("{template_name} stays as it is"))?
        }
        Format::Butane => userdata::butane(&baked)?,
        Format::CloudInit => userdata::cloud_config(&baked)?,
    };
    let mut out = std::io::stdout();
    out.write_all(text.expose_secret().trim_end().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(())
}
