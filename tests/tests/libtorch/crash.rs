//! `enn predict` killed at every write, sync, rename and removal: what it replaces is the old or the new, whole, and the same command given
//! again succeeds. Other commands are in `tests/plain/crash.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::artifact::prediction;
use enn_tests::{
    crash::{calm, contents, copy, struck},
    data,
    launch::enn,
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Points of a command at which it is killed, at most, unless the environment says how many, and as many of its last ones: what has been
/// made gets its name in them.
const POINTS_MAX: usize = 8;

#[expect(clippy::disallowed_methods, reason = "the environment says at how many points, as `make soak` does")]
fn points_max() -> usize {
    std::env::var("ENN_CRASH_POINTS").map_or(POINTS_MAX, |text| text.parse().expect("ENN_CRASH_POINTS is a number"))
}

/// The files of predictions that count: those of which a manifest tells, all as it says.
fn predicted(output: &Path) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    if !prediction::manifest_path(output).exists() {
        return None;
    }
    assert_eq!(prediction::verify(output).unwrap(), Vec::<String>::new());
    let files = contents(output).into_iter().filter(|(path, _)| !path.ends_with("manifest.json"));
    Some(files.collect())
}

#[test]
fn a_prediction_is_whole_or_goes_on_wherever_it_was_killed() {
    let place = tempfile::tempdir().unwrap();
    let run = data::trained(Command::new(enn()), place.path(), &[]);
    let run = run.strip_prefix(place.path()).unwrap().to_str().unwrap();
    for (name, rows) in [("old.csv", 40_u64), ("new.csv", 9000)] {
        let value = |at: u64| (data::mix(at) % 2000) as f64 / 1000.0;
        let line = |row| format!("{row},{},{},{}\n", value(row), value(row + 7), value(row + 9));
        fs::write(place.path().join(name), format!("id,a,b,c\n{}", (0..rows).map(line).collect::<String>())).unwrap();
    }
    let predict = |data, out| ["predict", run, "--quiet", "--nproc-per-node", "1", "--data", data, "--out", out];
    calm(place.path(), &predict("old.csv", "replaced"));
    calm(place.path(), &predict("old.csv", "replaced.parquet"));
    for out in ["new", "new.parquet", "replaced", "replaced.parquet"] {
        let old = predicted(&place.path().join(out));
        let more: &[&str] = if old.is_some() { &["--replace"] } else { &[] };
        let args = [&predict("new.csv", out)[..], more].concat();
        let whole = tempfile::tempdir().unwrap();
        copy(place.path(), whole.path());
        let calls = calm(whole.path(), &args);
        let new = predicted(&whole.path().join(out));
        assert!(new.is_some() && new != old && calls > POINTS_MAX, "{calls} calls");
        let points = points_max();
        let step = calls.div_ceil(points);
        for at in (1..=calls).filter(|at| at % step == 0 || at + points > calls) {
            let dir = struck(place.path(), &args, at);
            let output = dir.path().join(out);
            let found = predicted(&output);
            // A directory is one or the other at any time; a file has no manifest for a moment.
            let is_between = found.is_none() && (out.ends_with(".parquet") || !output.exists());
            assert!(found == old || found == new || is_between, "{out} at {at}");
            if found != new {
                calm(dir.path(), &args);
            }
            assert!(predicted(&output) == new, "{out} at {at}, given again");
        }
    }
}
