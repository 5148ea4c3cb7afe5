//! Flags from environment variables. The command line takes precedence.
//!
//! vdoctl ignores a variable that conflicts with a typed flag, that requires a flag which is not set, or that
//! turns a switch off. So a password can stay in a variable for all commands. Typed flags are always checked.

use std::ffi::OsString;

use clap::{
    Arg, ArgAction, ArgMatches, Command, Id,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

/// Removes variables that conflict with the typed flags. `bare` creates the same command line without variables.
pub(crate) fn settled(
    command: Command,
    bare: impl FnOnce() -> Command,
    line: &[OsString],
) -> Command {
    if !std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("VDOCTL_")) {
        return command;
    }
    let bare = bare();
    // The real parser reports an invalid command line.
    match bare.clone().ignore_errors(true).try_get_matches_from(line) {
        Ok(typed) => below(command, &bare, &typed),
        Err(_) => command,
    }
}

fn below(command: Command, bare: &Command, typed: &ArgMatches) -> Command {
    let mut command = command;
    for id in ignored(&command, bare, typed) {
        command = command.mut_arg(id, |argument| argument.env(None::<&'static str>));
    }
    let Some((name, typed)) = typed.subcommand() else { return command };
    let Some(bare) = bare.find_subcommand(name) else { return command };
    command.mut_subcommand(name, |command| below(command, bare, typed))
}

/// The flags of one command whose variables vdoctl ignores.
fn ignored(command: &Command, bare: &Command, typed: &ArgMatches) -> Vec<Id> {
    let is_typed = |argument: &&Arg| {
        typed.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let typed: Vec<&Arg> = command.get_arguments().filter(is_typed).collect();
    let is_set = |argument: &&Arg| {
        let set = variable(argument).is_some();
        set && !typed.iter().any(|typed| typed.get_id() == argument.get_id())
    };
    let (mut over, mut counts): (Vec<&Arg>, Vec<&Arg>) = command
        .get_arguments()
        .filter(is_set)
        .partition(|set| is_off(set) || typed.iter().any(|typed| conflict(command, typed, set)));
    loop {
        let output: Vec<&Id> =
            typed.iter().chain(&counts).map(|argument| argument.get_id()).collect();
        let (stay, go): (Vec<&Arg>, Vec<&Arg>) = counts
            .iter()
            .partition(|argument| needs(bare, argument).iter().all(|need| output.contains(&need)));
        if go.is_empty() {
            return over.into_iter().map(|argument| argument.get_id().clone()).collect();
        }
        over.extend(go);
        counts = stay;
    }
}

fn variable(argument: &Arg) -> Option<OsString> {
    argument.get_env().and_then(std::env::var_os)
}

/// Whether its variable turns a switch off. For clap, the switch would still be set.
fn is_off(argument: &Arg) -> bool {
    let value = variable(argument).unwrap_or_default().to_string_lossy().to_lowercase();
    let no = ["", "n", "no", "f", "false", "off", "0"].contains(&value.as_str());
    no && matches!(argument.get_action(), ArgAction::SetTrue)
}

fn conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |one: &Arg, other: &Arg| {
        let conflicts = command.get_arg_conflicts_with(one);
        conflicts.into_iter().any(|conflict| conflict.get_id() == other.get_id())
    };
    names(one, other) || names(other, one)
}

/// The arguments that a flag requires. clap reports them if the flag is parsed alone.
fn needs(bare: &Command, argument: &Arg) -> Vec<Id> {
    let (Some(long), Some(value)) = (argument.get_long(), variable(argument)) else {
        return Vec::new();
    };
    let mut flag = OsString::from(format!("--{long}"));
    if matches!(argument.get_action(), ArgAction::Set | ArgAction::Append) {
        flag.push("=");
        flag.push(value);
    }
    let missing = missing(bare, Some(flag));
    let anyway = self::missing(bare, None);
    let needed = |other: &&Arg| {
        let name = match other.get_long() {
            Some(long) => format!("--{long}"),
            None => format!("<{}>", other.get_id().as_str().to_uppercase()),
        };
        let tells = |text: &&String| text.split(' ').next() == Some(&name);
        missing.iter().any(|text| tells(&text)) && !anyway.iter().any(|text| tells(&text))
    };
    bare.get_arguments().filter(needed).map(|other| other.get_id().clone()).collect()
}

/// The required arguments that clap does not find.
fn missing(bare: &Command, flag: Option<OsString>) -> Vec<String> {
    let line = std::iter::once(OsString::from(bare.get_name())).chain(flag);
    match bare.clone().try_get_matches_from(line) {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(texts)) => texts.clone(),
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}
