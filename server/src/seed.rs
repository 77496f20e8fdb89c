//! The seed that this approver serves: its id, where firewalls reach it, and the few ways in which we touch its
//! Secrets. Owns no decision.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use contract::digest::sha256_hex;
use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;

use cluster::api::{apply, call, call_opt};
use cluster::client::{self, ClientError};
use cluster::failure::{Class, Failure};
use cluster::lease::Leadership;
use cluster::operator::{Operator, OperatorError};
use contract::names;

use crate::preflight::{self, PreflightError};
use crate::selftest::{SelfTest, SelfTestError};

#[derive(Debug, Error)]
pub enum SeedError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("namespace {0} does not exist in this seed: create it, or correct --namespace / --own-namespace")]
    NoNamespace(String),
    #[error(
        "it is not known where firewalls reach this seed: give --seed-server, or create ConfigMap garden/seed-api-server with key `url`"
    )]
    NoServer,
    #[error(
        "ConfigMap {0}/kube-root-ca.crt has no key ca.crt: give --seed-ca, or run kube-controller-manager's root-ca-certificate-publisher"
    )]
    NoCa(String),
    #[error("CA file {path}: {problem}")]
    CaFile { path: String, problem: String },
    #[error("the seed's CA: {0}")]
    Ca(String),
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error(transparent)]
    Rights(#[from] PreflightError),
    #[error(transparent)]
    Policies(#[from] SelfTestError),
    #[error(
        "it leads to another cluster (kube-system is {0}): start the approver anew if that is the seed to serve now"
    )]
    AnotherSeed(String),
    #[error(
        "firewalls would not reach this seed: the approver itself cannot reach {server}, where they are sent: {problem}"
    )]
    Unusable { server: String, problem: String },
}

#[derive(Clone)]
pub struct Seed {
    pub client: Client,
    /// UID of namespace kube-system: what tells one seed from another.
    pub id: String,
    pub own_namespace: String,
    /// Asked by every write; none in a dry run.
    pub leads: Option<Leadership>,
    operator: Arc<Operator>,
    endpoint: Arc<RwLock<Endpoint>>,
}

/// Where firewalls reach the API server, and whom they have to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub server: String,
    pub ca: CaBundle,
}

impl Seed {
    /// `client` is what the work is done with; it writes nothing while another replica leads.
    pub async fn connect(
        operator: Operator,
        client: Client,
        leads: Option<Leadership>,
        run: &crate::args::Run,
    ) -> Result<Self, SeedError> {
        let id = namespace(&client, "kube-system").await?.uid().unwrap_or_default();
        namespace(&client, &run.own_namespace).await?;
        for name in &run.namespaces {
            namespace(&client, name).await?;
        }
        let endpoint = Endpoint::find(&client, run).await?;
        endpoint.try_it().await?;
        Ok(Self {
            client,
            id,
            own_namespace: run.own_namespace.clone(),
            leads,
            operator: Arc::new(operator),
            endpoint: Arc::new(RwLock::new(endpoint)),
        })
    }

    /// The same seed for whoever answers while another leads. What it writes is its own business.
    pub fn beside(&self, client: Client) -> Self {
        Self {
            client,
            leads: None,
            ..self.clone()
        }
    }

    /// Where firewalls reach this seed now.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks again where that is; says whether it is somewhere else now. What does not work is not handed out.
    pub async fn look_again(&self, run: &crate::args::Run) -> Result<bool, SeedError> {
        let found = Endpoint::find(&self.client, run).await?;
        if found == self.endpoint() {
            return Ok(false);
        }
        found.try_it().await?;
        *self.endpoint.write().unwrap_or_else(PoisonError::into_inner) = found;
        Ok(true)
    }

    /// Goes on with the access that the operator wrote since, if it leads to this very seed, where everything is of that
    /// is known, has the rights, and is held by the policies. Says whether there was any.
    pub async fn follow(&self, run: &crate::args::Run) -> Result<bool, SeedError> {
        let Some(candidate) = self.operator.changed().await? else {
            return Ok(false);
        };
        let id = namespace(&candidate.client, "kube-system")
            .await?
            .uid()
            .unwrap_or_default();
        if id != self.id {
            return Err(SeedError::AnotherSeed(id));
        }
        preflight::check(&candidate.client, run).await?;
        // Each try leaves a request behind, so what was refused is not tried again at once.
        if let Err(refused) = SelfTest::new(candidate.client.clone(), run).held().await {
            self.operator.refuse(candidate);
            return Err(refused.into());
        }
        self.operator.switch(candidate);
        Ok(true)
    }

