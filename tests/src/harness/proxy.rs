//! A way to a cluster that can be cut: bytes are passed on, or refused, or swallowed as by a half-open connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::cluster::Cluster;

/// Listens at the cluster's own address, for which the server's certificate is good. Ends when dropped.
pub struct Proxy {
    address: SocketAddr,
    peers: Arc<Mutex<Vec<IpAddr>>>,
    way: watch::Sender<Way>,
    accept: JoinHandle<()>,
}

#[derive(Clone, Copy, Default)]
struct Way {
    cut: bool,
    /// So long everything is on its way, in either direction.
    delay: Duration,
    /// How often everything was frozen. A connection that began before the last time says nothing any more.
    frozen: u32,
}

impl Proxy {
    pub async fn to(cluster: &Cluster) -> anyhow::Result<Self> {
        let target = cluster.address();
        Self::on(TcpListener::bind((target.ip(), 0)).await?, target)
    }

    /// With a listener of the caller's, which may be anywhere.
    pub fn on(listener: TcpListener, target: SocketAddr) -> anyhow::Result<Self> {
        let address = listener.local_addr()?;
        let (way, ways) = watch::channel(Way::default());
        let peers = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&peers);
        let accept = tokio::spawn(async move {
            while let Ok((connection, peer)) = listener.accept().await {
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(peer.ip());
                tokio::spawn(pass(connection, target, ways.clone()));
            }
        });
        Ok(Self {
            address,
            peers,
            way,
            accept,
        })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Who came, connection by connection.
    #[must_use]
    pub fn peers(&self) -> Vec<IpAddr> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections end, and new ones come to nothing at once.
    pub fn cut(&self) {
        self.way.send_modify(|way| way.cut = true);
    }

    pub fn mend(&self) {
        self.way.send_modify(|way| way.cut = false);
    }

    /// Whatever is passed on arrives so much later, on new connections.
    pub fn delay(&self, delay: Duration) {
        self.way.send_modify(|way| way.delay = delay);
    }

    /// The connections of now stay open and nothing comes through them any more, in either direction. New ones are good.
    pub fn freeze(&self) {
        self.way.send_modify(|way| way.frozen += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.accept.abort();
    }
}

async fn pass(mut connection: TcpStream, target: SocketAddr, mut way: watch::Receiver<Way>) {
    let born = *way.borrow_and_update();
    if born.cut {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    let copied = async {
        if born.delay.is_zero() {
            return copy_bidirectional(&mut connection, &mut server).await.map(drop);
        }
        let ((from, to), (from_server, to_server)) = (connection.split(), server.split());
        let there = late(from, to_server, born.delay);
        tokio::try_join!(there, late(from_server, to, born.delay)).map(drop)
    };
    tokio::select! {
        _ = copied => return,
        () = until(&mut way, |now| now.cut || now.frozen > born.frozen) => {}
    }
    // Frozen: both ends stay open and hear nothing.
    until(&mut way, |now| now.cut).await;
}

/// Passes bytes on, a while after they came.
async fn late(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
) -> std::io::Result<()> {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let read = async move {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut bytes).await?;
            let sent = sender.send((Instant::now() + delay, bytes[..length].to_vec())).await;
            if length == 0 || sent.is_err() {
                return Ok(());
            }
        }
    };
    let write = async move {
        while let Some((at, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(at).await;
            if bytes.is_empty() {
                break;
            }
            to.write_all(&bytes).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}

async fn until(way: &mut watch::Receiver<Way>, so: impl FnMut(&Way) -> bool) {
    // An error means that the proxy itself is gone.
    let _ = way.wait_for(so).await;
}
