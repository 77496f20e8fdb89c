//! From a key to a certificate in force: the request, its way through the seed, the trial and the switch. Owns the
//! order of the writes; when each step is taken is the core's decision.

use cluster::api::call;
use cluster::failure::{Class, Failure};
use cluster::firewall::Firewall;
use contract::cert::read_certificate;
use contract::grant;
use contract::key::PrivateKey;
use contract::names::SIGNER;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tracing::info;

use crate::core::{Event, Job, Patience, Standing, Via, Void};
use crate::files;
use crate::handover::{PendingHandover, REFUSED};
use crate::judge::{Judgement, judge};
use crate::link::{Link, link, who_am_i};
use crate::machine::Machine;
use crate::pair::OwnPair;
use crate::store::{Access, Handled, StoredRequest, Switching, new_request};

/// So far ahead of ours the signer's clock may be.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// So long a fresh certificate may be refused while the API server's own copies catch up.
const AUTHENTICATION_LAG: SignedDuration = SignedDuration::from_secs(60);

/// A certificate that is not in force yet.
pub(crate) struct Candidate {
    pub(crate) pair: OwnPair,
    pub(crate) access: Access,
    /// The way it came.
    pub(crate) via: Via,
    pub(crate) link: Option<Link>,
}

impl Machine {
    pub(crate) fn make_key(&mut self) {
        let made = PrivateKey::generate().map_err(|e| e.to_string());
        match made.and_then(|key| self.store.write_key(&key).map(|()| key).map_err(|e| e.to_string())) {
            Ok(key) => {
                info!(firewall = %self.object(), key = %key.public().thumbprint(), "key made");
                self.public = Some(key.public());
                self.key = Some(key);
                self.advanced(Event::KeyMade);
            }
            Err(problem) => self.failed(Job::Access, Patience::Normal, &problem),
        }
    }

    pub(crate) fn install(&mut self) {
        let Some(access) = self.access.clone() else { return };
        match self.store.install(&access) {
            Ok(()) => {
                info!(firewall = %self.object(), "kubeconfig for the seed written again");
                self.refresh_told();
                self.advanced(Event::Installed);
            }
            Err(e) => self.failed(Job::Access, Patience::Normal, &e),
        }
    }

    /// The wish is on disk before anything follows from it, and its source is closed afterwards.
    pub(crate) fn accept_renewal(&mut self) {
        let mut handled = self.handled.clone();
        handled.pending = true;
        if let Some(value) = &self.asked {
            handled.renew = Some(value.clone());
        }
        let accepted = self.store.write_handled(&handled).map_err(|e| e.to_string());
        match accepted.and_then(|()| files::remove(&self.store.paths.renew()).map_err(|e| e.to_string())) {
            Ok(()) => {
                info!(firewall = %self.object(), value = handled.renew.as_deref().unwrap_or_default(), "renewal accepted");
                self.handled = handled;
                self.asked = None;
                self.advanced(Event::RenewalAccepted);
            }
            Err(problem) => self.failed(Job::Access, Patience::Normal, &problem),
        }
    }

    pub(crate) fn write_request(&mut self, replacement: bool, via: Via) {
        let Some(key) = &self.key else { return };
        let made = new_request(&self.firewall, key, replacement, self.life()).map_err(|e| e.to_string());
        match made.and_then(|made| {
            self.store
                .write_request(&made)
                .map(|()| made)
                .map_err(|e| e.to_string())
        }) {
            Ok(request) => {
                self.request = Some(request);
                self.advanced(Event::RequestWritten {
                    replacement,
                    via: Some(via),
                });
            }
            Err(problem) => self.failed(Job::Access, Patience::Normal, &problem),
        }
    }

    pub(crate) async fn send_request(&mut self, via: Via) {
        let Some(request) = self.request.clone() else { return };
        let mut link = match self.link(via) {
            Ok(link) => link,
            Err(problem) => return self.failed(Job::Access, Patience::Normal, &problem),
        };
        let requests: Api<CertificateSigningRequest> = Api::all(link.client.clone());
        let object = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(request.name.clone()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.pem.into_bytes()),
                signer_name: SIGNER.to_owned(),
                usages: Some(vec!["digital signature".into(), "client auth".into()]),
                expiration_seconds: i32::try_from(request.life.unwrap_or_else(|| self.life())).ok(),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let what = format!("create CertificateSigningRequest {}", request.name);
        match call(what, requests.create(&PostParams::default(), &object)).await {
            Ok(created) => {
                info!(firewall = %self.object(), request = %request.name, through = via_name(via), "request sent");
                if let Some(user) = &created.spec.username {
                    self.remember_user(via, user);
                    link.user = Some(user.clone());
                }
                self.judged(via, &link, &created, false);
            }
            Err(failure) if failure.is(Class::AlreadyExists) => self.look_at_request(via, link, true).await,
            Err(failure) => self.access_failed(via, &failure),
        }
    }

