//! Reads a kubeconfig field by field. Nothing is ignored silently, except other people's `extensions`.

use serde_json::Value;

use super::address::{check_server, is_host};
use super::ca::CaBundle;
use super::fields::Fields;
use super::user::read_user;
use super::{BOOTSTRAP_EXTENSION, BootstrapExtension, Fault, KUBECONFIG_MAX, Kubeconfig, KubeconfigError, Source};
use crate::key::PublicKey;
use crate::names::FirewallName;

const HANDOVER_KEYS_MAX: usize = 8;
const INLINE_CA: &str = "put the CA itself into certificate-authority-data";

pub(super) fn read(what: &str, text: &str, source: Source) -> Result<Kubeconfig, KubeconfigError> {
    parse(text, source).map_err(|fault| KubeconfigError {
        what: what.to_owned(),
        fault,
    })
}

fn parse(text: &str, source: Source) -> Result<Kubeconfig, Fault> {
    if text.len() > KUBECONFIG_MAX {
        return Err(Fault::TooLarge { found: text.len() });
    }
    let document = yaml(text)?;
    let file = Fields::new("", &document)?;
    file.only(
        &[
            "apiVersion",
            "clusters",
            "contexts",
            "current-context",
            "extensions",
            "kind",
            "preferences",
            "users",
        ],
        &[],
    )?;
    constant(&file, "apiVersion", "v1")?;
    constant(&file, "kind", "Config")?;
    if let Some(preferences) = file.value("preferences") {
        Fields::new("preferences", preferences)?.only(&[], &[])?;
    }

    let (cluster_name, entry, cluster) = file.only_entry("clusters", "cluster")?;
    let cluster = cluster.ok_or_else(|| entry.missing("cluster", "give the server and its CA"))?;
    let cluster = Fields::new("clusters[0].cluster", cluster)?;
    let (context_name, entry, context) = file.only_entry("contexts", "context")?;
    let context = context.ok_or_else(|| entry.missing("context", "name the cluster, user and namespace"))?;
    let context = Fields::new("contexts[0].context", context)?;
    let (user_name, _, user) = file.only_entry("users", "user")?;

    let names = Names {
        cluster: cluster_name,
        context: context_name,
        user: user_name,
    };
    let namespace = names.check(&file, &context, source)?;
    let (server, tls_server_name, ca) = read_cluster(&cluster)?;
    let nothing = Value::Object(serde_json::Map::new());
    let credential = read_user(&Fields::new("users[0].user", user.unwrap_or(&nothing))?, source)?;
    foreign_extensions(&cluster)?;
    foreign_extensions(&context)?;
    Ok(Kubeconfig {
        server,
        tls_server_name,
        ca,
        credential,
        namespace,
        bootstrap: bootstrap(&file)?,
    })
}

/// One document without anchors and aliases, so that its size in memory follows from its length.
fn yaml(text: &str) -> Result<Value, Fault> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_aliases: 0, max_anchors: 0, max_documents: 1, max_depth: 16, max_merge_keys: 0 },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        merge_keys: serde_saphyr::MergeKeyPolicy::Error,
        reject_unsupported_tags: true,
        // Its messages would quote the file, and the file holds secrets: only the place is taken.
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
        Fault::NotYaml { line, column }
    })
}

struct Names<'a> {
    cluster: &'a str,
    context: &'a str,
    user: &'a str,
}

impl Names<'_> {
    fn check(&self, file: &Fields<'_>, context: &Fields<'_>, source: Source) -> Result<String, Fault> {
        context.only(&["cluster", "extensions", "namespace", "user"], &[])?;
        let instead = "name the file's only entry";
        same(
            "current-context",
            file.required("current-context", instead)?,
            "contexts[0].name",
            self.context,
        )?;
        let of_cluster = context.required("cluster", instead)?;
        same(
            "contexts[0].context.cluster",
            of_cluster,
            "clusters[0].name",
            self.cluster,
        )?;
        let of_user = context.required("user", instead)?;
        same("contexts[0].context.user", of_user, "users[0].name", self.user)?;
        if matches!(source, Source::Operator | Source::Template) {
            return Ok(self.context.to_owned());
        }
        let namespace = context.required("namespace", "name the firewall's namespace in the seed")?;
        if !is_namespace(namespace) {
            return Err(context.wrong("namespace", "is not the name of a namespace"));
        }
        for (field, found) in [
            ("contexts[0].name", self.context),
            ("clusters[0].name", self.cluster),
            ("users[0].name", self.user),
        ] {
            same(field, found, "contexts[0].context.namespace", namespace)?;
        }
        Ok(namespace.to_owned())
    }
}

