//! Certificate authorities and what they sign. Server CA, client CA and their successors are all
//! separate, as in a seed that Gardener runs. Keys live in memory and in a cluster's directory.

use std::net::IpAddr;

use anyhow::{Context as _, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Two authorities of one name differ in their key only, like the old and the new CA of a roll.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mut params = params(name)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)
            .with_context(|| format!("the CA {name} cannot be made"))?;
        Ok(Self(issuer))
    }

    #[must_use]
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    #[must_use]
    pub fn der(&self) -> &[u8] {
        self.0.der()
    }

    #[must_use]
    pub fn pair(&self) -> Pair {
        Pair {
            certificate: self.certificate(),
            key: self.0.key().serialize_pem(),
        }
    }

    pub fn sign_server(&self, ips: &[IpAddr], dns: &str) -> anyhow::Result<Pair> {
        let mut params = params(dns)?;
        params.subject_alt_names = ips.iter().copied().map(SanType::IpAddress).collect();
        params.subject_alt_names.push(SanType::DnsName(dns.try_into()?));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A client certificate for this user and at most two groups: more organizations than that cannot
    /// be put into one name with rcgen.
    pub fn sign_client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Pair> {
        ensure!(groups.len() <= 2, "{user}: at most two groups, not {}", groups.len());
        let organization = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        let mut params = params(user)?;
        let mut name = DistinguishedName::new();
        for (kind, group) in organization.into_iter().zip(groups) {
            name.push(kind, *group);
        }
        name.push(DnType::CommonName, user);
        params.distinguished_name = name;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> anyhow::Result<Pair> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        Ok(Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn params(name: &str) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.not_before = date_time_ymd(2025, 1, 1);
    // Far away: no certificate of the control plane itself may end during a demo.
    params.not_after = date_time_ymd(2100, 1, 1);
    Ok(params)
}
