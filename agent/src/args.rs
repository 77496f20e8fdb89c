//! The command line. Owns what can be said there; what follows from it is in the other modules.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use cluster::log::Format;
use jiff::{SignedDuration, Span, SpanRelativeTo};

use crate::machine::Settings;
use crate::paths::Paths;

const DURATION_MIN: SignedDuration = SignedDuration::from_secs(600);
const DURATION_MAX: SignedDuration = SignedDuration::from_hours(365 * 24);
const POLL_MIN: SignedDuration = SignedDuration::from_secs(1);
const POLL_MAX: SignedDuration = SignedDuration::from_hours(1);

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
        #[arg(long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Ask the running agent for a new certificate now
    Renew,
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Life that is asked for each certificate (600s to 365d); the seed may give less
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
    #[arg(long, env = "FIREWALL_AGENT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
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
    pub fn settings(&self, paths: Paths) -> Settings {
        let hook = self.hook.split_whitespace().map(str::to_owned).collect();
        Settings {
            paths,
            certificate_duration: self.certificate_duration,
            hook,
            poll_interval: self.poll_interval,
        }
    }
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

fn certificate_duration(text: &str) -> Result<SignedDuration, String> {
    let duration = duration(text, "720h or 30d")?;
    if (DURATION_MIN..=DURATION_MAX).contains(&duration) {
        Ok(duration)
    } else {
        Err("out of range: 600s at least, 365d at most".into())
    }
}

fn poll_interval(text: &str) -> Result<SignedDuration, String> {
    let duration = duration(text, "30s or 5m")?;
    if (POLL_MIN..=POLL_MAX).contains(&duration) {
        Ok(duration)
    } else {
        Err("out of range: 1s at least, 1h at most".into())
    }
}

fn duration(text: &str, example: &str) -> Result<SignedDuration, String> {
    let span: Span = text
        .parse()
        .map_err(|_| format!("not a duration; write for example {example}"))?;
    span.to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|e| e.to_string())
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
    fn a_certificates_life_is_between_ten_minutes_and_a_year() {
        for good in ["600s", "10m", "720h", "30d", "365d", "52w"] {
            assert!(certificate_duration(good).is_ok(), "{good}");
        }
        for bad in ["", "599s", "366d", "-30d", "30", "a month", "1y"] {
            assert!(certificate_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn b3_the_shoot_is_asked_between_each_second_and_each_hour() {
        for good in ["1s", "5m", "1h"] {
            assert!(poll_interval(good).is_ok(), "{good}");
        }
        for bad in ["0s", "61m", "-5m", "5", ""] {
            assert!(poll_interval(bad).is_err(), "{bad}");
        }
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
