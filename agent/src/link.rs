//! Clients for the credentials that the agent may have at a seed. Owns how each is read and made, and that it is
//! thrown away when its file or certificate changes; what is asked with it is the others' business.

use std::os::unix::fs::MetadataExt;

use cluster::client::connect;
use cluster::failure::Failure;
use contract::digest::sha256_hex;
use contract::kubeconfig::Kubeconfig;
use contract::names::FirewallName;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use crate::core::Via;
use crate::files;
use crate::machine::Machine;
use crate::paths::Paths;
use crate::store::Access;

/// One credential at one seed. Thrown away when either changes.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) access: Access,
    /// Who the seed says that we are, once it was asked.
    pub(crate) user: Option<String>,
}

/// The bootstrap kubeconfig as it was last read.
pub(crate) struct BootstrapLink {
    version: FileVersion,
    /// Of the file's text.
    pub(crate) hash: String,
    pub(crate) link: Link,
}

/// Tells a file from the one that was there before under its name.
pub(crate) type FileVersion = (u64, i64, i64, u64);

impl Machine {
    /// The client for a credential, made once and kept while both stand.
    pub(crate) fn link(&mut self, via: Via) -> Result<Link, String> {
        match via {
            Via::Bootstrap => self.bootstrap_link(),
            Via::Handover => self.handover_link(),
            Via::Own => {
                if let Some(link) = &self.own {
                    return Ok(link.clone());
                }
                let (Some(pair), Some(access)) = (&self.pair, &self.access) else {
                    return Err("there is no certificate of our own".into());
                };
                let link = link("the seed", access, &access.with(pair.credential())?)?;
                self.own = Some(link.clone());
                Ok(link)
            }
        }
    }

    pub(crate) fn bootstrap_link(&mut self) -> Result<Link, String> {
        let path = self.store.paths.bootstrap();
        let version = std::fs::metadata(&path)
            .map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.len()))
            .unwrap_or_default();
        if let Some(known) = &self.bootstrap
            && known.version == version
        {
            return Ok(known.link.clone());
        }
        let bootstrap = read_bootstrap(&self.store.paths)?;
        if bootstrap.firewall != self.firewall {
            return Err(format!(
                "{} is for firewall {}, and this machine is {}: put its own there",
                path.display(),
                bootstrap.firewall,
                self.firewall
            ));
        }
        let link = link("the seed", &bootstrap.access, &bootstrap.kubeconfig)?;
        self.bootstrap = Some(BootstrapLink {
            version,
            hash: bootstrap.hash,
            link: link.clone(),
        });
        Ok(link)
    }

    /// Who the seed says that we are; asked once for each client.
    pub(crate) async fn user(&mut self, via: Via, link: &mut Link) -> Result<String, Failure> {
        if let Some(user) = &link.user {
            return Ok(user.clone());
        }
        let user = who_am_i(&link.client, "the seed").await?;
        link.user = Some(user.clone());
        self.remember_user(via, &user);
        Ok(user)
    }

    pub(crate) fn remember_user(&mut self, via: Via, user: &str) {
        let link = match via {
            Via::Bootstrap => self.bootstrap.as_mut().map(|bootstrap| &mut bootstrap.link),
            Via::Handover => self.handover_link.as_mut(),
            Via::Own => self.own.as_mut(),
        };
        if let Some(link) = link {
            link.user = Some(user.to_owned());
        }
    }
}

/// Asks a server for the name that our credential has there.
pub(crate) async fn who_am_i(client: &Client, whose: &str) -> Result<String, Failure> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let what = format!("ask {whose} who we are (SelfSubjectReview)");
    let review = cluster::api::call(
        what,
        reviews.create(&PostParams::default(), &SelfSubjectReview::default()),
    )
    .await?;
    Ok(review
        .status
        .and_then(|status| status.user_info)
        .and_then(|user| user.username)
        .unwrap_or_default())
}

pub(crate) fn link(what: &str, access: &Access, kubeconfig: &Kubeconfig) -> Result<Link, String> {
    let client = connect(what, kubeconfig).map_err(|e| e.to_string())?;
    Ok(Link {
        client,
        access: access.clone(),
        user: None,
    })
}

pub(crate) struct Bootstrap {
    pub(crate) firewall: FirewallName,
    pub(crate) hash: String,
    pub(crate) access: Access,
    kubeconfig: Kubeconfig,
}

pub(crate) fn read_bootstrap(paths: &Paths) -> Result<Bootstrap, String> {
    let path = paths.bootstrap();
    let text = files::read_private(&path).map_err(|e| e.to_string())?.ok_or_else(|| {
        format!(
            "{} does not exist: put the firewall's bootstrap kubeconfig there",
            path.display()
        )
    })?;
    let kubeconfig = Kubeconfig::read(&path.display().to_string(), &text).map_err(|e| e.to_string())?;
    let access = bootstrap_access(&path.display().to_string(), &kubeconfig)?;
    Ok(Bootstrap {
        firewall: access.firewall.clone(),
        hash: sha256_hex(text.as_bytes()),
        access,
        kubeconfig,
    })
}

/// Where a bootstrap kubeconfig leads. `what` names it in errors.
pub(crate) fn bootstrap_access(what: &str, kubeconfig: &Kubeconfig) -> Result<Access, String> {
    let Some(extension) = &kubeconfig.bootstrap else {
        return Err(format!(
            "kubeconfig {what}: extension {} is missing, which names the firewall: take the one that the firewall-approver wrote",
            contract::kubeconfig::BOOTSTRAP_EXTENSION
        ));
    };
    Ok(Access {
        firewall: extension.firewall.clone(),
        namespace: kubeconfig.namespace.clone(),
        server: kubeconfig.server.clone(),
        tls_server_name: kubeconfig.tls_server_name.clone(),
        ca: kubeconfig.ca.pem().to_owned(),
        seed: None,
        handover_keys: extension.handover_keys.clone(),
        mode: "certificate".into(),
    })
}
