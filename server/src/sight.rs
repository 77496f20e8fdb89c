//! What there is to see of a Firewall, in the caches and in its shoot. Reads only, and believes nothing from the shoot
//! that the pinned key did not sign.

use std::sync::Arc;

use contract::cert::{Issued, counts_from};
use contract::handover::{self, Claims};
use contract::key::PublicKey;
use contract::names::FirewallName;
use contract::record::{Certificate, Keys, Pin};
use contract::report::Report;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Resource, ResourceExt};

use cluster::firewall::{Firewall, ShootAccess};

use crate::approver::Approver;
use crate::core::decide::{Candidate, owner};
use crate::core::plan;
use crate::evidence;
use crate::shoots::{Closed, Monitor, Shoot};
use crate::state::StateError;

pub struct Sight<'a> {
    pub approver: &'a Approver,
    pub firewall: &'a Firewall,
    pub namespace: String,
    /// `namespace/name`, for what is logged.
    pub object: String,
}

/// The shoot as it can be worked with, and what stands against that.
pub struct ShootSide {
    pub shoot: Option<Arc<Shoot>>,
    /// Why the approver does not get into the shoot.
    pub closed: Option<Closed>,
    pub secrets: Option<plan::ShootSecrets>,
    /// Why the firewall does not get the Secrets that its Firewall names.
    pub refused: Option<Closed>,
}

