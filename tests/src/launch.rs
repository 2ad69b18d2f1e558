//! Launches of `enn run` in a private directory, shared by the tests that make them. Every wait has a deadline.
//!
//! What goes wrong here is a failed test, so everything panics.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "it is part of tests, which look again until a deadline"
)]

use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const LAUNCH_MAX: Duration = Duration::from_secs(120);

/// Leaves a process in a session of its own, with and without the launch's environment, and one in the worker's group.
pub const LITTER: &str = r#"mkdir -p litter
setsid sh -c 'echo $$ > litter/marked; exec sleep 1000' &
env -i setsid sh -c 'echo $$ > litter/bare; exec sleep 1000' &
sh -c 'echo $$ > litter/grouped; exec sleep 1000' &
while [ ! -s litter/marked ] || [ ! -s litter/bare ] || [ ! -s litter/grouped ]; do :; done
"#;

/// The program.
pub fn enn() -> PathBuf {
    let dir = std::env::var_os("ENN_BIN_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/release"), PathBuf::from);
    let binary = dir.join("enn");
    assert!(binary.exists(), "{} is not there; run `make build`", binary.display());
    binary
}

/// A directory with a worker script and what the launch leaves.
pub struct Place {
    /// Removed at the end.
    pub dir: tempfile::TempDir,
}

/// What a launch left.
pub struct Ended {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Place {
    /// A place with a shell script as worker.
    pub fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.sh");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `enn run` with these flags and the script, not yet started.
    pub fn command(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(enn());
        command
            .arg("run")
            .args(flags)
            .args(["--no-python", "./worker.sh"])
            .current_dir(self.dir.path())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("ENN_RUNS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs it to its end.
    pub fn run(&self, flags: &[&str]) -> Ended {
        end(self.command(flags).spawn().unwrap())
    }

    /// Numbers the workers wrote with `echo $$ > pids/$RANK` or the like.
    pub fn numbers(&self, folder: &str) -> Vec<i32> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_to_string(entry.path()).ok()?.trim().parse().ok()).collect()
    }

    /// The events of all its runs.
    pub fn events(&self) -> Vec<Value> {
        let runs = fs::read_dir(self.path("state/enn/runs")).into_iter().flatten().flatten();
        let journals = runs.map(|run| run.path().join("events.jsonl")).filter(|path| path.exists());
        let text: String = journals.map(|path| fs::read_to_string(path).unwrap()).collect();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Waits for the end, with a deadline.
pub fn end(mut child: Child) -> Ended {
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut text = String::new();
        pipes.0.read_to_string(&mut text).map(|_| text)
    });
    let err = std::thread::spawn(move || {
        let mut text = String::new();
        pipes.1.read_to_string(&mut text).map(|_| text)
    });
    let code = wait(&mut child);
    Ended { code, stdout: out.join().unwrap().unwrap(), stderr: err.join().unwrap().unwrap() }
}

/// Waits for the exit code, with a deadline.
pub fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + LAUNCH_MAX;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the launch did not end within {LAUNCH_MAX:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something holds, with a deadline.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LAUNCH_MAX;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LAUNCH_MAX:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A zombie is dead; init may take a moment to reap it.
pub fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Sends a signal.
pub fn kill(pid: i32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}

/// A port that nobody has now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The same command once more, behind these words.
pub fn copy(command: &Command, words: &[&str]) -> Command {
    let mut all = words.iter().map(OsStr::new).chain([command.get_program()]).chain(command.get_args());
    let mut copy = Command::new(all.next().unwrap());
    copy.args(all);
    if let Some(dir) = command.get_current_dir() {
        copy.current_dir(dir);
    }
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(key, value),
            None => copy.env_remove(key),
        };
    }
    copy
}
