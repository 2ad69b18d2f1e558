//! Where libtorch is found when real processes start: by `enn train` and `enn doctor` alike, and for programs of the user's own.
//!
//! Needs `enn`, `enn-worker`, `gpt` and libtorch, as `make test` sets them. A script that names a directory stands for the active Python.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking; tests ask the environment where things are"
)]

use enn_tests::{
    data,
    launch::{Ended, end, enn},
};
use serde_json::Value;
use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A library that every libtorch has.
const LIBRARY: &str = "libtorch_cpu.so";
/// What `enn` ends with when something of the machine is missing.
const MACHINE: Option<i32> = Some(4);

/// A clone in a directory with spaces, whose programs find nothing but what a test puts there.
struct Checkout {
    dir: tempfile::TempDir,
}

impl Checkout {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("a clone with spaces ").tempdir().unwrap();
        fs::create_dir_all(dir.path().join("target/release")).unwrap();
        fs::create_dir_all(dir.path().join("bin")).unwrap();
        // What tells a checkout from an installed package.
        fs::create_dir_all(dir.path().join("worker/setup")).unwrap();
        fs::write(dir.path().join("worker/setup/libtorch.py"), "").unwrap();
        for program in ["enn", "enn-worker", "gpt"] {
            let from = enn().with_file_name(program);
            let to = dir.path().join("target/release").join(program);
            // Another file system has no second name for it.
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).unwrap();
        }
        data::write(dir.path());
        Self { dir }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// The libtorch of this machine under another name.
    fn link(&self, below: &str) -> PathBuf {
        let path = self.path(below);
        symlink(real(), &path).unwrap();
        path
    }

    /// A torch of a release for which ENN is not built.
    fn old(&self) -> PathBuf {
        let torch = self.path("old/torch");
        fs::create_dir_all(torch.join("lib")).unwrap();
        fs::write(torch.join("lib").join(LIBRARY), "").unwrap();
        fs::write(torch.join("version.py"), "__version__ = '2.5.1+cpu'\n").unwrap();
        torch
    }

    /// The active Python does this. It notes that it was started.
    fn python(&self, script: &str) {
        let path = self.path("bin/python3");
        fs::write(&path, format!("#!/bin/sh\necho >> '{}'\n{script}\n", self.path("asked").display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// How often Python was started.
    fn asked(&self) -> usize {
        fs::read_to_string(self.path("asked")).map_or(0, |text| text.lines().count())
    }

    /// A command that knows nothing of the libraries of the test; it has no HOME either.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("target/release/enn"));
        command.args(words).current_dir(self.dir.path()).env_clear();
        command.env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()));
        command.env("TMPDIR", self.path("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn train(&self, libtorch: Option<&Path>) -> Ended {
        let words = ["train", "chaos.toml", "--nproc-per-node", "1", "--quiet", "--set", "train.epochs=1"];
        let mut command = self.command(&words);
        command.envs(libtorch.map(|path| ("ENN_LIBTORCH", path)));
        end(command.spawn().unwrap())
    }

    /// What doctor says of libtorch: its state and what was found.
    fn doctor(&self, libtorch: Option<&Path>) -> String {
        let mut command = self.command(&["doctor", "--json"]);
        command.envs(libtorch.map(|path| ("ENN_LIBTORCH", path)));
        let said = end(command.spawn().unwrap());
        let report: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stderr));
        let items = report["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["name"] == "libtorch").unwrap();
        let mend = item["mend"].as_str().unwrap_or_default();
        format!("{}: {} -> {mend}", item["state"].as_str().unwrap(), item["found"].as_str().unwrap())
    }
}

/// The libtorch that this test was given.
fn real() -> PathBuf {
    let built = env::var_os("LIBTORCH").map(PathBuf::from).into_iter();
    let loaded = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let loaded: Vec<PathBuf> = env::split_paths(&loaded).filter_map(|lib| Some(lib.parent()?.to_path_buf())).collect();
    let near = enn().parent().unwrap().parent().unwrap().join("libtorch");
    let mut places = built.chain(loaded).chain([near]);
    places.find(|dir| dir.join("lib").join(LIBRARY).exists()).expect("libtorch, as `make test` sets it")
}

fn good(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
}

