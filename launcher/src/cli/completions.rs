//! `enn completions`, and `--print-completion` as newer releases of torchrun have it.

use super::output;
use crate::Error;
use clap::Command;
use clap_complete::{
    Shell,
    env::{Bash, EnvCompleter, Fish, Zsh},
};
use std::{collections::BTreeSet, io};

/// The variable with the name of the shell that asks.
pub(super) const VARIABLE: &str = "ENN_COMPLETE";

/// Print completions for a shell: in bash, zsh and fish they know the names of runs
///
/// For bash: source <(enn completions bash), in ~/.bashrc. For zsh: source <(enn completions zsh), in ~/.zshrc behind compinit. For fish:
/// enn completions fish > ~/.config/fish/completions/enn.fish
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell that torchrun or `enn completions` supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum AnyShell {
    Bash,
    Zsh,
    Tcsh,
    Fish,
    Elvish,
    Powershell,
}

/// Prints the completions of `command`, the command line of `enn`.
pub(super) fn run(args: &Args, command: Command) -> Result<(), Error> {
    match script(args.shell) {
        Some(text) => output::bytes(&text.map_err(Error::Output)?),
        None => output::bytes(&generated(args.shell, command, "enn")),
    }
}

/// Prints the completions of `command` under a name.
pub(super) fn print(shell: AnyShell, command: Command, name: &str) -> Result<(), Error> {
    let text = match shell {
        AnyShell::Tcsh => tcsh(&command, name).into_bytes(),
        AnyShell::Bash => generated(Shell::Bash, command, name),
        AnyShell::Zsh => generated(Shell::Zsh, command, name),
        AnyShell::Fish => generated(Shell::Fish, command, name),
        AnyShell::Elvish => generated(Shell::Elvish, command, name),
        AnyShell::Powershell => generated(Shell::PowerShell, command, name),
    };
    output::bytes(&text)
}

/// Returns the completion script of a shell; `None` for one whose script does not ask.
fn script(shell: Shell) -> Option<io::Result<Vec<u8>>> {
    let shell: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
        _ => return None,
    };
    let mut text = Vec::new();
    Some(shell.write_registration(VARIABLE, "enn", "enn", "enn", &mut text).map(|()| text))
}

fn generated(shell: Shell, mut command: Command, name: &str) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    text
}

/// Returns a line for tcsh with the subcommands and all flags; other words complete as files.
fn tcsh(command: &Command, name: &str) -> String {
    let visible = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let longs = |command: &Command| -> Vec<String> {
        command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect()
    };
    let mut flags: BTreeSet<String> = longs(command).into_iter().collect();
    flags.extend(visible().flat_map(longs));
    flags.insert("--help".to_owned());
    let flags: Vec<String> = flags.into_iter().collect();
    let subcommands: Vec<&str> = visible().map(Command::get_name).collect();
    let first = if subcommands.is_empty() { String::new() } else { format!(" 'p/1/({})/'", subcommands.join(" ")) };
    format!("complete {name} 'c/--/({})/'{first}\n", flags.join(" ").replace("--", ""))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{command::Cli, run::Torchrun},
        *,
    };
    use clap::CommandFactory;

    #[test]
    fn tcsh_completes_subcommands_and_flags() {
        let enn = tcsh(&Cli::command(), "enn");
        assert!(enn.starts_with("complete enn 'c/--/(") && enn.contains(" nproc-per-node "), "{enn}");
        assert!(enn.contains("'p/1/(run warm new train ") && !enn.contains(" runtime "), "{enn}");
        let torchrun = tcsh(&Torchrun::command(), "torchrun");
        assert!(
            torchrun.starts_with("complete torchrun 'c/--/(") && torchrun.contains(" shutdown-timeout "),
            "{torchrun}"
        );
        assert_eq!(torchrun.lines().count(), 1);
    }

    #[test]
    fn scripts_ask_the_program() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(script(shell).unwrap().unwrap()).unwrap();
            assert!(text.contains(&format!("{VARIABLE}=")) && text.contains("enn"), "{text}");
        }
        assert!(script(Shell::Elvish).is_none());
    }
}
