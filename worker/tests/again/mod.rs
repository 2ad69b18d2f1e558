//! Tests of this binary started again, in processes of their own.

use std::{
    env,
    process::{Command, Output, Stdio},
};

/// The name by which this binary knows a test, of the module that holds it (`module_path!()`) and the name of its function.
pub(crate) fn name(module: &str, test: &str) -> String {
    let (_binary, module) = module.split_once("::").expect("a module of the binary");
    format!("{module}::{test}")
}

/// This binary, to run one of its tests, ignored or not, and nothing else.
pub(crate) fn command(module: &str, test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this binary"));
    command.args([&name(module, test), "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// Runs a test in a process of its own, to a good end. A name that no test has is no good end.
pub(crate) fn alone(mut command: Command) {
    let done: Output = command.stderr(Stdio::inherit()).output().expect("this binary starts");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{}: {said}", done.status);
}
