//! What a program is told by flags and environment: read, refused in one sentence that names flag, variable and value, or
//! shown with where it came from. Knows no setting; each program declares its own.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use serde_json::{Map, Value, json};

/// What is said wrongly.
const MISUSED: u8 = 2;
/// The flag that shows the settings: a question, and no setting.
const PRINT: &str = "print_config";

/// Settings that no value is wrong of, but which do not go together.
pub trait Settings: CommandFactory + FromArgMatches {
    fn check(&self) -> Result<(), String>;

    /// What the environment says under names that are not the program's own, as `--print-config` shows it.
    fn surroundings(&self) -> Map<String, Value> {
        Map::new()
    }
}

/// What the command line and the environment say, or how the process ends instead. Nobody is asked anything.
pub fn read<S: Settings>() -> Result<S, ExitCode> {
    let mut command = S::command();
    let program = command.get_name().to_owned();
    let refused = |sentence: &str| {
        // Nobody is left to be told that this failed too.
        let _ = writeln!(std::io::stderr(), "{program}: {sentence}");
        ExitCode::from(MISUSED)
    };
    let matches = match command.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(asked) if !asked.use_stderr() => {
            let _ = asked.print();
            return Err(ExitCode::SUCCESS);
        }
        Err(error) => return Err(refused(&refusal(&command, &error))),
    };
    let settings = S::from_arg_matches(&matches).map_err(|error| refused(&refusal(&command, &error)))?;
    settings.check().map_err(|why| refused(&why))?;
    if asks_for_print(&matches) {
        let mut shown = shown(&mut command, &matches);
        shown.extend(settings.surroundings());
        let shown = format!("{:#}\n", Value::from(shown));
        return Err(match std::io::stdout().write_all(shown.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        });
    }
    Ok(settings)
}

/// Says which variables have no effect.
pub fn warn_of_strangers(command: &Command) {
    let names = std::env::vars_os().map(|(name, _)| name);
    for variable in strangers(command, names) {
        tracing::warn!("environment variable {variable} is no setting of this version and has no effect: see --help");
    }
}

/// Variables with the program's prefix that are none of its settings: misspelt, or another version's. Those that Kubernetes
/// sets for a Service of the program's name are its own business.
fn strangers(command: &Command, variables: impl Iterator<Item = OsString>) -> Vec<String> {
    let prefix = prefix(command);
    let known = |name: &str| all(command).any(|arg| arg.get_env().is_some_and(|env| env == name));
    variables
        .filter_map(|name| name.into_string().ok())
        .filter(|name| {
            let rest = name.strip_prefix(&prefix);
            rest.is_some_and(|rest| !rest.starts_with("SERVICE_") && !rest.starts_with("PORT"))
        })
        .filter(|name| !known(name))
        .collect()
}

/// What the variables of a program begin with.
fn prefix(command: &Command) -> String {
    format!("{}_", command.get_name().replace('-', "_").to_uppercase())
}

fn all(command: &Command) -> impl Iterator<Item = &Arg> {
    let of_subcommands = command.get_subcommands().flat_map(Command::get_arguments);
    command.get_arguments().chain(of_subcommands)
}

fn asks_for_print(matches: &ArgMatches) -> bool {
    let (_, asked) = leaf(matches);
    matches!(asked.try_get_one::<bool>(PRINT), Ok(Some(true)))
}

/// The subcommand that was called, and what was said to it.
fn leaf(matches: &ArgMatches) -> (Option<&str>, &ArgMatches) {
    matches
        .subcommand()
        .map_or((None, matches), |(name, of)| (Some(name), of))
}

/// Each setting as it is in force, and whose word that is.
fn shown(command: &mut Command, matches: &ArgMatches) -> Map<String, Value> {
    command.build();
    let (name, matches) = leaf(matches);
    let called = name.and_then(|name| command.find_subcommand(name)).unwrap_or(command);
    let settings = called.get_arguments().filter(|arg| arg.get_env().is_some());
    settings
        .map(|arg| {
            let id = arg.get_id().as_str();
            let said = matches.get_raw(id).into_iter().flatten();
            let mut said: Vec<Value> = said.map(|value| json!(value.to_string_lossy())).collect();
            let many = matches!(arg.get_action(), clap::ArgAction::Append);
            let value = match said.pop() {
                None => Value::Null,
                Some(only) if !many => only,
                Some(last) => {
                    said.push(last);
                    said.into()
                }
            };
            let from = match matches.value_source(id) {
                Some(ValueSource::CommandLine) => format!("--{}", flag(arg)),
                Some(ValueSource::EnvVariable) => variable(arg),
                _ => "default".to_owned(),
            };
            (flag(arg), json!({"value": value, "from": from}))
        })
        .collect()
}

