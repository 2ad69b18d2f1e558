//! Files that released versions wrote, read by this one: configurations, staged data, journals, checkpoints, manifests, predictions
//! and saved models. `frozen/VERSION.tar.zst` holds them as that version's binaries left them; an archive is never made anew.
//!
//! Each archive has `NAME.toml` with its table, `runs/NAME` with its staged data, and `NAME.parquet` with what that version predicted;
//! `rows` has its model in `rows.safetensors` and `rows.pt`, too. What needs a worker is in `tests/libtorch/frozen.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::event::Event;
use enn_tests::{
    frozen::{RUNS, archive, enn},
    launch,
};
use std::{fs, path::Path, process::Command};

#[test]
fn configurations_of_0_1_are_staged_and_their_staged_data_are_whole() {
    let dir = archive();
    for run in RUNS {
        enn(dir.path(), &["stage", &format!("{run}.toml"), "--out", "new"]);
        enn(dir.path(), &["data", "verify", &format!("runs/{run}/staged")]);
    }
}

#[test]
fn journals_of_0_1_have_their_status_and_their_errors() {
    let dir = archive();
    for run in RUNS {
        let place = format!("runs/{run}");
        let journal = fs::read_to_string(dir.path().join(&place).join("events.jsonl")).unwrap();
        let events: Vec<Event> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(events.len() > 10, "{} events", events.len());
        assert!(enn(dir.path(), &["status", &place]).contains("finished"));
        assert!(enn(dir.path(), &["metrics", &place]).contains("> ENN"));
    }
}

#[test]
fn predictions_of_0_1_are_checked_against_their_manifest() {
    let dir = archive();
    for run in RUNS {
        let prediction = format!("{run}.parquet");
        enn(dir.path(), &["data", "verify", &prediction]);
        let path = dir.path().join(&prediction);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let output =
            Command::new(launch::enn()).args(["data", "verify", &prediction]).current_dir(&dir).output().unwrap();
        assert!(!output.status.success(), "{prediction} was changed and counts as whole");
    }
}

/// Places that a large file is cut at; between two of them are this many bytes at least. `common/tests/checkpoint` cuts at more of them,
/// without a process for each.
const CUTS: usize = 8;
const CUT_BYTES: usize = 1024;

/// A file, or all below a directory, that are not empty.
fn files(place: &Path) -> Vec<std::path::PathBuf> {
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let below = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path());
    below.flat_map(|path| files(&path)).filter(|path| path.metadata().unwrap().len() > 0).collect()
}

/// Every file of these that is cut makes the command fail, with the name of the file.
fn assert_cuts_are_told(dir: &Path, words: &[&str], place: &str) {
    let arguments = [words, &[place]].concat();
    enn(dir, &arguments);
    let mut cuts = 0;
    for path in files(&dir.join(place)) {
        let whole = fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy();
        for cut in (0..whole.len()).step_by(CUT_BYTES.max(whole.len() / CUTS)).chain([whole.len() / 2]) {
            fs::write(&path, &whole[..cut]).unwrap();
            let output = Command::new(launch::enn()).args(&arguments).current_dir(dir).output().unwrap();
            let told = [output.stdout, output.stderr].concat();
            let told = String::from_utf8_lossy(&told);
            assert!(!output.status.success(), "{name}, cut at byte {cut} of {}, counts as whole: {told}", whole.len());
            assert!(told.contains(&*name) && !told.contains("panicked"), "{name}, cut at byte {cut}: {told}");
            cuts += 1;
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(cuts > 3, "{cuts} cuts of {place}");
}

#[test]
fn staged_data_that_are_cut_are_told() {
    let dir = archive();
    for run in RUNS {
        assert_cuts_are_told(dir.path(), &["data", "verify"], &format!("runs/{run}/staged"));
    }
}

#[test]
fn checkpoints_that_are_cut_are_told() {
    let dir = archive();
    let newest = fs::read_dir(dir.path().join("runs/series/checkpoints")).unwrap().next().unwrap().unwrap();
    let newest = format!("runs/series/checkpoints/{}", newest.file_name().to_string_lossy());
    for place in [newest.as_str(), "rows.pt", "rows.safetensors"] {
        assert_cuts_are_told(dir.path(), &["ckpt", "verify"], place);
    }
}

#[test]
fn predictions_that_are_cut_are_told() {
    let dir = archive();
    for run in RUNS {
        assert_cuts_are_told(dir.path(), &["data", "verify"], &format!("{run}.parquet"));
    }
}
