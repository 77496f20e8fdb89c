//! Where each file stands. What stands in it is `store`'s business.

use std::path::PathBuf;

/// Where the two kinds of files stand.
#[derive(Clone, Debug)]
pub struct Paths {
    /// What the agent shares with the machine: the bootstrap kubeconfig and what it writes for the consumer.
    pub config: PathBuf,
    /// What is the agent's own.
    pub state: PathBuf,
}

impl Paths {
    pub fn bootstrap(&self) -> PathBuf {
        self.config.join(".bootstrap.kubeconfig")
    }

    pub fn seed(&self) -> PathBuf {
        self.config.join(SEED_KUBECONFIG)
    }

    /// The name by which firewall-controllers of today look for the seed's kubeconfig.
    pub fn seed_link(&self) -> PathBuf {
        self.config.join(".seed-kubeconfig")
    }

    pub fn shoot(&self) -> PathBuf {
        self.config.join(".shoot.kubeconfig")
    }

    pub fn key(&self) -> PathBuf {
        self.state.join("key.pem")
    }

    pub fn request(&self) -> PathBuf {
        self.state.join("request.json")
    }

    pub fn current(&self) -> PathBuf {
        self.state.join("current.pem")
    }

    /// The token in use, beside the certificate of before: whoever reads that one still finds it.
    pub fn current_token(&self) -> PathBuf {
        self.state.join("current.token")
    }

    pub fn pairs(&self) -> PathBuf {
        self.state.join("pairs")
    }

    pub fn access(&self) -> PathBuf {
        self.state.join("seed.json")
    }

    pub fn handled(&self) -> PathBuf {
        self.state.join("handled.json")
    }

    /// A handover that was taken up and not used yet.
    pub fn handover(&self) -> PathBuf {
        self.state.join("handover.json")
    }

    /// Which handover was the newest.
    pub fn fence(&self) -> PathBuf {
        self.state.join("fence.json")
    }

    /// A switch under way, with what to go back to.
    pub fn switching(&self) -> PathBuf {
        self.state.join("switching.json")
    }

    pub fn lifeline(&self) -> PathBuf {
        self.state.join("lifeline.kubeconfig")
    }

    pub fn lock(&self) -> PathBuf {
        self.state.join("lock")
    }

    pub fn status(&self) -> PathBuf {
        self.state.join("status.json")
    }

    /// `firewall-agent renew` puts it there, the running agent takes it away.
    pub fn renew(&self) -> PathBuf {
        self.state.join("renew")
    }
}

pub(crate) const SEED_KUBECONFIG: &str = ".seed.kubeconfig";
