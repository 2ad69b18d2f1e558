//! A disk without room, with the real worker: a checkpoint fails in words, the one before stands, training goes on, and the next
//! one that finds room succeeds.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it. The full
//! disk is a small file system in memory, mounted in a name space of the test's own; where that is not allowed the test says so
//! and passes.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{
    checkpoint::name,
    event::{Event, EventKind},
};
use enn_tests::{
    data,
    launch::enn,
    leavings,
    training::{Run, saved_steps, train_endlessly},
};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Room for what is staged and some checkpoints.
const DISK_KIB: u32 = 64 << 10;
/// Room for the events of some steps.
const JOURNAL_BYTES: u64 = 256 << 10;

/// A path as the launcher sees it: its mounts are not ours.
fn sees(run: &Run, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root", run.child.id())).join(path.strip_prefix("/").unwrap())
}

/// Takes all room that is left.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for bytes in [1 << 20, 1 << 12] {
        while file.write_all(&vec![1; bytes]).is_ok() {}
    }
}

/// `enn` with a disk of so many KiB at `dir`; none where that cannot be had.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn on_a_disk_of(kib: u32, dir: &Path) -> Option<Command> {
    let mounted = format!("mount -t tmpfs -o size={kib}k none \"$0\"");
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(dir);
        command
    };
    if !unshare(&mounted).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("skipped: no file system of one's own can be mounted here");
        return None;
    }
    let mut through = unshare(&format!("{mounted} && exec \"$@\""));
    through.arg(enn());
    Some(through)
}

/// The same, after which the journals of the runs at `dir` are copied to `journal`.
fn on_a_disk_of_which_the_journal_is_kept(kib: u32, dir: &Path, journal: &Path) -> Option<Command> {
    on_a_disk_of(kib, dir)?;
    let mut through = Command::new("unshare");
    let script = "mount -t tmpfs -o size=\"$1\"k none \"$0\"; out=\"$2\"; shift 2; \"$@\"; code=$?; \
                  cat \"$0\"/*/events.jsonl > \"$out\"; exit $code";
    through
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(dir)
        .arg(kib.to_string())
        .arg(journal);
    through.arg(enn());
    Some(through)
}

#[test]
fn a_run_whose_last_state_cannot_be_saved_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let journal = tempfile::NamedTempFile::new().unwrap();
    let through = on_a_disk_of_which_the_journal_is_kept(DISK_KIB, dir.path(), journal.path());
    let Some(through) = through else { return };
    // The disk is full at the second epoch, long before the last, and no checkpoint may make room.
    let mut run =
        train_endlessly(through, dir.path(), &["--set", "train.epochs=40", "--set", "train.checkpoint_keep=99"]);
    run.committed();
    let runs = sees(&run, dir.path());
    fill(&runs.join("ballast"));
    let mut failed = 0;
    let mut last = 0;
    let code = run.until("end", |what| {
        match what {
            EventKind::CheckpointFailed { step, .. } => failed = *step,
            EventKind::Trained { step, .. } => last = *step,
            EventKind::CheckpointCommitted { .. } => failed = 0,
            _ => {}
        }
        if let EventKind::RunEnded { code, .. } = what { Some(*code) } else { None }
    });
    let said = run.said();
    assert_eq!((code, run.child.wait().unwrap().code(), failed), (4, Some(4), last), "{said}");
    assert!(
        said.contains(&format!("the checkpoint of its last step {last}")) && said.contains("No space left"),
        "{said}"
    );
    // The disk was full to the end: the journal tells how the run ended, and what is missing.
    let text = fs::read_to_string(journal.path()).unwrap();
    let kept: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(matches!(kept.last().unwrap().what, EventKind::RunEnded { code: 4, .. }), "{:#?}", kept.last());
    let steps =
        |events: &[Event]| events.iter().filter(|event| matches!(event.what, EventKind::Stepped { .. })).count();
    let lacks =
        |event: &Event| matches!(&event.what, EventKind::Warned { message } if message.contains("the journal lacks"));
    assert!(steps(&kept) == steps(&run.seen) || kept.iter().any(lacks), "{} {}", steps(&kept), steps(&run.seen));
}