fn read_cluster(cluster: &Fields<'_>) -> Result<(String, Option<String>, CaBundle), Fault> {
    cluster.only(
        &[
            "certificate-authority-data",
            "disable-compression",
            "extensions",
            "insecure-skip-tls-verify",
            "server",
            "tls-server-name",
        ],
        &[
            ("certificate-authority", INLINE_CA),
            ("proxy-url", "the server is reached directly; remove it"),
        ],
    )?;
    cluster.boolean("disable-compression")?;
    if cluster.boolean("insecure-skip-tls-verify")? {
        let field = cluster.path("insecure-skip-tls-verify");
        return Err(Fault::Forbidden {
            field,
            instead: "the server is always checked; remove it and give the CA",
        });
    }
    let server = cluster.required("server", "give the address of the API server")?;
    let server = server.strip_suffix('/').unwrap_or(server);
    check_server(server).map_err(|problem| cluster.wrong("server", problem))?;
    let tls_server_name = cluster.string("tls-server-name")?;
    if tls_server_name.is_some_and(|name| !is_host(name)) {
        return Err(cluster.wrong("tls-server-name", "is neither a DNS name nor an address"));
    }
    let field = "certificate-authority-data";
    let ca = CaBundle::from_base64(cluster.required(field, "without the CA, nobody knows whom the machine talks to")?)
        .map_err(|error| cluster.wrong(field, error))?;
    Ok((server.to_owned(), tls_server_name.map(str::to_owned), ca))
}

fn bootstrap(file: &Fields<'_>) -> Result<Option<BootstrapExtension>, Fault> {
    let mut ours = None;
    for (index, entry) in file.list("extensions")?.iter().enumerate() {
        let entry = Fields::new(&format!("extensions[{index}]"), entry)?;
        entry.only(&["extension", "name"], &[])?;
        if entry.required("name", "name the extension")? != BOOTSTRAP_EXTENSION {
            continue;
        }
        if ours.is_some() {
            return Err(Fault::Count {
                field: format!("extensions[name={BOOTSTRAP_EXTENSION}]"),
                found: 2,
            });
        }
        let content = entry
            .value("extension")
            .ok_or_else(|| entry.missing("extension", "give its content"))?;
        let content = Fields::new(&entry.path("extension"), content)?;
        content.only(&["firewall", "handoverKeys"], &[])?;
        let firewall = FirewallName::parse(content.required("firewall", "name the firewall")?)
            .map_err(|error| content.wrong("firewall", error))?;
        let keys = content.list("handoverKeys")?;
        if keys.is_empty() || keys.len() > HANDOVER_KEYS_MAX {
            return Err(content.wrong("handoverKeys", format!("has to hold 1 to {HANDOVER_KEYS_MAX} keys")));
        }
        let handover_keys = keys
            .iter()
            .map(|key| key.as_str().and_then(|text| text.parse::<PublicKey>().ok()))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| content.wrong("handoverKeys", "holds something that is no P-256 key"))?;
        ours = Some(BootstrapExtension {
            firewall,
            handover_keys,
        });
    }
    Ok(ours)
}

/// Other people's extensions are data that nobody here reads. Ours in the wrong place would be
/// overlooked, so it is an error.
fn foreign_extensions(fields: &Fields<'_>) -> Result<(), Fault> {
    for entry in fields.list("extensions")? {
        let entry = Fields::new(&fields.path("extensions[]"), entry)?;
        entry.only(&["extension", "name"], &[])?;
        if entry.required("name", "name the extension")? == BOOTSTRAP_EXTENSION {
            let field = fields.path(&format!("extensions[name={BOOTSTRAP_EXTENSION}]"));
            return Err(Fault::Forbidden {
                field,
                instead: "it belongs into the file's own extensions",
            });
        }
    }
    Ok(())
}

fn is_namespace(name: &str) -> bool {
    let inner = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    (1..=63).contains(&name.len()) && inner && !name.starts_with('-') && !name.ends_with('-')
}

fn constant(file: &Fields<'_>, field: &'static str, wanted: &'static str) -> Result<(), Fault> {
    if file.required(field, "it is what makes the file a kubeconfig")? == wanted {
        Ok(())
    } else {
        Err(Fault::Type {
            field: field.to_owned(),
            wanted,
        })
    }
}

fn same(field: &str, found: &str, other: &'static str, wanted: &str) -> Result<(), Fault> {
    if found == wanted {
        return Ok(());
    }
    let shown = |name: &str| name.chars().take(80).collect();
    Err(Fault::Name {
        field: field.to_owned(),
        found: shown(found),
        other,
        wanted: shown(wanted),
    })
}
