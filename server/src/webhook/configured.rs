//! What API servers are told of the webhook: its MutatingWebhookConfiguration. The approver writes two things in it, the CAs
//! that it is trusted by and its path; the rest is the operator's.

use contract::digest::sha256_hex;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, WebhookClientConfig};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use cluster::api::{call, call_opt};
use cluster::failure::{Class, Failure};
use contract::names;

/// Where Firewalls are sent to, before the part that API servers alone are told.
pub const PATH: &str = "/mutate-firewalls";

pub struct Configured {
    version: Option<String>,
    entries: Vec<Entry>,
}

struct Entry {
    name: String,
    client: WebhookClientConfig,
}

impl Configured {
    pub async fn read(client: &Client, name: &str) -> Result<Option<Self>, Failure> {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let what = format!("get MutatingWebhookConfiguration {name}");
        Ok(call_opt(what, configurations.get(name)).await?.map(Self::of))
    }

    fn of(configuration: MutatingWebhookConfiguration) -> Self {
        let entries = configuration.webhooks.unwrap_or_default().into_iter();
        Self {
            version: configuration.metadata.resource_version,
            entries: entries
                .map(|entry| Entry {
                    name: entry.name,
                    client: entry.client_config,
                })
                .collect(),
        }
    }

    /// Whom API servers ask: the name or address that the certificate has to be for. None where they would ask several.
    pub fn host(&self) -> Option<String> {
        let mut hosts = self.entries.iter().map(Entry::host);
        let first = hosts.next()??;
        hosts.all(|host| host.as_deref() == Some(&first)).then_some(first)
    }

    /// The CAs (SHA-256) that are trusted by every entry, if each is sent to that path; else none.
    pub fn trusted(&self, path_key: &str) -> Vec<String> {
        let path = path(path_key);
        let mut entries = self.entries.iter();
        let Some(first) = entries.next().filter(|entry| entry.path() == path) else {
            return Vec::new();
        };
        let bundle = first.bundle();
        if entries.all(|entry| entry.path() == path && entry.bundle() == bundle) {
            bundle
        } else {
            Vec::new()
        }
    }

    /// Has API servers trust these CAs (PEM) and ask at this path; `false` if somebody else was faster.
    pub async fn write(&self, client: &Client, name: &str, bundle: &str, path_key: &str) -> Result<bool, Failure> {
        let entries = self.entries.iter().map(|entry| entry.patched(bundle, &path(path_key)));
        let patch = json!({
            "metadata": { "resourceVersion": self.version },
            "webhooks": entries.collect::<Vec<_>>(),
        });
        let params = PatchParams {
            field_manager: Some(names::APPROVER.into()),
            ..PatchParams::default()
        };
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let what = format!("patch MutatingWebhookConfiguration {name}");
        match call(what, configurations.patch(name, &params, &Patch::Strategic(patch))).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is(Class::Conflict) => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

fn path(path_key: &str) -> String {
    format!("{PATH}/{path_key}")
}

impl Entry {
    fn host(&self) -> Option<String> {
        if let Some(service) = &self.client.service {
            return Some(format!("{}.{}.svc", service.name, service.namespace));
        }
        let uri: axum::http::Uri = self.client.url.as_ref()?.parse().ok()?;
        let host = uri.host()?;
        Some(host.trim_start_matches('[').trim_end_matches(']').to_owned())
    }

    fn path(&self) -> String {
        if let Some(service) = &self.client.service {
            return service.path.clone().unwrap_or_default();
        }
        let uri: Option<axum::http::Uri> = self.client.url.as_ref().and_then(|url| url.parse().ok());
        uri.map(|uri| uri.path().to_owned()).unwrap_or_default()
    }

    fn bundle(&self) -> Vec<String> {
        let bytes = self.client.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
        // What cannot be read is another bundle than ours.
        let ids: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes)
            .map(|der| der.map(|der| sha256_hex(&der)))
            .collect();
        ids.unwrap_or_default()
    }

    /// Merged by its name into what stands there.
    fn patched(&self, bundle: &str, path: &str) -> Value {
        let mut client = json!({ "caBundle": ByteString(bundle.as_bytes().to_vec()) });
        if self.client.service.is_some() {
            client["service"] = json!({ "path": path });
        } else if let Some(authority) = self.client.url.as_ref().and_then(|url| {
            url.parse::<axum::http::Uri>()
                .ok()?
                .authority()
                .map(ToString::to_string)
        }) {
            client["url"] = json!(format!("https://{authority}{path}"));
        }
        json!({ "name": self.name, "clientConfig": client })
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::webhook::stored::Pair;

    fn configured(clients: &[Value]) -> Configured {
        let entries = clients.iter().enumerate().map(|(index, client)| {
            json!({ "name": format!("{index}.x.y"), "clientConfig": client,
                    "admissionReviewVersions": ["v1"], "sideEffects": "None" })
        });
        let object = json!({ "metadata": { "name": "x" }, "webhooks": entries.collect::<Vec<_>>() });
        Configured::of(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_certificate_is_for_whom_api_servers_ask() {
        let service = json!({ "service": { "name": "a", "namespace": "b" } });
        let of = |clients: &[Value]| configured(clients).host();
        assert_eq!(of(&[service.clone(), service.clone()]).as_deref(), Some("a.b.svc"));
        assert_eq!(
            of(&[json!({ "url": "https://127.0.0.1:9443/x" })]).as_deref(),
            Some("127.0.0.1")
        );
        assert_eq!(of(&[json!({ "url": "https://[::1]:9443/x" })]).as_deref(), Some("::1"));
        assert_eq!(of(&[service, json!({ "url": "https://127.0.0.1/x" })]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_ca_is_trusted_where_each_entry_has_it_and_the_path() {
        let pair = Pair::make("a.b.svc", Timestamp::now(), SignedDuration::from_hours(1)).unwrap();
        let bundle = ByteString(pair.ca.clone().into_bytes());
        let entry = |path: &str, bundle: &ByteString| json!({ "caBundle": bundle, "service": { "name": "a", "namespace": "b", "path": path } });
        let good = entry("/mutate-firewalls/k", &bundle);
        let trusted = |clients: &[Value]| configured(clients).trusted("k");
        assert_eq!(trusted(&[good.clone(), good.clone()]), [pair.facts.ca]);
        let none: [String; 0] = [];
        for other in [
            entry("/mutate-firewalls/other", &bundle),
            entry("", &bundle),
            entry("/mutate-firewalls/k", &ByteString(Vec::new())),
            entry(
                "/mutate-firewalls/k",
                &ByteString(b"-----BEGIN CERTIFICATE-----\nx".to_vec()),
            ),
        ] {
            assert_eq!(trusted(&[good.clone(), other]), none);
        }
        assert_eq!(trusted(&[]), none);
    }

    #[test]
    fn nothing_but_bundle_and_path_is_written() {
        let of = configured(&[
            json!({ "service": { "name": "a", "namespace": "b", "port": 8 } }),
            json!({ "url": "https://127.0.0.1:9443/old" }),
        ]);
        let patched: Vec<Value> = of.entries.iter().map(|entry| entry.patched("B", "/p/k")).collect();
        assert_eq!(
            patched,
            [
                json!({ "name": "0.x.y", "clientConfig": { "caBundle": "Qg==", "service": { "path": "/p/k" } } }),
                json!({ "name": "1.x.y", "clientConfig": { "caBundle": "Qg==", "url": "https://127.0.0.1:9443/p/k" } }),
            ]
        );
    }
}
