//! Debian's Prometheus, as it comes, as a process with a folder of its own: what it scrapes and which rules it has is the
//! caller's.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::harness::eventually;
use crate::http::Http;

const SOON: Duration = Duration::from_secs(60);

pub struct Prometheus {
    dir: TempDir,
    child: Child,
    http: Http,
}

impl Prometheus {
    /// Scrapes one target each second.
    pub async fn scraping(target: SocketAddr) -> anyhow::Result<Self> {
        let targets = json!({ "job_name": "approver", "static_configs": [{ "targets": [target.to_string()] }] });
        Self::start(&targets, None).await
    }

    /// Scrapes as this says, and looks at these rules, each second.
    pub async fn start(scrape: &Value, rules: Option<&Value>) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        // Only free now, as every port that is asked for beforehand.
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let mut config = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
            "scrape_configs": [scrape],
        });
        if let Some(rules) = rules {
            std::fs::write(dir.path().join("rules.yml"), rules.to_string())?;
            config["rule_files"] = json!(["rules.yml"]);
        }
        // JSON is YAML.
        std::fs::write(dir.path().join("prometheus.yml"), config.to_string())?;
        // It ends with this process, however that ends: then there is nothing more to read.
        let script = "prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=\"$0\" \
            --web.max-connections=16 >log 2>&1 & read -r _; kill -KILL $!";
        let child = Command::new("sh")
            .args(["-c", script, &address.to_string()])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .context("start prometheus: is it installed (make tools)?")?;
        let prometheus = Self {
            dir,
            child,
            http: Http(address),
        };
        eventually("Prometheus serves", SOON, || async {
            ensure!(prometheus.ask("/-/ready").await?.contains("Ready"), "not yet");
            Ok(())
        })
        .await
        .with_context(|| std::fs::read_to_string(prometheus.dir.path().join("log")).unwrap_or_default())?;
        Ok(prometheus)
    }

    async fn ask(&self, path: &str) -> anyhow::Result<String> {
        let Http(address) = self.http;
        // Whoever speaks 1.1 is answered in chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        let answer = self.http.send(&request).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(answer.body)
    }

    pub async fn json(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.ask(path).await?)?)
    }

    /// The alerts that fire now, each with all that stands there of it.
    pub async fn firing(&self) -> anyhow::Result<Vec<Value>> {
        let answer = self.json("/api/v1/alerts").await?;
        let alerts = answer["data"]["alerts"].as_array().context("no alerts")?;
        Ok(alerts
            .iter()
            .filter(|alert| alert["state"] == "firing")
            .cloned()
            .collect())
    }

    /// The value of the one series that this names.
    pub async fn value(&self, query: &str) -> anyhow::Result<f64> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.json(&format!("/api/v1/query?query={escaped}")).await?;
        let series = answer["data"]["result"].as_array().context("no result")?;
        ensure!(series.len() == 1, "{query}: {} series: {answer}", series.len());
        Ok(series[0]["value"][1].as_str().context("no value")?.parse()?)
    }

    /// Waits for the value to be as wanted.
    pub async fn comes_to(&self, query: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        eventually(query, SOON, || async {
            let value = self.value(query).await?;
            ensure!(wanted(value), "it is {value}");
            Ok(value)
        })
        .await
        .expect("what Prometheus says")
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The shell that started it waits for this.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