#[test]
fn training_takes_the_libtorch_of_the_active_python_and_doctor_says_so() {
    let clone = Checkout::new();
    let torch = clone.link("torch of a Python");
    clone.python(&format!("echo a site that prints; echo '{}'", torch.display()));
    let ended = clone.train(None);
    good(&ended);
    assert_eq!((clone.asked(), ended.stderr.as_str()), (1, ""), "Python is asked once, and nothing is said of it");
    let said = clone.doctor(None);
    let place = format!("in {}/lib (the torch of {})", torch.display(), clone.path("bin/python3").display());
    assert!(said.starts_with("ok: ") && said.contains(&place), "{said}");
}

#[test]
fn a_libtorch_that_was_named_and_is_wrong_is_an_error_though_others_are_there() {
    let clone = Checkout::new();
    clone.link("target/libtorch");
    clone.python("echo");
    let old = clone.old();
    let ended = clone.train(Some(&old));
    assert_eq!(ended.code, MACHINE);
    let expected = format!("ENN_LIBTORCH: {} is torch 2.5.1+cpu, expected a libtorch 2.11", old.display());
    assert!(ended.stderr.contains(&expected) && ended.stderr.contains(" hint: "), "{}", ended.stderr);
    assert_eq!(clone.asked(), 0, "no Python is asked for what was named");
    let said = clone.doctor(Some(&old));
    assert!(said.starts_with("missing: ") && said.contains(&expected), "{said}");
    // A place relative to the working directory is one, too.
    good(&clone.train(Some(Path::new("target/libtorch"))));
}

#[test]
fn a_torch_of_another_release_and_a_broken_python_cost_one_line() {
    let clone = Checkout::new();
    clone.link("target/libtorch");
    let python = clone.path("bin/python3");
    let cases = [
        (format!("echo '{}'", clone.old().display()), "is torch 2.5.1+cpu, expected a libtorch 2.11"),
        ("echo 'no module named encodings' >&2; exit 1".to_owned(), "whether it has torch: no module named encodings"),
    ];
    for (script, told) in cases {
        clone.python(&script);
        let ended = clone.train(None);
        good(&ended);
        let lines: Vec<&str> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{}", ended.stderr);
        let place = clone.path("target/libtorch/lib");
        let named = [told, &python.display().to_string(), &format!("the libtorch in {} is used", place.display())];
        named.iter().for_each(|part| assert!(lines[0].contains(*part), "{part}: {}", lines[0]));
        let said = clone.doctor(None);
        assert!(said.starts_with("note: ") && said.contains(told), "{said}");
    }
    clone.python("echo");
    assert_eq!(clone.train(None).stderr, "", "a Python without torch is nothing strange");
}

#[test]
fn where_none_fits_one_error_lists_all_that_was_tried() {
    let clone = Checkout::new();
    clone.python("echo");
    let ended = clone.train(None);
    assert_eq!(ended.code, MACHINE);
    let python = format!("the Python {} has no torch", clone.path("bin/python3").display());
    for part in
        ["no libtorch 2.11 was found: ENN_LIBTORCH is not set; ", &python, "no target/libtorch is near", " hint: "]
    {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert_eq!(ended.stderr.matches("error:").count(), 1, "{}", ended.stderr);
    assert!(clone.doctor(None).starts_with("missing: no libtorch 2.11 was found"));
}

#[test]
fn a_program_of_the_users_own_is_given_libtorch_and_others_start_no_python() {
    let clone = Checkout::new();
    let torch = clone.link("torch");
    clone.python(&format!("echo '{}'", torch.display()));
    fs::write(clone.path("some.txt"), "what is learnt is said again, and again. ".repeat(100)).unwrap();
    let run = ["run", "--nproc-per-node", "2", "--no-python"];
    for (words, asked) in [
        (&["sh", "-c", "test -z \"$LD_LIBRARY_PATH\""][..], 0),
        (&["target/release/gpt", "--", "--data", "some.txt", "--steps", "2", "--context", "32"][..], 1),
    ] {
        good(&end(clone.command(&[&run[..], words].concat()).spawn().unwrap()));
        assert_eq!(clone.asked(), asked, "{words:?}");
    }
    clone.python("echo");
    let ended =
        end(clone.command(&[&run[..], &["target/release/gpt", "--data", "some.txt"]].concat()).spawn().unwrap());
    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("gpt needs libtorch: no libtorch 2.11 was found"), "{}", ended.stderr);
}
