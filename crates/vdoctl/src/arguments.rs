//! The definition of the command line: parser, help, completion, environment variables and reference use it.

use std::{ffi::OsString, path::Path};

use clap::{
    Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    ValueEnum as _,
};

use crate::{
    commands, environment, exit,
    options::{Colour, Global},
};

/// Installs, configures, checks and upgrades the vSphere drivers of a Kubernetes cluster.
#[derive(Debug, Parser)]
#[command(name = "vdoctl", version = crate::BUILD.version, after_help = exit::TABLE)]
#[command(disable_help_subcommand = true)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) task: VdoctlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VdoctlCommand {
    Deploy(commands::deploy::Deploy),
    Configure(Box<commands::configure::Configure>),
    Status(commands::status::Status),
    Doctor(Box<commands::doctor::Doctor>),
    Plan(commands::plan::Plan),
    Prepare(commands::prepare::Prepare),
    Versions(commands::versions::Versions),
    Explain(commands::explain::Explain),
    Fix(commands::fix::Fix),
    StorageClass(commands::storage_class::NewStorageClass),
    Test(commands::volume_test::Test),
    Upgrade(commands::upgrade::Upgrade),
    Adopt(commands::adopt::Adopt),
    Move(commands::relocate::Move),
    #[command(alias = "delete")]
    Remove(commands::remove::Remove),
    Catalog(commands::catalog::Catalog),
    Images(commands::images::Images),
    SupportBundle(commands::support_bundle::SupportBundle),
    #[command(hide = true, alias = "u")]
    Update(commands::configure::Update),
    Completion(commands::completion::Completion),
    Version(commands::version::Version),
}

pub(crate) fn command() -> Command {
    with_environment(Arguments::command(), "VDOCTL")
}

/// Gives every flag of a command and its subcommands an environment variable: `VDOCTL_NAMESPACE`,
/// `VDOCTL_DEPLOY_TIMEOUT`.
fn with_environment(command: Command, prefix: &str) -> Command {
    let command = command.mut_args(|argument| {
        let (Some(long), None) = (argument.get_long(), argument.get_env()) else { return argument };
        if is_claps_own(&argument) {
            return argument;
        }
        let name = format!("{prefix}_{}", long.to_uppercase().replace('-', "_"));
        // clap needs a static name; this leaks one small text per flag, once per process.
        let argument = argument.env(&*name.leak()).hide_env(true);
        if matches!(argument.get_action(), ArgAction::SetTrue) {
            argument.value_parser(switch)
        } else {
            argument
        }
    });
    command.mut_subcommands(|below| {
        let prefix = format!("{prefix}_{}", below.get_name().to_uppercase().replace('-', "_"));
        with_environment(below, &prefix)
    })
}

/// Parses the environment variable of a switch. Rejects unclear values instead of taking them for yes.
fn switch(text: &str) -> Result<bool, String> {
    match text.to_lowercase().as_str() {
        "" | "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
        "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
        _ => Err("use true or false".into()),
    }
}

/// Whether it is clap's own `--help` or `--version`.
pub(crate) fn is_claps_own(argument: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(argument.get_action(), Help | HelpLong | HelpShort | Version)
}

/// Parses the command line. The error contains the text to show, also for `--help`.
pub(crate) fn parse() -> Result<Arguments, clap::Error> {
    let line: Vec<OsString> = std::env::args_os().collect();
    let mut command = environment::settled(command(), Arguments::command, &line);
    if is_plugin() {
        command = command.bin_name("kubectl vdo");
    }
    let matches = command.try_get_matches_from_mut(line)?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Whether vdoctl runs as a kubectl plugin.
pub(crate) fn is_plugin() -> bool {
    let path = std::env::args_os().next();
    path.is_some_and(|path| Path::new(&path).file_stem().is_some_and(|name| name == "kubectl-vdo"))
}

/// The value of `--color`, also if the rest of the command line is invalid.
pub(crate) fn colour() -> Colour {
    let words = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .take_while(|word| word != "--")
        .collect::<Vec<_>>();
    let typed = words.iter().enumerate().rev().find_map(|(number, word)| match word.as_str() {
        "--color" => words.get(number + 1).map(String::as_str),
        word => word.strip_prefix("--color="),
    });
    let variable = std::env::var("VDOCTL_COLOR").ok();
    let wanted = typed.or(variable.as_deref()).unwrap_or_default();
    Colour::from_str(wanted, true).unwrap_or(Colour::Auto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        command().debug_assert();
    }

    #[test]
    fn every_flag_is_also_an_environment_variable() {
        fn check(command: &Command) {
            for argument in command.get_arguments().filter(|argument| argument.get_long().is_some())
            {
                let name = argument.get_id();
                let exempt = is_claps_own(argument);
                assert!(exempt || argument.get_env().is_some(), "{} {name}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn a_flag_named_version_also_has_an_environment_variable() {
        let version = || Arg::new("version").long("version").help("Which one.");
        let below = Command::new("render").arg(version()).disable_version_flag(true);
        let mut command = with_environment(Command::new("vdoctl").subcommand(below), "VDOCTL");
        command.build();
        assert!(crate::reference::page(&command).contains("`VDOCTL_RENDER_VERSION`"));
        let own = version().action(ArgAction::Version);
        let below = Command::new("render").arg(own).disable_version_flag(true);
        let command = with_environment(Command::new("vdoctl").subcommand(below), "VDOCTL");
        assert!(!crate::reference::page(&command).contains("Which one."));
    }
}
