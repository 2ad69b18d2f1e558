//! A module of the user's own inside the model (examples/submodel), with real processes: it is trained, saved and predicted with,
//! and a worker that does not have it says so.
//!
//! Needs `enn`, `enn-worker` and `submodel`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::checkpoint::latest;
use enn_tests::{
    data,
    launch::{Ended, end, enn},
    leavings::run_in,
};
use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

const TASK: &str = "\n[[model.tasks]]\nname = \"own\"\nmode = \"temporal\"\ntokens = 3\nmodel = \"token_map\"\n";

fn run(dir: &Path, worker: &str, arguments: &[&str]) -> Ended {
    let worker = enn().with_file_name(worker);
    assert!(worker.exists(), "{} is not there; run `make build`", worker.display());
    let mut command = Command::new(enn());
    command.args(arguments).args(["--runs-dir", "runs"]).current_dir(dir).env("ENN_WORKER", worker);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end(command.spawn().unwrap())
}

#[test]
fn a_model_of_the_users_is_asked_for_by_name_trained_saved_and_predicted_with() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let config = data::write(dir);
    fs::OpenOptions::new().append(true).open(&config).unwrap().write_all(TASK.as_bytes()).unwrap();
    let arguments = ["train", "chaos.toml", "--nproc-per-node", "2", "--set", "train.epochs=2"];

    let refused = run(dir, "enn-worker", &arguments);
    let told = format!("{}{}", refused.stdout, refused.stderr);
    assert_ne!(refused.code, Some(0));
    assert!(told.contains("task \"own\" asks for the model \"token_map\", which this worker does not have"), "{told}");
    fs::remove_dir_all(dir.join("runs")).unwrap();

    let trained = run(dir, "submodel", &arguments);
    assert_eq!(trained.code, Some(0), "{}{}", trained.stdout, trained.stderr);
    let made = run_in(&dir.join("runs")).unwrap();
    let checkpoint = latest(&made.join("checkpoints")).found.unwrap();
    let weight = checkpoint.tensor("model.fuser.own.model.weight").unwrap();
    assert_eq!(weight.shape, [3, 3]);
    assert!(weight.bytes.chunks_exact(4).any(|four| four != [0; 4]), "it begins at zero and has learnt");

    let name = made.file_name().unwrap().to_str().unwrap();
    let predicted = run(dir, "submodel", &["predict", name, "--data", "chaos.csv", "--out", "out.parquet"]);
    assert_eq!(predicted.code, Some(0), "{}{}", predicted.stdout, predicted.stderr);
    assert!(dir.join("out.parquet").exists());

    let text = fs::read_to_string(&config).unwrap().replace("token_map", "token_mop");
    fs::write(&config, text).unwrap();
    let misspelt = run(dir, "submodel", &arguments);
    let told = format!("{}{}", misspelt.stdout, misspelt.stderr);
    assert!(
        told.contains("\"token_mop\", which this worker does not have (it has: running_sum, shrunk, token_map)"),
        "{told}"
    );
}

#[test]
fn a_model_with_an_operation_that_cannot_leave_says_which_where_and_what_is_nearest() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let config = data::write(dir);
    let task = TASK.replace("token_map", "running_sum");
    fs::OpenOptions::new().append(true).open(&config).unwrap().write_all(task.as_bytes()).unwrap();
    let trained = run(dir, "submodel", &["train", "chaos.toml", "--nproc-per-node", "1", "--set", "train.epochs=1"]);
    assert_eq!(trained.code, Some(0), "{}{}", trained.stdout, trained.stderr);
    let made = run_in(&dir.join("runs")).unwrap();
    let name = made.file_name().unwrap().to_str().unwrap();
    let done = run(dir, "submodel", &["export", name, "--to", "onnx,pt2,tensorflow,litert,coreml", "--out", "out"]);
    let told = format!("{}{}", done.stdout, done.stderr);
    assert_ne!(done.code, Some(0), "{told}");
    let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "aten::cumsum at fuser.own.model",
        "cannot be exported: an operator of libtorch's dispatcher, of which only libtorch knows what it computes",
        "hint: the nearest operation that can be exported: functional::matmul with a triangle of ones",
    ] {
        assert!(words.contains(said), "{said}: {told}");
    }
    assert_eq!(fs::read_dir(dir.join("out")).unwrap().count(), 0);
}
