//! Upstream's types as far as we read them. Both are written by upstream only: of ours are the annotations, by patch.
//!
//! Their schemas here are cut down, so neither is ever written back whole: it would lose upstream's fields.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A firewall machine of one shoot, in the shoot's namespace in the seed.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "firewall.metal-stack.io",
    version = "v2",
    kind = "Firewall",
    namespaced,
    status = "FirewallStatus"
)]
pub struct FirewallSpec {}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirewallStatus {
    pub shoot_access: Option<ShootAccess>,
}

/// How the firewall gets into its shoot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShootAccess {
    pub generic_kubeconfig_secret_name: String,
    pub token_secret_name: String,
    pub namespace: String,
    #[serde(rename = "apiServerURL")]
    pub api_server_url: String,
}

/// What a firewall reports, in the shoot, in namespace `firewall`, under its Firewall's name. We read and write its
/// annotations only.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FirewallMonitor {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

impl Resource for FirewallMonitor {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "FirewallMonitor".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        contract::names::API_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v2".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "firewallmonitors".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
