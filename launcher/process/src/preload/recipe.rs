//! The command of a server and its workers, which is started more than once, and the changes by a wrapper around the interpreter.

use super::link::{OURS, PYTHONPATH, Probed};
use crate::{program_file, variables_of};
use enn_common::secrets;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io::Read,
    os::unix::ffi::{OsStrExt, OsStringExt},
    process::Command,
};

/// First bytes of every program that the kernel starts without an interpreter, elf(5).
const ELF: &[u8] = b"\x7fELF";

/// A command that is started more than once.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    program: OsString,
    args: Vec<OsString>,
    /// Changes of the launcher's own variables.
    changes: Vec<(OsString, Option<OsString>)>,
    /// Further changes by a wrapper around the interpreter.
    wrapped: Vec<(OsString, Option<OsString>)>,
}

impl Recipe {
    /// Returns the command with other arguments.
    pub(super) fn with_args<const COUNT: usize>(&self, args: [&str; COUNT]) -> Self {
        Self { args: args.map(OsString::from).to_vec(), ..self.clone() }
    }

    /// Returns whether the program is a script around the interpreter, such as pyenv's, or cannot be read: only a probe shows what it does.
    pub(super) fn is_wrapped(&self) -> bool {
        let mut begin = [0; ELF.len()];
        let file = program_file(&self.command()).and_then(File::open);
        !file.is_ok_and(|mut file| file.read_exact(&mut begin).is_ok() && begin == ELF)
    }

    pub(super) fn of(command: &Command) -> Self {
        let changes = command.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned)));
        Self {
            program: command.get_program().to_owned(),
            args: command.get_args().map(OsStr::to_owned).collect(),
            changes: changes.collect(),
            wrapped: Vec::new(),
        }
    }

    /// Builds the command, ready to be started.
    pub(super) fn command(&self) -> Command {
        let mut command = secrets::command(&self.program);
        command.args(&self.args);
        for (name, value) in self.changes.iter().chain(&self.wrapped) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Replaces the wrapper by the interpreter itself and the wrapper's changes of variables. `None`: the probe's answer is malformed.
    pub(super) fn resolve(&mut self, probed: &Probed) -> Option<()> {
        let given: BTreeMap<OsString, OsString> = variables_of(&self.command()).into_iter().collect();
        let bytes = from_digits(&probed.environment)?;
        let entries = bytes.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        let found = entries.map(|entry| {
            let end = entry.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(entry[..end].to_vec()), OsString::from_vec(entry[end + 1..].to_vec())))
        });
        let found: BTreeMap<OsString, OsString> = found.collect::<Option<_>>()?;
        let ours = |name: &OsString| name == PYTHONPATH || name.as_bytes().starts_with(OURS.as_bytes());
        let set = found.iter().filter(|(name, value)| given.get(*name) != Some(*value));
        let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
        let unset = given.keys().filter(|name| !found.contains_key(*name)).map(|name| (name.clone(), None));
        self.wrapped = set.chain(unset).filter(|(name, _)| !ours(name)).collect();
        self.program = OsString::from_vec(from_digits(&probed.argv0)?);
        Some(())
    }

    /// Returns the command of a worker with the interpreter itself.
    pub(super) fn resolved(&self, command: &Command) -> Command {
        Self { program: self.program.clone(), wrapped: self.wrapped.clone(), ..Self::of(command) }.command()
    }
}

/// Decodes bytes that were written as two hexadecimal digits each.
fn from_digits(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::try_from(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(text: &str) -> String {
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_a_wrapper_changes_is_given_to_every_worker() {
        let mut command = Command::new("python3");
        command.args(["-u", "a.py"]).env("KEPT", "1").env("REPLACED", "old").env("LOST", "x");
        let mut recipe = Recipe::of(&command);
        let mut seen: BTreeMap<OsString, OsString> = variables_of(&command).into_iter().collect();
        seen.remove(OsStr::new("LOST"));
        seen.insert("REPLACED".into(), "new".into());
        seen.insert("PYTHONPATH".into(), "/hook".into());
        seen.insert("ENN_FORKSERVER_FD".into(), "7".into());
        let entries: Vec<String> =
            seen.iter().map(|(name, value)| format!("{}={}", name.display(), value.display())).collect();
        let probed = Probed {
            found: BTreeMap::new(),
            refuse: None,
            argv0: digits("/real/python3"),
            environment: digits(&entries.join("\0")),
        };
        recipe.resolve(&probed).unwrap();
        let changed: Vec<(OsString, Option<OsString>)> =
            vec![("REPLACED".into(), Some("new".into())), ("LOST".into(), None)];
        assert_eq!(recipe.wrapped, changed);
        command.env("RANK", "1");
        let worker = recipe.resolved(&command);
        let variables: BTreeMap<OsString, OsString> = variables_of(&worker).into_iter().collect();
        let value = |name: &str| variables.get(OsStr::new(name)).map(|value| value.to_str().unwrap());
        assert_eq!(
            (value("RANK"), value("REPLACED"), value("LOST"), value("KEPT")),
            (Some("1"), Some("new"), None, Some("1"))
        );
        assert_eq!(worker.get_program(), "/real/python3");
        for wrong in ["0", "zz", "é"] {
            assert_eq!(from_digits(wrong), None);
        }
    }
}
