//! Workers that may write nothing for a while: a checkpoint fails in words, the one before stands, training goes on, and the next one
//! that finds room succeeds. Disks that are full are in `tests/namespaces/disk.rs`.

use enn_tests::{
    launch::enn,
    leavings,
    training::{saved_steps, train_endlessly},
};
use std::{
    io::Read,
    process::{Command, Stdio},
};

#[test]
fn chaos_that_lets_a_worker_write_nothing_costs_checkpoints_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    // What the launcher writes, no worker's limit keeps from being written.
    let mut run = train_endlessly(Command::new(enn()), dir.path(), &["--set", "train.checkpoint_async=false"]);
    run.committed();
    let own = leavings::run_in(dir.path()).unwrap();
    let mut chaos = Command::new(enn());
    chaos.arg("chaos").arg(&own).args(["--enospc", "60/60s:3s", "--rank", "1", "--for", "6s", "--seed", "3"]);
    let mut chaos = chaos.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let (step, error) = run.not_committed();
    assert!(error.contains("rank 1") && error.contains("File too large"), "{error}");
    assert!(saved_steps(&own).first().is_some_and(|stands| *stands < step), "{:?}", saved_steps(&own));
    let mut said = String::new();
    chaos.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(chaos.wait().unwrap().success() && said.contains("enospc"), "{said}");
    assert!(run.committed() > step);
    run.stop_in_its_only_round();
}
