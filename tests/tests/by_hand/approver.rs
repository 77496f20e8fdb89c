//! An approver that looks at nothing: it approves whatever this firewall asks for.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;

use super::Site;

/// Ends when it is dropped.
pub struct Approver(JoinHandle<()>);

impl Drop for Approver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Site {
    pub async fn approve_everything(&self) -> anyhow::Result<Approver> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.cluster.client().await?);
        let ours = [self.firewall.user(), format!("system:bootstrap:{}", self.token_id)];
        Ok(Approver(tokio::spawn(async move {
            loop {
                // Whatever fails is done the next time.
                let _ = approve(&requests, &ours).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })))
    }
}

async fn approve(requests: &Api<CertificateSigningRequest>, ours: &[String]) -> kube::Result<()> {
    for request in requests.list(&ListParams::default()).await?.items {
        let requester = request.spec.username.clone().unwrap_or_default();
        let decided = request
            .status
            .as_ref()
            .is_some_and(|status| status.conditions.is_some());
        if decided || !ours.contains(&requester) {
            continue;
        }
        let name = request.metadata.name.unwrap_or_default();
        let condition = json!({ "type": "Approved", "status": "True", "reason": "ByHand", "message": "" });
        let patch = Patch::Merge(json!({ "status": { "conditions": [condition] } }));
        requests.patch_approval(&name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}