    pub(crate) async fn poll_request(&mut self, via: Via) {
        match self.link(via) {
            Ok(link) => self.look_at_request(via, link, false).await,
            Err(problem) => self.failed(Job::Access, Patience::Normal, &problem),
        }
    }

    async fn look_at_request(&mut self, via: Via, mut link: Link, first: bool) {
        let Some(name) = self.request.as_ref().map(|request| request.name.clone()) else {
            return;
        };
        if let Err(failure) = self.user(via, &mut link).await {
            return self.access_failed(via, &failure);
        }
        let requests: Api<CertificateSigningRequest> = Api::all(link.client.clone());
        match call(format!("get CertificateSigningRequest {name}"), requests.get(&name)).await {
            Ok(object) => self.judged(via, &link, &object, first),
            Err(failure) if failure.is(Class::NotFound) => {
                self.problem(
                    Job::Access.as_str(),
                    &format!("request {name} is gone from the seed: asking anew"),
                );
                self.after(Event::RequestVoid(Void::Gone));
            }
            Err(failure) => self.access_failed(via, &failure),
        }
    }

    fn judged(&mut self, via: Via, link: &Link, object: &CertificateSigningRequest, first: bool) {
        let Some(request) = self.request.clone() else { return };
        if self.in_force(object) {
            // The switch was done, and cut off before the request was put away.
            return self.finish_request(via);
        }
        let user = link.user.clone().unwrap_or_default();
        match judge(object, request.pem.as_bytes(), &user) {
            Judgement::Pending => self.advanced(Event::RequestStands(Standing::Pending)),
            Judgement::Approved => {
                if self
                    .state
                    .request
                    .is_some_and(|request| request.standing != Standing::Approved)
                {
                    info!(firewall = %self.object(), request = %request.name, "request approved");
                }
                self.advanced(Event::RequestStands(Standing::Approved));
            }
            Judgement::Granted(grant) => self.granted(via, link, &request, &grant),
            Judgement::Issued(chain) => self.issued(via, link, &request.name, &chain),
            Judgement::Foreign(why) => {
                self.problem(
                    Job::Access.as_str(),
                    &format!("request {} {why}: asking anew", request.name),
                );
                self.after(Event::RequestVoid(if first { Void::Spoilt } else { Void::Refused }));
            }
            Judgement::Refused(why) => {
                self.problem(Job::Access.as_str(), &format!("request {} was {why}", request.name));
                self.after(Event::RequestVoid(if first { Void::Spoilt } else { Void::Refused }));
            }
        }
    }

    /// Whether what came of a request is the very certificate that we work with, whoever sent it: after a first
    /// bootstrap that was the bootstrap credential, and now we look with our own.
    fn in_force(&self, object: &CertificateSigningRequest) -> bool {
        let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
        let granted = conditions
            .and_then(|all| all.iter().find(|condition| condition.type_ == grant::CONDITION))
            .and_then(|condition| grant::read(condition.message.as_deref()?).ok());
        if let (Some(granted), Some(pair)) = (granted, &self.pair) {
            return granted.serial == pair.issued.serial;
        }
        let certificate = object.status.as_ref().and_then(|status| status.certificate.as_ref());
        let issued = certificate
            .and_then(|chain| str::from_utf8(&chain.0).ok())
            .and_then(|chain| read_certificate(chain).ok());
        issued.is_some() && issued.as_ref() == self.pair.as_ref().map(|pair| &pair.issued)
    }

    /// A token: only the key that signed the request opens it.
    fn granted(&mut self, via: Via, link: &Link, request: &StoredRequest, message: &str) {
        let Some(key) = &self.key else { return };
        let opened = grant::read(message)
            .and_then(|grant| grant.open(key, request.pem.as_bytes()))
            .and_then(|token| OwnPair::of_token(token, &self.firewall, key));
        match opened {
            Ok(pair) => self.issued_to_us(via, link, &request.name, pair),
            Err(error) => {
                self.problem(
                    Job::Access.as_str(),
                    &format!("the token for request {} is refused: {error}", request.name),
                );
                self.after(Event::RequestVoid(Void::Refused));
            }
        }
    }

