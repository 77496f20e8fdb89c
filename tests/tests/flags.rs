//! Flags and environment of both programs: that each has both, under one name, and the pages that list them.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

use std::fs;
use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

/// An operator's own, for which kubectl's variable stands.
const OTHERS: [(&str, &str, &str); 2] = [
    ("export", "kubeconfig", "KUBECONFIG"),
    ("userdata", "kubeconfig", "KUBECONFIG"),
];
/// Questions, and no settings.
const QUESTIONS: [&str; 3] = ["help", "version", "print-config"];

fn programs() -> [Command; 2] {
    [server::args::Args::command(), agent::Args::command()]
}

/// The flags of a command itself, without those of the commands below it.
fn flags(command: &Command) -> Vec<&Arg> {
    let flags = command.get_arguments().filter(|arg| arg.get_long().is_some());
    flags
        .filter(|arg| !QUESTIONS.contains(&arg.get_long().unwrap()))
        .collect()
}

fn variable(arg: &Arg) -> String {
    arg.get_env().unwrap_or_default().to_string_lossy().into_owned()
}

#[test]
fn each_flag_is_an_environment_variable_of_the_same_name() {
    let mut count = 0;
    for program in programs() {
        let prefix = program.get_name().to_uppercase().replace('-', "_");
        for command in std::iter::once(&program).chain(program.get_subcommands()) {
            for arg in flags(command) {
                let flag = arg.get_long().unwrap();
                let other = OTHERS
                    .iter()
                    .find(|(of, name, _)| (*of, *name) == (command.get_name(), flag));
                let wanted = match other {
                    Some((_, _, variable)) => (*variable).to_owned(),
                    None => format!("{prefix}_{}", flag.to_uppercase().replace('-', "_")),
                };
                assert_eq!(
                    variable(arg),
                    wanted,
                    "{} {} --{flag}",
                    program.get_name(),
                    command.get_name()
                );
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}

fn words(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.replace('\n', " ").replace('|', "\\|")
}

fn row(arg: &Arg) -> String {
    let value = match arg.get_possible_values() {
        values if values.is_empty() || !arg.get_action().takes_values() => String::new(),
        values => {
            let names: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
            format!(" One of {}.", names.join(", "))
        }
    };
    let default: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    let default = match default.join(",") {
        none if none.is_empty() => String::new(),
        default => format!("`{default}`"),
    };
    let meaning = words(arg.get_long_help().or_else(|| arg.get_help()));
    let meaning = meaning.trim_end_matches('.');
    format!(
        "| `--{}` | `{}` | {default} | {meaning}.{value} |\n",
        arg.get_long().unwrap(),
        variable(arg)
    )
}

/// Not the agent's own, and so no flags.
const PROXY: &str = "
## From the environment alone

Of `firewall-agent run`, with the names and the meaning that they have for every program in Go
([proxies and addresses](../operations.md#proxies-and-addresses)). A password in them is shown nowhere.

| variable | meaning |
|---|---|
| `HTTPS_PROXY`, else `https_proxy` | The HTTP proxy through which API servers are reached: `http://[<user>:<password>@]<host>[:<port>]`. |
| `NO_PROXY`, else `no_proxy` | Who is reached past it: domains, addresses, networks, with or without a port, by commas; `*` for all. |
";

fn page(program: &Command) -> String {
    let name = program.get_name();
    let mut page = format!(
        "# {name}: flags and environment\n\n\
        {}.\n\nA flag outdoes its variable. What cannot be is refused at the start (exit code 2); `{name} run\n\
        --print-config` shows what is in force, and whose word it is. No flag is a secret. This page is written by a test\n\
        (`UPDATE_DOCS=1 cargo test -p tests --test flags`) from the command line itself.\n",
        words(program.get_about()).trim_end_matches('.')
    );
    let table = "| flag | variable | default | meaning |\n|---|---|---|---|\n";
    let global = flags(program);
    if !global.is_empty() {
        page += &format!("\n## Of every command\n\n{table}");
        page.extend(global.into_iter().map(row));
    }
    if name == "firewall-agent" {
        page += PROXY;
    }
    for command in program.get_subcommands() {
        page += &format!(
            "\n## {name} {}\n\n{}.\n",
            command.get_name(),
            words(command.get_about()).trim_end_matches('.')
        );
        let flags = flags(command);
        if !flags.is_empty() {
            page += &format!("\n{table}");
            page.extend(flags.into_iter().map(row));
        }
    }
    page
}

#[test]
fn the_pages_of_flags_are_fresh() {
    for program in programs() {
        let name = format!("docs/reference/{}.md", program.get_name());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&name);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, page(&program)).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            written,
            page(&program),
            "{name} is not fresh: UPDATE_DOCS=1 cargo test -p tests --test flags"
        );
    }
}
