//! The command line. Owns what can be said there; what follows from it is in the other modules.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use cluster::log::{Format, Level};
use cluster::proxy::Proxy;
use cluster::settings::Settings;
use cluster::spans::{certificate_duration, poll_interval};
use jiff::SignedDuration;
use serde_json::{Map, Value};

use crate::machine;
use crate::paths::Paths;
use crate::vrf::{Vrf, vrf};

/// Gives a firewall its access to its seed, and keeps it.
#[derive(Debug, Parser)]
#[command(name = "firewall-agent", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    /// Folder of the bootstrap kubeconfig and of the kubeconfigs written for firewall-controller
    #[arg(
        long,
        global = true,
        env = "FIREWALL_AGENT_CONFIG_DIR",
        default_value = "/etc/firewall-controller"
    )]
    pub config_dir: PathBuf,
    /// Folder of the agent's own files: key, certificates, state
    #[arg(
        long,
        global = true,
        env = "FIREWALL_AGENT_STATE_DIR",
        default_value = "/var/lib/firewall-agent"
    )]
    pub state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run until stopped
    Run(RunArgs),
    /// Show the state of the agent on this machine
    Status {
        /// For people or for programs
        #[arg(long, env = "FIREWALL_AGENT_OUTPUT", value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Ask the running agent for a new certificate now
    Renew,
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Life that is asked for each certificate (600s to 365d); the approver may want another, and the seed may give less
    #[arg(long, env = "FIREWALL_AGENT_CERTIFICATE_DURATION", default_value = "30d", value_parser = certificate_duration)]
    pub certificate_duration: SignedDuration,
    /// Program and arguments run when the kubeconfig for the seed changed (no shell); empty for none
    #[arg(
        long,
        env = "FIREWALL_AGENT_HOOK",
        default_value = "systemctl try-restart firewall-controller.service"
    )]
    pub hook: String,
    /// How often the shoot is asked for news, in case a watch did not tell them (1s to 1h)
    #[arg(long, env = "FIREWALL_AGENT_POLL_INTERVAL", default_value = "5m", value_parser = poll_interval)]
    pub poll_interval: SignedDuration,
    /// VRF to run in: a name, `none`, or `auto`: the one that firewall-controller.service names (`ip vrf exec <name>`), if any
    #[arg(long, env = "FIREWALL_AGENT_VRF", default_value = "auto", value_parser = vrf)]
    pub vrf: Vrf,
    /// How log lines look
    #[arg(long, env = "FIREWALL_AGENT_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: Format,
    /// How much is said in the log. While it runs, each SIGUSR1 makes that one step more, and after `trace` what it began with
    #[arg(long, env = "FIREWALL_AGENT_LOG_LEVEL", value_enum, default_value = "info")]
    pub log_level: Level,
    /// Print each setting, and whether flag, environment or default set it, as JSON; then end. Nobody is asked anything
    #[arg(long)]
    pub print_config: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

impl Args {
    pub fn paths(&self) -> Paths {
        Paths {
            config: self.config_dir.clone(),
            state: self.state_dir.clone(),
        }
    }
}

impl RunArgs {
    pub fn settings(&self, paths: Paths) -> machine::Settings {
        let hook = self.hook.split_whitespace().map(str::to_owned).collect();
        machine::Settings {
            paths,
            certificate_duration: self.certificate_duration,
            hook,
            poll_interval: self.poll_interval,
        }
    }
}

impl Settings for Args {
    fn check(&self) -> Result<(), String> {
        for (flag, variable, dir) in [
            ("--config-dir", "FIREWALL_AGENT_CONFIG_DIR", &self.config_dir),
            ("--state-dir", "FIREWALL_AGENT_STATE_DIR", &self.state_dir),
        ] {
            // What is written there for others names files by their path.
            if !dir.is_absolute() {
                return Err(format!(
                    "{flag} ({variable}) is {dir:?}: give a path that begins with /"
                ));
            }
        }
        if self.config_dir == self.state_dir {
            return Err(format!(
                "--config-dir and --state-dir are both {:?}: what others read stands apart from what is the agent's own",
                self.state_dir
            ));
        }
        // Whoever merely looks at the agent asks no server.
        match self.command {
            Command::Run(_) => Proxy::from_environment().map(drop).map_err(|e| e.to_string()),
            Command::Status { .. } | Command::Renew => Ok(()),
        }
    }

    fn surroundings(&self) -> Map<String, Value> {
        cluster::proxy::shown()
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_its_defaults_parse() {
        Args::command().debug_assert();
        let args = Args::parse_from(["firewall-agent", "run"]);
        let Command::Run(run) = &args.command else {
            panic!("not run")
        };
        assert_eq!(run.certificate_duration, SignedDuration::from_hours(720));
        assert_eq!(run.settings(args.paths()).hook.len(), 3);
    }

    #[test]
    fn folders_are_absolute_and_two() {
        let checked = |more: &[&str]| {
            let args = ["firewall-agent", "run"].iter().chain(more);
            Args::parse_from(args).check()
        };
        checked(&[]).unwrap();
        let relative = checked(&["--state-dir", "state"]).unwrap_err();
        assert!(relative.contains("FIREWALL_AGENT_STATE_DIR"), "{relative}");
        checked(&["--state-dir", "/a", "--config-dir", "/a"]).unwrap_err();
    }

    #[test]
    fn an_empty_hook_is_none() {
        let args = Args::parse_from(["firewall-agent", "run", "--hook", ""]);
        let Command::Run(run) = &args.command else {
            panic!("not run")
        };
        assert!(run.settings(args.paths()).hook.is_empty());
    }
}