    fn issued(&mut self, via: Via, link: &Link, request: &str, chain: &str) {
        let Some(key) = &self.key else { return };
        let refused = match OwnPair::new(chain, key) {
            Err(error) => Some(error.to_string()),
            Ok(pair) if pair.issued.key != key.public() => Some("certificate: it is for another key".to_owned()),
            Ok(pair) if pair.issued.firewall != self.firewall => {
                Some(format!("certificate: it is for firewall {}", pair.issued.firewall))
            }
            Ok(pair) if !pair.issued.client_auth => Some("certificate: it is not for client authentication".to_owned()),
            Ok(pair) => return self.issued_to_us(via, link, request, pair),
        };
        if let Some(problem) = refused {
            self.problem(
                Job::Access.as_str(),
                &format!("what was issued for request {request} is refused: {problem}"),
            );
            self.after(Event::RequestVoid(Void::Refused));
        }
    }

    fn issued_to_us(&mut self, via: Via, link: &Link, request: &str, pair: OwnPair) {
        let (now, issued) = (Timestamp::now(), &pair.issued);
        if now.duration_until(issued.not_before) > SKEW || now >= issued.not_after {
            let problem = format!(
                "the certificate that was issued is valid from {} to {}, and this clock says {now}: set the clock",
                issued.not_before, issued.not_after
            );
            return self.failed(Job::Access, Patience::Slow, &problem);
        }
        let mode = pair.mode().as_str();
        info!(firewall = %self.object(), request, serial = %issued.serial, until = %issued.not_after, "{mode} issued");
        // A renewal changes nothing but the certificate; a bootstrap brings its own server and CA.
        let access = match (&self.access, via) {
            (Some(access), Via::Own) => access.clone(),
            (Some(access), Via::Bootstrap) if same_seed(access, &link.access) => access.clone(),
            _ => link.access.clone(),
        };
        let access = Access {
            mode: mode.to_owned(),
            ..access
        };
        self.candidate = Some(Candidate {
            pair,
            access,
            via,
            link: None,
        });
        self.advanced(Event::RequestStands(Standing::Issued));
    }

    pub(crate) async fn try_candidate(&mut self) {
        let Some(mut candidate) = self.candidate.take() else {
            return self.after(Event::RequestStands(Standing::Pending));
        };
        let tried = self.try_pair(&candidate.pair, &candidate.access).await;
        let age = self
            .state
            .request
            .and_then(|request| request.sent)
            .unwrap_or(Timestamp::now());
        let serial = candidate.pair.issued.serial.clone();
        match tried {
            Ok(link) => {
                info!(firewall = %self.object(), serial, "certificate works: the seed knows us by it and our Firewall was read");
                candidate.link = Some(link);
                self.advanced(Event::CandidateTried);
            }
            Err(Trial::Failed(failure)) if failure.is(Class::Forbidden) || failure.is(Class::NotFound) => {
                self.problem(Job::Access.as_str(), &failure.to_string());
                self.after(Event::NotPermitted);
            }
            Err(Trial::Failed(failure))
                if failure.is(Class::Unauthenticated) && age.duration_until(Timestamp::now()) < AUTHENTICATION_LAG =>
            {
                self.failed(Job::Access, Patience::Lag, &failure);
            }
            Err(Trial::Failed(failure)) if !failure.is(Class::Unauthenticated) => {
                self.failed(Job::Access, Patience::Normal, &failure);
            }
            Err(trial) => {
                self.problem(
                    Job::Access.as_str(),
                    &format!("certificate {serial} is of no use: {trial}"),
                );
                self.after(Event::RequestVoid(Void::Refused));
                return;
            }
        }
        self.candidate = Some(candidate);
    }

    /// A pair is good if the seed knows us by it and lets us read our own Firewall. Always on a fresh connection.
    pub(crate) async fn try_pair(&self, pair: &OwnPair, access: &Access) -> Result<Link, Trial> {
        let kubeconfig = access.with(pair.credential()).map_err(Trial::Useless)?;
        let mut link = link("the seed", access, &kubeconfig).map_err(Trial::Useless)?;
        let user = who_am_i(&link.client, "the seed").await?;
        if user != pair.user() {
            return Err(Trial::Useless(format!(
                "the seed knows it as {user:?}, not as {:?}",
                pair.user()
            )));
        }
        let firewalls: Api<Firewall> = Api::namespaced(link.client.clone(), &access.namespace);
        let what = format!("get Firewall {}/{}", access.namespace, self.firewall);
        call(what, firewalls.get(self.firewall.as_str())).await?;
        link.user = Some(user);
        Ok(link)
    }