    pub fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Reads one of our own Secrets in a namespace where we may not `get`: an empty patch changes nothing and answers
    /// with the object, and the policies let it through for Secrets of ours only.
    pub async fn read_own(&self, namespace: &str, name: &str) -> Result<Option<Secret>, Failure> {
        let what = format!("read Secret {namespace}/{name}");
        let params = PatchParams {
            field_manager: Some(names::APPROVER.into()),
            ..PatchParams::default()
        };
        call_opt(
            what,
            self.secrets(namespace).patch(name, &params, &Patch::Merge(json!({}))),
        )
        .await
    }

    pub async fn apply_secret(&self, namespace: &str, secret: &Secret) -> Result<Secret, Failure> {
        apply(&self.secrets(namespace), names::APPROVER, &secret.name_any(), secret).await
    }

    /// Changes a Secret that has to exist; `None` if it does not.
    pub async fn patch_secret(&self, namespace: &str, name: &str, patch: &Value) -> Result<Option<Secret>, Failure> {
        let what = format!("patch Secret {namespace}/{name}");
        let params = PatchParams {
            field_manager: Some(names::APPROVER.into()),
            ..PatchParams::default()
        };
        call_opt(what, self.secrets(namespace).patch(name, &params, &Patch::Merge(patch))).await
    }

    pub async fn delete_secret(&self, namespace: &str, name: &str) -> Result<(), Failure> {
        let what = format!("delete Secret {namespace}/{name}");
        call_opt(what, self.secrets(namespace).delete(name, &DeleteParams::default()))
            .await
            .map(|_| ())
    }
}

impl Endpoint {
    async fn find(client: &Client, run: &crate::args::Run) -> Result<Self, SeedError> {
        let server = match &run.seed_server {
            Some(server) => server.clone(),
            None => {
                let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "garden");
                let map = call_opt("get ConfigMap garden/seed-api-server", maps.get("seed-api-server")).await?;
                map.and_then(|map| map.data?.remove("url")).ok_or(SeedError::NoServer)?
            }
        };
        let pem = match &run.seed_ca {
            Some(path) => read_file(path)?,
            None => {
                let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &run.own_namespace);
                let what = format!("get ConfigMap {}/kube-root-ca.crt", run.own_namespace);
                let map = call_opt(what, maps.get("kube-root-ca.crt")).await?;
                map.and_then(|map| map.data?.remove("ca.crt"))
                    .ok_or_else(|| SeedError::NoCa(run.own_namespace.clone()))?
            }
        };
        let ca = CaBundle::from_pem(&pem).map_err(|e| SeedError::Ca(e.to_string()))?;
        Ok(Self {
            server: server.trim_end_matches('/').to_owned(),
            ca,
        })
    }

    /// Fingerprints of the server's address and of its CAs, as firewalls report them.
    pub fn fingerprints(&self) -> (String, String) {
        (sha256_hex(self.server.as_bytes()), sha256_hex(self.ca.pem().as_bytes()))
    }

    /// Asks the server for its version as a firewall would reach it: what is handed out must work. Any HTTP answer
    /// will do, anonymous requests may be refused.
    async fn try_it(&self) -> Result<(), SeedError> {
        let unusable = |problem: String| SeedError::Unusable {
            server: self.server.clone(),
            problem,
        };
        let anonymous = self.kubeconfig("default", Credential::None, None);
        // Through our own reader, as the agent will: what it would refuse is refused here already.
        let text = self
            .kubeconfig("default", Credential::Token("a.b".to_owned().into()), None)
            .write();
        Kubeconfig::read("--seed-server and --seed-ca", &text).map_err(|e| unusable(e.to_string()))?;
        let client = client::connect("--seed-server", &anonymous).map_err(|e: ClientError| unusable(e.to_string()))?;
        match call(format!("GET {}/version", self.server), client.apiserver_version()).await {
            Ok(_) => Ok(()),
            Err(failure) if matches!(failure.class, Class::Unauthenticated | Class::Forbidden) => Ok(()),
            Err(failure) => Err(unusable(failure.to_string())),
        }
    }

    /// A kubeconfig for this seed in which every name is the shoot's namespace.
    pub fn kubeconfig(
        &self,
        namespace: &str,
        credential: Credential,
        bootstrap: Option<contract::kubeconfig::BootstrapExtension>,
    ) -> Kubeconfig {
        Kubeconfig {
            server: self.server.clone(),
            tls_server_name: None,
            ca: self.ca.clone(),
            credential,
            namespace: namespace.to_owned(),
            bootstrap,
        }
    }
}

async fn namespace(client: &Client, name: &str) -> Result<Namespace, SeedError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = call_opt(format!("get Namespace {name}"), namespaces.get(name)).await?;
    found.ok_or_else(|| SeedError::NoNamespace(name.to_owned()))
}

fn read_file(path: &Path) -> Result<String, SeedError> {
    std::fs::read_to_string(path).map_err(|e| SeedError::CaFile {
        path: path.display().to_string(),
        problem: e.to_string(),
    })
}
