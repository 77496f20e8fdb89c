//! The place that the agent stands in while it runs, and whether it is still the right one. `ip vrf exec` binds each new
//! socket to the interface that had the VRF's name then; a VRF that is made anew has another index, and no socket gets out.

use std::fs;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;
use tokio::time::sleep;

use super::{Vrf, of_unit};

const LOOKED_AGAIN: Duration = Duration::from_secs(10);
const INTERFACES: &str = "sys/class/net";

/// Where the agent is, and what it was to be by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    wanted: Vrf,
    vrf: Option<Entered>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entered {
    name: String,
    /// None: it was gone already when it was looked at.
    index: Option<u32>,
}

/// What the machine says by now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Now {
    /// Of the VRF that the agent stands in.
    index: Option<u32>,
    /// The VRF that the unit names, if that is certain and it exists.
    unit: Option<String>,
}

/// Why the place is not the right one any more. Only another start leads to the right one.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Moved {
    #[error(
        "VRF {name} was made anew (interface {was} before, {is} now): the agent ends, to be started in the new one"
    )]
    MadeAnew { name: String, was: String, is: u32 },
    #[error(
        "firewall-controller.service is in VRF {unit} now, and the agent in {own}: it ends, to be started in the other"
    )]
    Elsewhere { unit: String, own: String },
}

impl Place {
    /// `index`: as it was before it was entered.
    pub(super) fn new(wanted: Vrf, vrf: Option<(String, Option<u32>)>) -> Self {
        let vrf = vrf.map(|(name, index)| Entered { name, index });
        Self { wanted, vrf }
    }

    /// Of who does not run for long.
    pub(crate) fn any() -> Self {
        Self::new(Vrf::None, None)
    }

    pub(crate) fn vrf(&self) -> Option<&str> {
        self.vrf.as_ref().map(|vrf| vrf.name.as_str())
    }

    /// Comes back when this place is not the right one any more.
    pub(crate) async fn moved(&self) -> Moved {
        loop {
            sleep(LOOKED_AGAIN).await;
            if let Some(moved) = self.judge(self.look(Path::new("/"))) {
                return moved;
            }
        }
    }

    fn look(&self, root: &Path) -> Now {
        let unit = match self.wanted {
            // What cannot be read with certainty is no reason to leave.
            Vrf::Auto => of_unit(root).ok().flatten(),
            Vrf::None | Vrf::Named(_) => None,
        };
        Now {
            index: self.vrf().and_then(|name| index(root, name)),
            unit: unit.filter(|name| index(root, name).is_some()),
        }
    }

    /// A VRF that is absent may come back, and a unit that is gone names no better place: both are stayed for.
    fn judge(&self, now: Now) -> Option<Moved> {
        if let Some(unit) = now.unit
            && self.vrf() != Some(&unit)
        {
            let own = self.vrf().map_or_else(|| "none".to_owned(), |own| format!("VRF {own}"));
            return Some(Moved::Elsewhere { unit, own });
        }
        let (own, is) = (self.vrf.as_ref()?, now.index?);
        (own.index != Some(is)).then(|| Moved::MadeAnew {
            name: own.name.clone(),
            was: own.index.map_or_else(|| "none".to_owned(), |was| was.to_string()),
            is,
        })
    }
}

/// By which the kernel tells an interface from an earlier one of its name.
pub(super) fn index(root: &Path, name: &str) -> Option<u32> {
    let text = fs::read_to_string(root.join(INTERFACES).join(name).join("ifindex")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(wanted: Vrf, vrf: Option<(&str, u32)>) -> Place {
        Place::new(wanted, vrf.map(|(name, index)| (name.to_owned(), Some(index))))
    }

    fn now(index: Option<u32>, unit: Option<&str>) -> Now {
        let unit = unit.map(str::to_owned);
        Now { index, unit }
    }

    #[test]
    fn a_vrf_that_is_made_anew_is_left_and_one_that_is_absent_is_waited_for() {
        for wanted in [Vrf::Auto, Vrf::Named("v".to_owned())] {
            let place = place(wanted, Some(("v", 7)));
            assert_eq!(place.judge(now(Some(7), None)), None, "the same");
            assert_eq!(place.judge(now(None, None)), None, "absent");
            let moved = place.judge(now(Some(9), None)).unwrap().to_string();
            assert!(moved.contains("VRF v ") && moved.contains("7 before, 9 now"), "{moved}");
        }
        // It went while it was entered: what comes is another one.
        let gone = Place::new(Vrf::Auto, Some(("v".to_owned(), None)));
        assert_eq!(gone.judge(now(None, None)), None);
        assert!(gone.judge(now(Some(9), None)).is_some());
    }

    #[test]
    fn the_unit_is_followed_where_it_names_another_vrf_and_not_where_it_names_none() {
        let inside = place(Vrf::Auto, Some(("v", 7)));
        assert_eq!(inside.judge(now(Some(7), Some("v"))), None, "the same");
        assert_eq!(inside.judge(now(Some(7), None)), None, "the unit is gone, or unclear");
        let moved = inside.judge(now(Some(7), Some("w"))).unwrap().to_string();
        assert!(moved.contains("VRF w now") && moved.contains("in VRF v:"), "{moved}");
        assert!(inside.judge(now(None, Some("w"))).is_some(), "its own is gone");

        let outside = place(Vrf::Auto, None);
        assert_eq!(outside.judge(now(None, None)), None);
        let moved = outside.judge(now(None, Some("w"))).unwrap().to_string();
        assert!(moved.contains("VRF w now") && moved.contains("in none:"), "{moved}");
    }

    #[test]
    fn what_is_not_certain_or_not_there_is_not_followed_and_auto_alone_looks_at_the_unit() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let unit = |vrf: &str| {
            let text = format!("[Service]\nExecStart=/bin/ip vrf exec {vrf} x\n");
            put("etc/systemd/system/firewall-controller.service", &text);
        };
        let auto = place(Vrf::Auto, Some(("v", 7)));
        assert_eq!(auto.look(root), now(None, None), "nothing is there");
        put("sys/class/net/v/ifindex", "7\n");
        unit("w");
        assert_eq!(auto.look(root), now(Some(7), None), "one that does not exist");
        put("sys/class/net/w/ifindex", "8\n");
        assert_eq!(auto.look(root), now(Some(7), Some("w")));
        let named = place(Vrf::Named("v".to_owned()), Some(("v", 7)));
        assert_eq!(named.look(root), now(Some(7), None), "named");
        assert_eq!(place(Vrf::None, None).look(root), now(None, None), "none");
        unit("$WHICH");
        assert_eq!(auto.look(root), now(Some(7), None), "unclear");
    }
}
