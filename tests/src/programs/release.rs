//! Versions of the programs, to be put in one another's place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::{AGENT, APPROVER, binary};

/// A version of both programs: the folder with their binaries.
#[derive(Clone, Debug)]
pub struct Release(PathBuf);

impl Release {
    /// What the tests were built with.
    pub fn built() -> anyhow::Result<Self> {
        let agent = binary(AGENT)?;
        Ok(Self(agent.parent().context("a binary in no folder")?.to_owned()))
    }

    /// The one that is upgraded from: the folder that `UPGRADE_FROM` names, or the same build once more.
    pub fn before() -> anyhow::Result<Self> {
        Self::given()?.map_or_else(Self::built, Ok)
    }

    /// The folder that `UPGRADE_FROM` names.
    pub fn given() -> anyhow::Result<Option<Self>> {
        let Some(dir) = std::env::var_os("UPGRADE_FROM") else {
            return Ok(None);
        };
        let dir = PathBuf::from(dir);
        for name in [AGENT, APPROVER] {
            let binary = dir.join(name);
            anyhow::ensure!(
                binary.is_file(),
                "UPGRADE_FROM: {} is not there; tests/compat/build.sh prints a folder that has it",
                binary.display()
            );
        }
        Ok(Some(Self(dir)))
    }

    pub fn agent(&self) -> PathBuf {
        self.0.join(AGENT)
    }

    pub fn approver(&self) -> PathBuf {
        self.0.join(APPROVER)
    }

    /// As a package does it: whole under a name of its own, then over the old one, which may be running. Another process
    /// writes it: while one of ours holds a binary open for writing, none of our children could be started from it.
    pub(super) fn put(&self, name: &str, dir: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(dir)?;
        let new = dir.join(format!("{name}.new"));
        let installed = Command::new("install")
            .args(["-m", "0755"])
            .arg(self.0.join(name))
            .arg(&new)
            .status()
            .context("install cannot be started")?;
        anyhow::ensure!(installed.success(), "{name} was not installed: {installed}");
        Ok(fs::rename(new, dir.join(name))?)
    }
}
