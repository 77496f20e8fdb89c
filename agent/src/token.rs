//! A token of our own ServiceAccount, made with what the seed knows us by already: the token before it, or the certificate
//! that it replaces. Nobody else is asked, so it goes on without the approver.

use cluster::api::call;
use cluster::failure::{Class, Failure};
use contract::access::Mode;
use contract::names::ACCESS_NAMESPACE;
use jiff::SignedDuration;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::PostParams;
use secrecy::SecretString;
use tracing::info;

use crate::core::{Job, Patience, Via};
use crate::link::Link;
use crate::machine::Machine;
use crate::pair::OwnPair;
use crate::request::{Candidate, Trial};
use crate::store::Access;

/// A token cannot be taken back alone, so it does not live long.
const LIFE: SignedDuration = SignedDuration::from_hours(24);

impl Machine {
    /// Made, tried and switched to in one go: what is cut off in between is begun anew, and a token that nobody uses ends by
    /// itself.
    pub(crate) async fn renew_token(&mut self) {
        let link = match self.link(Via::Own) {
            Ok(link) => link,
            Err(problem) => return self.failed(Job::Access, Patience::Normal, &problem),
        };
        let (Some(key), Some(access)) = (&self.key, &self.access) else {
            return;
        };
        let token = match self.make_token(&link).await {
            Ok(token) => token,
            // The ServiceAccount or the right to it may just not be there yet, and what we have works on.
            Err(failure) if failure.is(Class::NotFound) || failure.is(Class::Forbidden) => {
                return self.failed(
                    Job::Access,
                    Patience::Lag,
                    &format!("{failure}; the firewall-approver makes it"),
                );
            }
            Err(failure) => return self.own_failed(Job::Access, Patience::Normal, &failure),
        };
        let pair = match OwnPair::of_token(token, &self.firewall, key) {
            Ok(pair) => pair,
            Err(error) => return self.failed(Job::Access, Patience::Slow, &format!("the token is refused: {error}")),
        };
        let access = Access {
            mode: Mode::Token.as_str().to_owned(),
            ..access.clone()
        };
        match self.try_pair(&pair, &access).await {
            Ok(link) => {
                info!(firewall = %self.object(), serial = %pair.issued.serial, until = %pair.issued.not_after, "token made, and it works");
                self.candidate = Some(Candidate {
                    pair,
                    access,
                    via: Via::Own,
                    link: Some(link),
                });
                self.switch();
            }
            Err(Trial::Failed(failure)) => self.failed(Job::Access, Patience::Lag, &failure),
            Err(trial) => self.failed(Job::Access, Patience::Slow, &trial),
        }
    }

    async fn make_token(&self, link: &Link) -> Result<SecretString, Failure> {
        let accounts: Api<ServiceAccount> = Api::namespaced(link.client.clone(), ACCESS_NAMESPACE);
        let life = SignedDuration::from_secs(self.life()).min(LIFE);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                expiration_seconds: Some(life.as_secs()),
                bound_object_ref: None,
            },
            ..TokenRequest::default()
        };
        let name = self.firewall.as_str();
        let what = format!("create a token of ServiceAccount {ACCESS_NAMESPACE}/{name}");
        let params = PostParams::default();
        let made = accounts.create_subresource::<_, TokenRequest>("token", name, &params, &request);
        let status = call(what, made).await?.status;
        Ok(status.map(|status| status.token).unwrap_or_default().into())
    }
}
