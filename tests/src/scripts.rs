//! Python scripts under `enn run`, shared by the tests of the fork servers.

#![expect(clippy::unwrap_used, reason = "it is part of tests: what goes wrong is a failed one")]

use crate::launch::{Place, copy};
use serde_json::Value;
use std::{
    fs,
    process::{Command, Stdio},
};

/// A torch of our own, with what the server asks of one: what is tried is the choice.
pub const TORCH: &str = "NAME = 'torch'\nclass cuda:\n    is_initialized = is_available = staticmethod(lambda: False)\n\
                     class default_generator:\n    seed = staticmethod(lambda: 1)\n";
/// What is preloaded in most tests.
pub const MODULES: &str = "json,decimal,random,tempfile,logging,multiprocessing";

/// A place with a Python script.
pub fn place(script: &str) -> Place {
    let place = Place::new("");
    fs::write(place.path("script.py"), script).unwrap();
    place
}

/// `enn run` with these flags and words in place of the shell script.
pub fn command(place: &Place, flags: &[&str], words: &[&str]) -> Command {
    let shell = place.command(flags);
    let mut command = Command::new(shell.get_program());
    command.args(shell.get_args().take_while(|argument| *argument != "--no-python")).args(words);
    let whole = copy(&shell, &[]);
    command.current_dir(whole.get_current_dir().unwrap());
    for (name, value) in whole.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env_remove("PYTHONPATH").env_remove("PYTHON_EXEC");
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Whether each worker that was started was forked.
pub fn forked(place: &Place) -> Vec<bool> {
    let started = place.events().into_iter().filter(|event| event["event"] == "worker_started");
    started.map(|event| event["forked"] == Value::Bool(true)).collect()
}

/// The processes of all events of a kind.
pub fn pids(place: &Place, kind: &str) -> Vec<i32> {
    let events = place.events().into_iter().filter(|event| event["event"] == kind);
    events.filter_map(|event| i32::try_from(event["pid"].as_i64()?).ok()).collect()
}
