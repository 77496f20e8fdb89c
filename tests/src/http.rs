//! A caller of plain HTTP, one request a connection, and no more lenient than the server is to be.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(5);

/// A server of plain HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Http(pub SocketAddr);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Http {
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.0))
            .await
    }

    /// These very bytes; the answer is what comes until the server closes.
    pub async fn send(&self, request: &str) -> anyhow::Result<Answer> {
        let answer = tokio::time::timeout(PATIENCE, async {
            let mut stream = TcpStream::connect(self.0).await?;
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            anyhow::Ok(answer)
        });
        let answer = answer
            .await
            .with_context(|| format!("no answer within {PATIENCE:?}"))??;
        let answer = String::from_utf8(answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no end of headers")?;
        let (first, headers) = head.split_once("\r\n").unwrap_or((head, ""));
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        let status = status.with_context(|| format!("no status: {first}"))?.parse()?;
        ensure!(!headers.contains("chunked"), "chunks are not read here: {headers}");
        Ok(Answer {
            status,
            headers: headers.to_ascii_lowercase(),
            body: body.to_owned(),
        })
    }
}