impl Sight<'_> {
    pub fn shoot_access(&self) -> Option<&ShootAccess> {
        self.firewall.status.as_ref()?.shoot_access.as_ref()
    }

    pub fn shoot(&self) -> ShootSide {
        let mut side = ShootSide {
            shoot: None,
            closed: None,
            secrets: None,
            refused: None,
        };
        let Some(access) = self.shoot_access() else { return side };
        let secret = self.approver.shoot_secret(&self.namespace);
        match self
            .approver
            .shoots
            .get(&self.namespace, secret.as_deref(), &access.api_server_url)
        {
            Ok(shoot) => side.shoot = Some(shoot),
            Err(closed) => side.closed = Some(closed),
        }
        let ShootAccess {
            namespace,
            generic_kubeconfig_secret_name,
            token_secret_name,
            ..
        } = access;
        match plan::shoot_secrets(
            &self.namespace,
            namespace,
            generic_kubeconfig_secret_name,
            token_secret_name,
        ) {
            Ok(secrets) => side.secrets = Some(secrets),
            Err(refused) => side.refused = Some(refused),
        }
        side
    }

    /// The namespace of whoever has this name by right, if that is not this Firewall.
    pub fn taken_by(&self, name: &FirewallName) -> Result<Option<String>, StateError> {
        let all = self.approver.firewalls_named(name.as_str());
        let mut facts = Vec::with_capacity(all.len());
        for firewall in &all {
            let namespace = firewall.namespace().unwrap_or_default();
            let record = self.approver.cached_record(&namespace, name)?;
            facts.push((namespace, record, firewall));
        }
        let candidates: Vec<Candidate<'_>> = facts
            .iter()
            .map(|(namespace, record, firewall)| Candidate {
                namespace,
                uid: firewall.meta().uid.as_deref().unwrap_or_default(),
                created: firewall.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
                deleting: firewall.meta().deletion_timestamp.is_some(),
                record: record.as_ref(),
            })
            .collect();
        let Some(owner) = owner(&candidates) else {
            return Ok(None);
        };
        if owner.namespace != self.namespace {
            return Ok(Some(owner.namespace.to_owned()));
        }
        if owner.record.is_some() {
            return Ok(None);
        }
        // Nobody else has the name, but somebody had it: a certificate of his would open this firewall's Secrets.
        Ok(self
            .approver
            .holders_of_certificates(name, &self.namespace, Timestamp::now())
            .pop())
    }

    /// The firewall's newest report, opened with its pinned key and nothing else. An older one that somebody put there
    /// again says nothing.
    pub fn report(&self, monitor: &Monitor, shoot: &Shoot, name: &FirewallName, keys: &Keys) -> Option<Report> {
        let pin = keys.pin.as_ref()?;
        let message = monitor.report.as_ref()?;
        let opened = match &pin.key {
            Some(key) => Report::open(message, key),
            None => Report::open_by(message, &pin.thumbprint),
        };
        match opened {
            Ok(report) if report.firewall == *name => Some(shoot.newest(name.as_str(), report, Timestamp::now())),
            Ok(report) => {
                self.doubt("report", message, &format!("it is firewall {}'s", report.firewall));
                None
            }
            Err(error) => {
                self.doubt("report", message, &error);
                None
            }
        }
    }

    /// The handover in the monitor, if the shoot's own key signed it for this firewall.
    pub fn authentic(&self, monitor: &Monitor, name: &FirewallName, key: &PublicKey) -> Option<Claims> {
        let message = monitor.handover.as_ref()?;
        match handover::read(message, std::slice::from_ref(key)) {
            Ok(read) if read.claims.firewall == *name => Some(read.claims),
            Ok(read) => {
                self.doubt(
                    "handover",
                    message,
                    &format!("it is for firewall {}", read.claims.firewall),
                );
                None
            }
            Err(error) => {
                self.doubt("handover", message, &error);
                None
            }
        }
    }

    fn doubt(&self, what: &str, message: &str, why: &impl std::fmt::Display) {
        if self.approver.is_news(&format!("{what} {}", self.object), message) {
            tracing::warn!(firewall = %self.object, "the {what} in the FirewallMonitor is not believed: {why}");
        }
    }

    /// Of the requests that still exist: the newest certificate of the pinned key, and when the last of this name ends, of
    /// whatever key.
    pub fn certificates(&self, name: &FirewallName, keys: &Keys) -> (Option<Certificate>, Option<Timestamp>) {
        let all = self.approver.requests.state();
        let ours = all
            .iter()
            .filter(|csr| evidence::condition(csr, "Approved").is_some() && evidence::is_firewalls(csr));
        let mut until = None;
        let mut certificates = Vec::new();
        for csr in ours {
            // A seed that signs does so beside a token, too.
            let issued = issued(csr).filter(|(issued, _)| issued.firewall == *name);
            until = until.max(issued.as_ref().map(|(issued, _)| issued.not_after));
            let Some(pin) = &keys.pin else { continue };
            if let Some(granted) = granted(csr, name, pin) {
                certificates.push((granted, String::new(), csr.name_any()));
            } else if let Some((issued, pem)) = issued.filter(|(issued, _)| issued.key.thumbprint() == pin.thumbprint) {
                certificates.push((issued, pem, csr.name_any()));
            }
        }
        (self.newest(certificates), until)
    }

    fn newest(&self, certificates: Vec<(Issued, String, String)>) -> Option<Certificate> {
        // The signer backdates; what it signed came later than it says.
        let began = |issued: &Issued| {
            if contract::grant::is_token(&issued.issuer) {
                issued.not_before
            } else {
                counts_from(issued.not_before, issued.not_after)
            }
        };
        let (issued, pem, request) = certificates.into_iter().max_by_key(|(issued, ..)| began(issued))?;
        if pem.is_empty() {
            return Some(Certificate {
                serial: issued.serial,
                not_before: issued.not_before,
                not_after: issued.not_after,
                issuer: issued.issuer,
                issuer_key: None,
                request,
            });
        }
        let issuer_key = self.approver.canaries.issuer_of(&pem);
        let seen = format!("certificate of {}", self.object);
        if self.approver.is_news(&seen, &issued.serial) {
            self.approver.canaries.noticed(issuer_key.as_deref());
        }
        Some(Certificate {
            serial: issued.serial,
            not_before: issued.not_before,
            not_after: issued.not_after,
            issuer: issued.issuer,
            issuer_key,
            request,
        })
    }
}

fn issued(csr: &CertificateSigningRequest) -> Option<(Issued, String)> {
    let pem = String::from_utf8_lossy(&csr.status.as_ref()?.certificate.as_ref()?.0).into_owned();
    Some((contract::cert::read_certificate(&pem).ok()?, pem))
}

/// The token that a request was answered with, if it was one of this key.
fn granted(csr: &CertificateSigningRequest, name: &FirewallName, pin: &Pin) -> Option<Issued> {
    let message = evidence::condition(csr, contract::grant::CONDITION)?
        .message
        .as_deref()?;
    let grant = contract::grant::read(message).ok()?;
    let read = contract::csr::read(&csr.spec.request.0).ok()?;
    let ours = read.firewall == *name && read.key.thumbprint() == pin.thumbprint && grant.user == name.access_user();
    ours.then(|| Issued {
        serial: grant.serial,
        not_before: grant.not_before,
        not_after: grant.not_after,
        firewall: name.clone(),
        key: read.key,
        issuer: grant.user,
        authority_key_id: None,
        client_auth: true,
    })
}
