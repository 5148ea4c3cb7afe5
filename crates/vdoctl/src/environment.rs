//! Flags from the environment: a variable counts where nothing on the command line speaks against it.
//!
//! Whoever types a flag means it, and whoever keeps a password in a variable does not mean it for every
//! command. So a variable that conflicts with something typed is passed over, and so is one that makes
//! sense only beside something that is not said, and one that says no to a switch. What is typed is judged as strictly as ever.

use std::ffi::OsString;

use clap::{
    Arg, ArgAction, ArgMatches, Command, Id,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

/// The command line without the variables that are in the way of what was typed. `bare` makes the same
/// command line without any variable.
pub(crate) fn settled(
    command: Command,
    bare: impl FnOnce() -> Command,
    line: &[OsString],
) -> Command {
    // Most have none, and need not wait.
    if !std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("VDOCTL_")) {
        return command;
    }
    let bare = bare();
    // What makes no sense by itself is told by whoever parses it in earnest.
    match bare.clone().ignore_errors(true).try_get_matches_from(line) {
        Ok(typed) => below(command, &bare, &typed),
        Err(_) => command,
    }
}

fn below(command: Command, bare: &Command, typed: &ArgMatches) -> Command {
    let mut command = command;
    for id in passed_over(&command, bare, typed) {
        command = command.mut_arg(id, |argument| argument.env(None::<&'static str>));
    }
    let Some((name, typed)) = typed.subcommand() else { return command };
    let Some(bare) = bare.find_subcommand(name) else { return command };
    command.mut_subcommand(name, |command| below(command, bare, typed))
}

/// The flags of one command whose variables do not count.
fn passed_over(command: &Command, bare: &Command, typed: &ArgMatches) -> Vec<Id> {
    let is_typed = |argument: &&Arg| {
        typed.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    };
    let typed: Vec<&Arg> = command.get_arguments().filter(is_typed).collect();
    let is_set = |argument: &&Arg| {
        let set = variable(argument).is_some();
        set && !typed.iter().any(|typed| typed.get_id() == argument.get_id())
    };
    let (mut over, mut counts): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(is_set).partition(|set| {
            says_no(set) || typed.iter().any(|typed| are_at_odds(command, typed, set))
        });
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

/// Whether a switch is off by its variable. To clap it would be given all the same.
fn says_no(argument: &Arg) -> bool {
    let value = variable(argument).unwrap_or_default().to_string_lossy().to_lowercase();
    let no = ["", "n", "no", "f", "false", "off", "0"].contains(&value.as_str());
    no && matches!(argument.get_action(), ArgAction::SetTrue)
}

fn are_at_odds(command: &Command, one: &Arg, other: &Arg) -> bool {
    let names = |one: &Arg, other: &Arg| {
        let conflicts = command.get_arg_conflicts_with(one);
        conflicts.into_iter().any(|conflict| conflict.get_id() == other.get_id())
    };
    names(one, other) || names(other, one)
}

/// Beside which other arguments of its command a flag makes sense: clap tells when the flag is tried alone.
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

/// What clap misses in a command line.
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
