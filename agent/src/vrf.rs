//! The VRF that the agent runs in, and the rights that are for entering it alone. Owns what is looked at on the machine;
//! how a unit is read is `core::unit`'s business.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_no_new_privs};
use thiserror::Error;

use crate::core::{is_vrf_name, vrf_of};

mod place;

pub use place::{Moved, Place};

/// What runs where the agent has to run.
const UNIT: &str = "firewall-controller.service";
/// Where systemd looks for units. What stands in an earlier one hides its namesake in a later one.
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// How the command after `ip vrf exec` knows that it is that command: the VRF's name and the index that it had before.
const ENTERED: &str = "VRF_ENTERED";

/// Which VRF is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vrf {
    /// The one that firewall-controller's unit names, if any.
    Auto,
    None,
    Named(String),
}

#[derive(Debug, Error)]
pub enum VrfError {
    #[error("{path} cannot be read for the VRF: {problem}")]
    Read { path: PathBuf, problem: io::Error },
    #[error("{UNIT}: {0}: name it with --vrf (FIREWALL_AGENT_VRF), or none")]
    Unclear(String),
    #[error("VRF {0} is not there (yet): looked for again at the next start; is it up, and the one that is meant?")]
    Absent(String),
    #[error("`ip vrf exec {name}` cannot be run: {problem}; is iproute2 installed?")]
    Exec { name: String, problem: io::Error },
    #[error("the rights for entering a VRF cannot be dropped: {0}")]
    Rights(io::Error),
}

/// What `--vrf` may say.
pub fn vrf(text: &str) -> Result<Vrf, String> {
    match text {
        "auto" => Ok(Vrf::Auto),
        "none" => Ok(Vrf::None),
        name if is_vrf_name(name) => Ok(Vrf::Named(name.to_owned())),
        _ => Err("not a VRF's name; give one, auto or none".to_owned()),
    }
}

/// Comes back in the VRF that is wanted, or does not come back: this very program begins anew in it, as the same process.
/// In the end there is nothing left that only this needed. To be called while there is one thread. Gives the place it is in.
pub fn enter(wanted: &Vrf) -> Result<Place, VrfError> {
    let name = match wanted {
        Vrf::None => None,
        Vrf::Named(name) => Some(name.clone()),
        Vrf::Auto => of_unit(Path::new("/"))?,
    };
    let vrf = match name {
        Some(name) => match entered(&name) {
            Some(index) => Some((name, index)),
            None => return Err(begin_anew(&name)),
        },
        None => None,
    };
    drop_rights().map_err(VrfError::Rights)?;
    Ok(Place::new(wanted.clone(), vrf))
}

/// If it is in that VRF: the VRF's index, as far as it is known.
fn entered(name: &str) -> Option<Option<u32>> {
    let told = std::env::var(ENTERED).unwrap_or_default();
    if let Some((told, index)) = told.split_once(':')
        && told == name
    {
        return Some(index.parse().ok());
    }
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    is_cgroup_of(name, &cgroups).then(|| place::index(Path::new("/"), name))
}

/// Of a process that somebody else started with `ip vrf exec`.
fn is_cgroup_of(name: &str, cgroups: &str) -> bool {
    let end = format!("/vrf/{name}");
    cgroups
        .lines()
        .any(|line| line.starts_with("0::") && line.ends_with(&end))
}

fn begin_anew(name: &str) -> VrfError {
    // `ip` says no more than that the name is invalid.
    let Some(index) = place::index(Path::new("/"), name) else {
        return VrfError::Absent(name.to_owned());
    };
    let exec = || {
        let program = std::env::current_exe()?;
        let mut command = Command::new("ip");
        command.args(["vrf", "exec", name]).arg(program);
        command.args(std::env::args_os().skip(1));
        command.env(ENTERED, format!("{name}:{index}"));
        Err::<(), _>(command.exec())
    };
    let problem = exec().err().unwrap_or_else(|| io::Error::other("it came back"));
    VrfError::Exec {
        name: name.to_owned(),
        problem,
    }
}

/// What entering takes, and nothing else here does. That nothing which is executed later gets it back is for children too.
fn drop_rights() -> io::Result<()> {
    let only_here = CapabilitySet::NET_ADMIN | CapabilitySet::BPF | CapabilitySet::SYS_ADMIN;
    set_no_new_privs(true)?;
    let mut held = capabilities(None)?;
    held.effective.remove(only_here);
    held.permitted.remove(only_here);
    held.inheritable.remove(only_here);
    Ok(set_capabilities(None, held)?)
}

