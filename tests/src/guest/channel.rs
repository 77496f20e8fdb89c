//! The word with the guest agent in a machine: commands go in and what came of them comes out, with no network and no
//! login. Owns the protocol (QEMU's guest agent, one line of JSON each way, over a virtio port).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

/// What came of a command.
#[derive(Clone, Debug)]
pub struct Answer {
    /// None where a signal ended it.
    pub code: Option<i64>,
    pub out: Vec<u8>,
    pub err: String,
}

pub(super) struct Channel(BufReader<UnixStream>);

impl Channel {
    /// Fails while nobody listens in the guest.
    pub(super) async fn open(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket).await.context("no machine is there")?;
        let mut channel = Self(BufReader::new(stream));
        tokio::time::timeout(HELLO, channel.greet())
            .await
            .context("its guest agent does not answer")??;
        Ok(channel)
    }

    /// Answers to questions of before may still be under way; the mark and the number tell where ours begin.
    async fn greet(&mut self) -> anyhow::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let hello = json!({"execute": "guest-sync-delimited", "arguments": {"id": id}});
        self.0.get_mut().write_all(&[MARK]).await?;
        self.0.get_mut().write_all(format!("{hello}\n").as_bytes()).await?;
        loop {
            let mut before = Vec::new();
            self.0.read_until(MARK, &mut before).await?;
            if self.read().await?["return"] == id {
                return Ok(());
            }
        }
    }

    pub(super) async fn run(&mut self, command: &str, input: &[u8]) -> anyhow::Result<Answer> {
        let arguments = json!({
            "path": "/bin/sh", "arg": ["-c", command], "capture-output": true, "input-data": STANDARD.encode(input),
        });
        let pid = self.ask("guest-exec", &arguments).await?["pid"].clone();
        loop {
            let status = self.ask("guest-exec-status", &json!({"pid": pid})).await?;
            if status["exited"] == true {
                let data = |name: &str| STANDARD.decode(status[name].as_str().unwrap_or_default());
                return Ok(Answer {
                    code: status["exitcode"].as_i64(),
                    out: data("out-data")?,
                    err: String::from_utf8_lossy(&data("err-data")?).into_owned(),
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ask(&mut self, command: &str, arguments: &Value) -> anyhow::Result<Value> {
        let line = json!({"execute": command, "arguments": arguments}).to_string() + "\n";
        self.0.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = self.read().await?;
        if !answer["error"].is_null() {
            bail!("{command}: {}", answer["error"]);
        }
        Ok(answer["return"].take())
    }

    async fn read(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            bail!("the machine is gone");
        }
        serde_json::from_str(&line).with_context(|| format!("no JSON: {line:?}"))
    }
}

const MARK: u8 = 0xff;
const HELLO: Duration = Duration::from_secs(3);
