//! The top of `ubscore --help`: every command in a group, one clause each.

use clap::Subcommand;

/// The groups and their commands, in the order of `--help`. A command without a group is listed
/// under "Tools".
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["serve", "txm", "doctor", "token", "load"]),
    ("Look", &["verify", "statement", "wal", "journal", "snapshot", "pauses", "participant"]),
    (
        "Act",
        &[
            "halt",
            "resume",
            "pause",
            "unpause",
            "transfer",
            "approval",
            "account",
            "asset",
            "deposit",
            "withdraw",
            "webhook",
            "venue",
            "hold",
            "transaction",
            "recharge",
            "channel",
            "signer",
            "tx",
        ],
    ),
    ("Repair", &["backup", "restore", "repair", "engine"]),
    ("Tools", &["channel-sim", "completions", "man"]),
];

/// The width of the column of names.
const NAME_WIDTH: usize = 12;

/// The template of clap for `ubscore --help`. `C`: the commands.
pub fn template<C: Subcommand>() -> String {
    let all = C::augment_subcommands(clap::Command::new("ubscore"));
    let about = |name: &str| {
        let command = all.find_subcommand(name)?;
        Some(command.get_about().map_or(String::new(), ToString::to_string))
    };
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (group, names) in GROUPS {
        let mut lines: Vec<(&str, String)> =
            names.iter().filter_map(|name| Some((*name, about(name)?))).collect();
        if group == "Tools" {
            let known = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
            let others = all.get_subcommands().map(clap::Command::get_name);
            let others = others.filter(|name| !known(name));
            lines.extend(others.filter_map(|name| Some((name, about(name)?))));
            lines.push(("help", "Print the help of a command.".to_owned()));
        }
        text += &format!("\n{group}:\n");
        for (name, clause) in lines {
            text += &format!("  {name:<NAME_WIDTH$} {}\n", clause.trim_end_matches('.'));
        }
    }
    text + "\nOptions:\n{options}{after-help}\n"
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// Goal: the help lists every command on one short line. Method: compare every command with the
    /// help's lines.
    #[test]
    fn every_command_stands_in_the_help_once_with_one_clause() {
        let help = Cli::command().render_help().to_string();
        for (group, _) in GROUPS {
            assert!(help.contains(&format!("\n{group}:\n")), "{help}");
        }
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let lines: Vec<&str> =
                help.lines().filter(|line| line.starts_with(&format!("  {name} "))).collect();
            assert_eq!(lines.len(), 1, "{name}: {help}");
            assert!(lines[0].len() <= 100, "{}", lines[0]);
            assert!(!lines[0].contains(". "), "{}: one clause", lines[0]);
        }
    }
}