/// The VRF that firewall-controller's unit names, below this root.
fn of_unit(root: &Path) -> Result<Option<String>, VrfError> {
    let folders = FOLDERS.map(|folder| root.join(folder));
    let mut texts = Vec::new();
    for folder in &folders {
        if let Some(text) = read(&folder.join(UNIT))? {
            texts.push(text);
            break;
        }
    }
    // Drop-ins of a unit that there is not say nothing.
    if texts.is_empty() {
        return Ok(None);
    }
    let mut drop_ins = BTreeMap::new();
    for folder in folders.iter().rev() {
        let Ok(entries) = fs::read_dir(folder.join(format!("{UNIT}.d"))) else {
            continue;
        };
        let paths = entries.flatten().map(|entry| entry.path());
        let named = paths.filter(|path| path.extension() == Some(OsStr::new("conf")));
        drop_ins.extend(named.filter_map(|path| Some((path.file_name()?.to_owned(), path))));
    }
    for path in drop_ins.values() {
        texts.extend(read(path)?);
    }
    vrf_of(texts.iter().map(String::as_str)).map_err(VrfError::Unclear)
}

/// One that is masked is a link to /dev/null, and empty.
fn read(path: &Path) -> Result<Option<String>, VrfError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(problem) => Err(VrfError::Read {
            path: path.to_owned(),
            problem,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, vrf: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(
            path,
            format!("[Service]\nExecStart=\nExecStart=/bin/ip vrf exec {vrf} x\n"),
        )
        .unwrap();
    }

    #[test]
    fn the_unit_is_found_where_systemd_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let found = || of_unit(root).unwrap();
        assert_eq!(found(), None);
        put(root, "etc/systemd/system/firewall-controller.service.d/a.conf", "a");
        assert_eq!(found(), None, "a drop-in without a unit");
        fs::remove_dir_all(root.join("etc")).unwrap();

        put(root, "usr/lib/systemd/system/firewall-controller.service", "lib");
        assert_eq!(found().as_deref(), Some("lib"));
        put(root, "run/systemd/system/firewall-controller.service", "run");
        assert_eq!(found().as_deref(), Some("run"));
        put(root, "etc/systemd/system/firewall-controller.service", "etc");
        assert_eq!(found().as_deref(), Some("etc"));

        put(
            root,
            "usr/lib/systemd/system/firewall-controller.service.d/50.conf",
            "d50",
        );
        assert_eq!(found().as_deref(), Some("d50"));
        put(root, "etc/systemd/system/firewall-controller.service.d/10.conf", "d10");
        assert_eq!(found().as_deref(), Some("d50"), "by name, wherever they are");
        put(root, "etc/systemd/system/firewall-controller.service.d/50.conf", "e50");
        assert_eq!(found().as_deref(), Some("e50"), "one hides its namesake");
        put(root, "etc/systemd/system/firewall-controller.service.d/90.off", "no");
        assert_eq!(found().as_deref(), Some("e50"), "no drop-in");
        put(
            root,
            "run/systemd/system/firewall-controller.service.d/90.conf",
            "$WHICH",
        );
        let unclear = of_unit(root).unwrap_err().to_string();
        assert!(unclear.contains("FIREWALL_AGENT_VRF"), "{unclear}");
    }

    #[test]
    fn a_unit_that_is_masked_names_none() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "usr/lib/systemd/system/firewall-controller.service", "lib");
        let etc = dir.path().join("etc/systemd/system");
        fs::create_dir_all(&etc).unwrap();
        std::os::unix::fs::symlink("/dev/null", etc.join(UNIT)).unwrap();
        assert_eq!(of_unit(dir.path()).unwrap(), None);
    }

    #[test]
    fn who_was_started_in_a_vrf_is_seen_by_its_cgroup() {
        let own = "1:name=systemd:/x/vrf/vrf2\n0::/system.slice/firewall-agent.service/vrf/vrf1\n";
        assert!(is_cgroup_of("vrf1", own));
        for other in ["vrf2", "vrf11", "rf1", "1"] {
            assert!(!is_cgroup_of(other, own), "{other}");
        }
    }

    #[test]
    fn a_vrf_is_a_name_or_one_of_two_words() {
        assert_eq!(vrf("auto"), Ok(Vrf::Auto));
        assert_eq!(vrf("none"), Ok(Vrf::None));
        assert_eq!(vrf("vrf104009"), Ok(Vrf::Named("vrf104009".to_owned())));
        for odd in ["", "a b", "a/b", "-x", "..", "sixteen-letters-"] {
            vrf(odd).unwrap_err();
        }
    }
}
