//! The API server's audit log: what was really asked of it, by whom and how often.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// One answered request. A watch appears when it ends.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    pub verb: String,
    #[serde(rename = "requestURI")]
    pub uri: String,
    pub user: AuditUser,
    #[serde(default)]
    pub user_agent: String,
    #[serde(default)]
    pub object_ref: AuditObject,
    #[serde(rename = "responseStatus", default)]
    pub status: AuditStatus,
}

#[derive(Debug, Clone, Deserialize)]
pub struct AuditUser {
    /// Empty when the request was not authenticated.
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub groups: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AuditObject {
    pub api_group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct AuditStatus {
    pub code: u16,
}

/// Only whole lines are read: the server may be writing the last one.
pub(super) fn read(file: &Path) -> anyhow::Result<Vec<AuditEvent>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("the audit log {} cannot be read", file.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("not an audit event: {line}")))
        .collect()
}

pub(super) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived", "ResponseStarted"],
  "rules": [{ "level": "Metadata" }]
}"#;
