//! Start and stop of a cluster's three processes, each until it really works or is really gone.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use tokio::net::TcpStream;

use super::binaries::Program;
use super::cluster::{Cluster, Slot};
use super::eventually;
use super::process::Process;

impl Cluster {
    /// The process ids of what runs.
    pub async fn process_ids(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        for slot in [&self.etcd, &self.apiserver, &self.controller_manager] {
            ids.extend(slot.lock().await.as_ref().map(Process::id));
        }
        ids
    }

    pub async fn start_etcd(&self) -> anyhow::Result<()> {
        self.run(&self.etcd, Program::Etcd, self.layout.etcd_args()).await?;
        self.until(&self.etcd, "etcd listens", || async {
            TcpStream::connect(self.layout.etcd_address())
                .await
                .map(drop)
                .map_err(Into::into)
        })
        .await
    }

    pub async fn stop_etcd(&self) {
        stop(&self.etcd).await;
    }

    pub async fn start_apiserver(&self) -> anyhow::Result<()> {
        self.run(
            &self.apiserver,
            Program::ApiServer,
            self.layout.apiserver_args(&self.options),
        )
        .await?;
        let client = self.client().await?;
        self.until(&self.apiserver, "kube-apiserver is ready", || async {
            client
                .request_text(http::Request::get("/readyz").body(Vec::new())?)
                .await?;
            Ok(())
        })
        .await
    }

    pub async fn stop_apiserver(&self) {
        stop(&self.apiserver).await;
    }

    /// Waits until the namespace `default` has the root CA of now, which needs the controllers to work.
    pub async fn start_controller_manager(&self) -> anyhow::Result<()> {
        let args = self.layout.controller_manager_args(&self.options);
        self.run(&self.controller_manager, Program::ControllerManager, args)
            .await?;
        let roots: Api<ConfigMap> = Api::namespaced(self.client().await?, "default");
        let bundle = self.server_ca_pem();
        self.until(&self.controller_manager, "kube-root-ca.crt is published", || async {
            let root = roots.get("kube-root-ca.crt").await?;
            let data = root.data.unwrap_or_default();
            anyhow::ensure!(data.get("ca.crt") == Some(&bundle), "it still holds another CA");
            Ok(())
        })
        .await
    }

    pub async fn stop_controller_manager(&self) {
        stop(&self.controller_manager).await;
    }

    /// The whole control plane but its data: nothing answers, and nothing goes on by itself.
    pub async fn stop(&self) {
        self.stop_controller_manager().await;
        self.stop_apiserver().await;
    }

    /// After `stop`. Controllers that were left running would be slow to find their API server again.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        self.start_apiserver().await?;
        self.start_controller_manager().await
    }

    async fn run(&self, slot: &Slot, program: Program, args: Vec<String>) -> anyhow::Result<()> {
        let mut slot = slot.lock().await;
        anyhow::ensure!(slot.is_none(), "{} runs already", program.name());
        *slot = Some(Process::start(&self.binaries, program, &args, self.dir())?);
        Ok(())
    }

    /// Asks until it is so, for a minute. A process that ended is not waited for.
    async fn until<F, Fut>(&self, slot: &Slot, what: &str, ask: F) -> anyhow::Result<()>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = anyhow::Result<()>>,
    {
        let so = eventually(what, READY, || {
            let asked = ask();
            async {
                if let Some(Err(dead)) = slot.lock().await.as_mut().map(Process::alive) {
                    return Ok(Err(dead));
                }
                asked.await.map(Ok)
            }
        });
        match so.await {
            Ok(outcome) => outcome.context(what.to_owned()),
            Err(error) => {
                let tail = slot.lock().await.as_ref().map(Process::log_tail).unwrap_or_default();
                Err(error.context(format!("the end of its log:\n{tail}")))
            }
        }
    }
}

const READY: Duration = Duration::from_secs(60);

async fn stop(slot: &Slot) {
    let process = slot.lock().await.take();
    if let Some(process) = process {
        process.stop().await;
    }
}
