//! A way to a cluster that can be cut: bytes are passed on, or refused, or swallowed as by a half-open connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

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
    tokio::select! {
        _ = copy_bidirectional(&mut connection, &mut server) => return,
        () = until(&mut way, |now| now.cut || now.frozen > born.frozen) => {}
    }
    // Frozen: both ends stay open and hear nothing.
    until(&mut way, |now| now.cut).await;
}

async fn until(way: &mut watch::Receiver<Way>, so: impl FnMut(&Way) -> bool) {
    // An error means that the proxy itself is gone.
    let _ = way.wait_for(so).await;
}
