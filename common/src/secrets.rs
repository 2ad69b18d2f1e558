//! Secrets in the environment of this program: who it starts does not inherit them.
//!
//! `ENN_TOKEN` is read by `enn` alone, when nodes meet. Of all programs it starts two need it: the copies of itself that `srun` starts
//! on other nodes, and a job script that `sbatch` takes with the environment. Workers, scripts of users, makers and runtimes of exports,
//! tools that look at processes and programs that are only asked for a version do not.
//!
//! **Invariant:** every other program is started by [`command`].

use std::{ffi::OsStr, process::Command};

pub const VARIABLES: [&str; 1] = ["ENN_TOKEN"];

/// A program that is started without the secrets of this one.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// A program that is started with them, as it passes them on to `enn`.
pub fn trusted_command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_left_out() {
        let removed = |command: &Command| command.get_envs().filter(|(_, value)| value.is_none()).count();
        assert_eq!(removed(&command("sh")), VARIABLES.len());
        assert_eq!(removed(&trusted_command("srun")), 0);
    }
}
