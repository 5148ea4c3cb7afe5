//! Generates `docs/reference/cli.md` from the definition of the command line.

use clap::{Arg, Command};

use crate::{arguments::is_claps_own, exit};

pub(crate) fn page(command: &Command) -> String {
    let mut text = String::from(
        "# vdoctl\n\nGenerated from the program: `make generate`. The same is in `vdoctl --help` and \
         `vdoctl COMMAND --help`;\n`kubectl vdo COMMAND` is the same program as a plugin.\n\n",
    );
    text.push_str("Flags every command understands:\n\n");
    let everywhere = command.get_arguments().filter(|a| a.is_global_set() && !a.is_hide_set());
    text.push_str(&table(everywhere));
    text.push('\n');
    let codes = exit::TABLE.split("Exit codes:\n").nth(1).unwrap_or_default();
    text.push_str("## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for line in codes.lines() {
        let (code, meaning) = line.trim().split_once(' ').unwrap_or((line, ""));
        text.extend(["| ", code, " | ", meaning.trim(), " |\n"]);
    }
    text.push('\n');
    for below in visible(command) {
        section(below, "vdoctl", &mut text);
    }
    text.trim_end().to_owned() + "\n"
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

fn section(command: &Command, above: &str, text: &mut String) {
    let name = format!("{above} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    text.extend(["## `", &name, "`\n\n", about.trim(), "\n\n"]);
    let places: Vec<String> = command.get_positionals().map(place).collect();
    if visible(command).next().is_none() || !places.is_empty() {
        let usage = [name.clone(), "[FLAGS]".into()].into_iter().chain(places);
        text.extend(["```\n", &usage.collect::<Vec<_>>().join(" "), "\n```\n\n"]);
    }
    let own = || {
        let all = command.get_arguments();
        all.filter(|a| !a.is_global_set() && !a.is_hide_set()).filter(|a| !is_claps_own(a))
    };
    if own().next().is_some() {
        text.push_str(&table(own()));
        text.push('\n');
    }
    for below in visible(command) {
        section(below, &name, text);
    }
}

fn place(argument: &Arg) -> String {
    let name = argument.get_id().as_str().to_uppercase();
    let name = if argument.get_num_args().is_some_and(|n| n.max_values() > 1) {
        name + "..."
    } else {
        name
    };
    if argument.is_required_set() { name } else { format!("[{name}]") }
}

fn table<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut text = String::from("| flag | meaning | default | environment |\n|---|---|---|---|\n");
    for argument in arguments {
        let takes = argument.get_action().takes_values();
        let value =
            argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
        let value = value.filter(|_| takes && argument.get_long().is_some());
        let mut flag = match (argument.get_short(), argument.get_long()) {
            (Some(short), Some(long)) => format!("`-{short}`, `--{long}"),
            (None, Some(long)) => format!("`--{long}"),
            _ => format!("`{}", argument.get_id().as_str().to_uppercase()),
        };
        flag.extend(value.map(|value| format!(" {value}")));
        flag.push('`');
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let words: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|_| takes && !argument.is_hide_possible_values_set())
            .map(|word| format!("`{}`", word.get_name()))
            .collect();
        let words =
            if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
        let default = argument.get_default_values().first().filter(|_| takes);
        let default = default.map(|d| format!("`{}`", d.to_string_lossy())).unwrap_or_default();
        let variable = argument.get_env().map(|name| format!("`{}`", name.to_string_lossy()));
        let cells = [
            flag,
            format!("{}{words}", help.replace('|', "\\|")),
            default,
            variable.unwrap_or_default(),
        ];
        text.extend(["| ", &cells.join(" | "), " |\n"]);
    }
    text
}