#[test]
fn on_a_full_disk_an_old_checkpoint_makes_room_for_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    for asynchronous in [true, false] {
        let Some(through) = on_a_disk_of(DISK_KIB, dir.path()) else { return };
        let how = format!("train.checkpoint_async={asynchronous}");
        // Two beside the newest: the best one may be among them, and stays.
        let mut run = train_endlessly(through, dir.path(), &["--set", &how, "--set", "train.checkpoint_keep=2"]);
        for _ in 0..4 {
            run.committed();
        }
        let runs = sees(&run, dir.path());
        let own = leavings::run_in(&runs).unwrap();
        let is_told = |event: &Event| matches!(&event.what, EventKind::Warned { message } if message.contains("made room for the checkpoint of step"));
        let mut filled = 0;
        while run.seen.iter().filter(|event| is_told(event)).count() < 3 {
            let ballast = runs.join(format!("ballast-{filled}"));
            fill(&ballast);
            // What goes is as large as what comes: events that waited find room beside it.
            let file = File::options().write(true).open(&ballast).unwrap();
            file.set_len(file.metadata().unwrap().len().saturating_sub(JOURNAL_BYTES)).unwrap();
            filled += 1;
            run.committed();
            assert!(filled < 40, "{asynchronous}: nothing made room: {:?}", saved_steps(&own));
        }
        assert!(saved_steps(&own).len() >= 2, "the one before stays: {:?}", saved_steps(&own));
        let failed = |event: &Event| matches!(event.what, EventKind::CheckpointFailed { .. });
        assert!(!run.seen.iter().any(failed), "{asynchronous}: {:#?}", run.seen);
        run.stop_in_its_only_round();
    }
}

#[test]
fn a_checkpoint_that_finds_no_room_in_a_directory_is_the_machines_fault() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = tempfile::tempdir().unwrap();
    let Some(mut through) = on_a_disk_of(64, shelf.path()) else { return };
    let mut init = Command::new(enn());
    init.arg("init").arg(data::write(dir.path())).args(["--quiet", "--runs-dir"]).arg(dir.path().join("runs"));
    let made = init.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let run = String::from_utf8(made.stdout).unwrap();
    through.args(["ckpt", "push", run.trim()]).arg(format!("file://{}/copies", shelf.path().display()));
    let refused = through.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("No space left on device") && said.contains("free some space on that file system"), "{said}");
    assert_eq!(refused.status.code(), Some(4), "{said}");
}

#[test]
fn a_full_disk_costs_checkpoints_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let Some(through) = on_a_disk_of(3 * DISK_KIB, dir.path()) else { return };
    // No checkpoint may make room.
    let mut run = train_endlessly(through, dir.path(), &["--set", "train.checkpoint_keep=99"]);
    run.committed();
    let before = run.committed();
    let runs = sees(&run, dir.path());
    let ballast = runs.join("ballast");
    let own = leavings::run_in(&runs).unwrap();
    fill(&ballast);
    let (step, error) = run.not_committed();
    assert!(step > before && error.contains("No space left on device"), "{step}: {error}");
    assert!(error.lines().count() <= 2 && error.contains("distcp"), "{error}");
    // Again and again: what was written of each is not kept.
    let last = (0..3).map(|_| run.not_committed().0).last().unwrap();
    assert!(
        last > step && *saved_steps(&own).first().unwrap() < step,
        "{step} {last} {:?} {:#?}",
        saved_steps(&own),
        run.seen
    );
    let warned =
        |event: &Event| matches!(&event.what, EventKind::Warned { message } if message.contains("events.jsonl"));
    fs::remove_file(ballast).unwrap();
    let after = run.committed();
    assert!(after > last && saved_steps(&own).contains(&after));
    // What was given up goes behind the commits that were under way then.
    for _ in 0..2 {
        run.committed();
    }
    let names = fs::read_dir(own.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    let left: Vec<_> = names.iter().filter_map(|name| name::being_written(name)).collect();
    assert!(left.iter().all(|(step, _)| *step > after), "those that are being written: {left:?}");
    assert!(run.seen.iter().filter(|event| warned(event)).count() <= 1, "told once");
    run.stop_in_its_only_round();
}