fn flag(arg: &Arg) -> String {
    arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned()
}

fn variable(arg: &Arg) -> String {
    arg.get_env()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// One sentence for a value that cannot be; what is wrong in another way clap says better.
fn refusal(command: &Command, error: &clap::Error) -> String {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let known = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    let (Some(named), true) = (said(ContextKind::InvalidArg), known) else {
        let text = error.render().to_string();
        return text.trim_start_matches("error: ").trim_end().to_owned();
    };
    let arg = all(command).find(|arg| arg.to_string() == named);
    let name = match arg.filter(|arg| arg.get_env().is_some()) {
        Some(arg) => format!("--{} ({})", flag(arg), variable(arg)),
        None => named.to_owned(),
    };
    let value = match said(ContextKind::InvalidValue) {
        None | Some("") => "is empty".to_owned(),
        // Where somebody is named there may be a password beside him.
        Some(value) if value.contains('@') => "is refused (not shown)".to_owned(),
        Some(value) => format!("is {value:?}"),
    };
    let wanted = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => format!("give one of {}", values.join(", ")),
        _ => std::error::Error::source(error).map_or_else(|| "give a value".to_owned(), ToString::to_string),
    };
    format!("{name} {value}: {wanted}")
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, value_parser};

    use super::*;

    fn command() -> Command {
        let setting = |name: &'static str, env: &'static str| Arg::new(name).long(name).env(env);
        let run = Command::new("run")
            .arg(
                setting("pause", "A_PROGRAM_PAUSE")
                    .value_parser(value_parser!(u8))
                    .default_value("5"),
            )
            .arg(
                setting("names", "A_PROGRAM_NAMES")
                    .action(ArgAction::Append)
                    .value_delimiter(','),
            )
            .arg(setting("dry", "A_PROGRAM_DRY").action(ArgAction::SetTrue))
            .arg(setting("kind", "A_PROGRAM_KIND").value_parser(["one", "two"]));
        let place = setting("place", "A_PROGRAM_PLACE").global(true).default_value("here");
        Command::new("a-program").arg(place).subcommand(run)
    }

    fn refused(args: &[&str]) -> String {
        let mut command = command();
        let error = command.try_get_matches_from_mut(args).unwrap_err();
        refusal(&command, &error)
    }

    #[test]
    fn each_setting_is_shown_with_whose_word_it_is() {
        let mut command = command();
        let args = ["a-program", "run", "--names", "a,b", "--place", "there", "--kind=one"];
        let matches = command.try_get_matches_from_mut(args).unwrap();
        let wanted = json!({
            "pause": {"value": "5", "from": "default"},
            "names": {"value": ["a", "b"], "from": "--names"},
            "dry": {"value": "false", "from": "default"},
            "kind": {"value": "one", "from": "--kind"},
            "place": {"value": "there", "from": "--place"},
        });
        assert_eq!(Value::from(shown(&mut command, &matches)), wanted);
    }

    #[test]
    fn a_refusal_names_flag_variable_value_and_what_is_wanted() {
        for (args, wanted) in [
            (
                ["a-program", "run", "--pause", "300"],
                ["--pause (A_PROGRAM_PAUSE) is \"300\": ", "255"],
            ),
            (
                ["a-program", "run", "--kind", "six"],
                ["--kind (A_PROGRAM_KIND) is \"six\": ", "one, two"],
            ),
            (
                ["a-program", "run", "--kind", ""],
                ["--kind (A_PROGRAM_KIND) is empty: ", "one, two"],
            ),
            (
                ["a-program", "run", "--kind", "u:secret@h"],
                ["(not shown): ", "one, two"],
            ),
            (["a-program", "run", "--kinds", "one"], ["--kinds", "--kind"]),
        ] {
            let said = refused(&args);
            assert!(wanted.iter().all(|word| said.contains(word)), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn a_variable_that_is_no_setting_is_named_unless_kubernetes_set_it() {
        let variables = [
            "A_PROGRAM_PAUSE",
            "A_PROGRAM_PLACE",
            "A_PROGRAM_PUASE",
            "A_PROGRAM_SERVICE_HOST",
            "A_PROGRAM_PORT_8080_TCP",
            "PATH",
        ];
        let found = strangers(&command(), variables.into_iter().map(OsString::from));
        assert_eq!(found, ["A_PROGRAM_PUASE"]);
    }
}