    /// The order matters: after a kill between any two writes the next start finds a whole pair and its seed.
    pub(crate) fn switch(&mut self) {
        let (Some(key), Some(candidate)) = (&self.key, self.candidate.take()) else {
            return self.after(Event::RequestStands(Standing::Pending));
        };
        let written = (|| {
            if self.access.as_ref() != Some(&candidate.access) || candidate.via == Via::Handover {
                let order = self.handover.as_ref().map(PendingHandover::order);
                let switching = Switching {
                    serial: candidate.pair.issued.serial.clone(),
                    order: order.filter(|_| candidate.via == Via::Handover),
                    previous: self.access.clone(),
                };
                self.store.begin_switch(&switching, &candidate.access)?;
            } else if self.store.switching()?.is_some() {
                // Of a switch that was cut short: where it led must not count once it is put away.
                self.store.keep_access(&candidate.access)?;
            }
            self.store.switch_pair(&candidate.pair, key)?;
            self.store.install(&candidate.access)
        })();
        if let Err(error) = written {
            self.candidate = Some(candidate);
            return self.failed(Job::Access, Patience::Normal, &error);
        }
        let issued = &candidate.pair.issued;
        let mode = candidate.pair.mode().as_str();
        info!(firewall = %self.object(), serial = %issued.serial, server = %candidate.access.server, "switched to the new {mode}");
        self.pair = Some(candidate.pair);
        self.access = Some(candidate.access);
        self.own = candidate.link;
        // What was seen of the seed before says nothing about this one.
        self.offer = None;
        self.state.offer = false;
        self.judged = None;
        // Judged anew, what is still refused says so again.
        self.problems.remove(REFUSED);
        self.state.installed = true;
        self.refresh_told();
        self.finish_request(candidate.via);
    }

    fn finish_request(&mut self, via: Via) {
        // The bootstrap kubeconfig that is there was used, or was overtaken by a handover. A renewal says nothing of it.
        let bootstrap = self.bootstrap.as_ref().filter(|_| via != Via::Own);
        // Without a request it was a token, which was asked for just now.
        let life = self.request.as_ref().map_or(Some(self.life()), |request| request.life);
        let handled = Handled {
            pending: false,
            life: life.or(self.handled.life),
            bootstrap: bootstrap.map_or_else(|| self.handled.bootstrap.clone(), |known| Some(known.hash.clone())),
            ..self.handled.clone()
        };
        let put_away = (|| {
            if handled != self.handled {
                self.store.write_handled(&handled)?;
            }
            self.forget_handover()?;
            self.store.remove_request()?;
            self.store.remove_switching()
        })();
        match (put_away, self.own_times()) {
            (Ok(()), Some(own)) => {
                self.handled = handled;
                self.request = None;
                self.problems.remove("credential");
                self.advanced(Event::Switched(own));
            }
            (Err(error), _) => {
                // The pair is in force. What is left is put away when the request is looked at again.
                self.state.own = self.own_times();
                self.after(Event::RequestStands(Standing::Pending));
                self.failed(Job::Access, Patience::Normal, &error);
            }
            (Ok(()), None) => {}
        }
    }

    pub(crate) fn drop_request(&mut self) {
        match self.store.remove_request() {
            Ok(()) => {
                if let Some(request) = self.request.take() {
                    info!(firewall = %self.object(), request = %request.name, "request given up");
                }
                self.candidate = None;
                self.advanced(Event::RequestDropped);
            }
            Err(error) => self.failed(Job::Access, Patience::Normal, &error),
        }
    }
}

/// Why a pair was not good.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trial {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("{0}")]
    Useless(String),
}

/// Whether a bootstrap leads where we are already, so that what the seed told us since stays.
fn same_seed(known: &Access, new: &Access) -> bool {
    known.server == new.server
        && known.ca == new.ca
        && known.tls_server_name == new.tls_server_name
        && known.namespace == new.namespace
}

fn via_name(via: Via) -> &'static str {
    match via {
        Via::Bootstrap => "the bootstrap kubeconfig",
        Via::Handover => "the handover",
        Via::Own => "our own certificate",
    }
}
