//! The program killed at every write, sync, rename and removal: what a command replaces is the old or the new, whole, and the same
//! command given again succeeds.
//!
//! Predictions, which need the real worker, are in `tests/libtorch/crash.rs`, power cuts in `common/tests/checkpoint/crash.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::checkpoint::{Checkpoint, Draft, ShardWriter, TensorDType, commit, latest, name};
use enn_tests::crash::{calm, contents, copy, struck};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Points of a command at which it is killed, at most; of more, every n-th.
const POINTS_MAX: usize = 120;

/// Kills `args` at every call, each time in a copy of `place`, lets `judge` look at what is there, and gives the command again.
fn everywhere(place: &Path, args: &[&str], judge: &dyn Fn(&Path, usize), after: &dyn Fn(&Path)) {
    let whole = tempfile::tempdir().unwrap();
    copy(place, whole.path());
    let calls = calm(whole.path(), args);
    after(whole.path());
    assert!(calls > 3, "{args:?}: {calls} calls");
    for at in (1..=calls).step_by(calls.div_ceil(POINTS_MAX)) {
        let dir = struck(place, args, at);
        judge(dir.path(), at);
        calm(dir.path(), args);
        after(dir.path());
    }
}

/// A committed checkpoint of some tensors, all bytes of which depend on the step.
fn checkpoint(checkpoints: &Path, step: u64) {
    let temporary = checkpoints.join(name::temporary(step, "t"));
    let tables = (0..2).map(|rank| {
        let mut shard = ShardWriter::create(&temporary, rank).unwrap();
        for (index, length) in [7u64, 5000, 90_000].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + step + u64::from(rank)) as u8).collect();
            shard.whole(&format!("model.{rank}.{index}"), TensorDType::U8, &[length], &bytes).unwrap();
        }
        shard.finish().unwrap()
    });
    let tables: Vec<_> = tables.collect();
    let draft = Draft { run: "r".into(), attempt: "t".into(), step, wall_time: step as f64, ..Draft::default() };
    commit(&temporary, &checkpoints.join(name::committed(step)), &tables, draft).unwrap();
}

/// A place with a run of the given steps.
fn place(steps: &[u64]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = dir.path().join("run/checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    steps.iter().for_each(|step| checkpoint(&checkpoints, *step));
    dir
}

fn step(number: u64) -> String {
    format!("run/checkpoints/{}", name::committed(number))
}

#[test]
fn conversions_leave_the_old_or_the_new_target() {
    for target in ["m.safetensors", "m.pt", "dcp", "shards", "ours"] {
        let to: &[&str] = match target {
            "shards" => &["--to", "shards", "--shard-bytes", "20000"],
            "ours" => &["--to", "enn"],
            _ => &[],
        };
        let place = place(&[1, 2]);
        let args = |number| {
            [
                vec!["ckpt".to_owned(), "convert".into(), step(number), target.into(), "--replace".into()],
                to.iter().map(|arg| (*arg).to_owned()).collect(),
            ]
            .concat()
        };
        let first = args(1);
        let second = args(2);
        let [first, second] = [&first, &second].map(|args| args.iter().map(String::as_str).collect::<Vec<_>>());
        let new = tempfile::tempdir().unwrap();
        copy(place.path(), new.path());
        calm(new.path(), &second);
        calm(place.path(), &first);
        let [old, new] = [place.path(), new.path()].map(|dir| contents(&dir.join(target)));
        assert!(old != new && !old.is_empty());
        let judge = |dir: &Path, at: usize| {
            let found = contents(&dir.join(target));
            assert!(found == old || found == new, "{target} at {at}: {:?}", found.keys());
        };
        let after = |dir: &Path| assert!(contents(&dir.join(target)) == new, "{target}");
        everywhere(place.path(), &second, &judge, &after);
    }
}

#[test]
fn a_merge_leaves_the_old_or_the_new_target() {
    let place = place(&[1, 2]);
    for number in [1, 2] {
        let shards = format!("shards-{number}");
        calm(place.path(), &["ckpt", "convert", &step(number), &shards, "--to", "shards", "--shard-bytes", "9000"]);
    }
    calm(place.path(), &["ckpt", "merge", "shards-2", "new.safetensors"]);
    calm(place.path(), &["ckpt", "merge", "shards-1", "m.safetensors"]);
    let [old, new] = ["m.safetensors", "new.safetensors"].map(|name| contents(&place.path().join(name)));
    let judge = |dir: &Path, at: usize| {
        let found = contents(&dir.join("m.safetensors"));
        assert!(found == old || found == new, "at {at}");
    };
    let after = |dir: &Path| assert!(contents(&dir.join("m.safetensors")) == new);
    everywhere(place.path(), &["ckpt", "merge", "shards-2", "m.safetensors", "--replace"], &judge, &after);
}

/// The newest whole checkpoint below a directory, every byte read.
fn newest(dir: &Path) -> Option<u64> {
    let found = latest(dir).found?;
    found.verify(&mut |_| {}).unwrap();
    Some(found.manifest().unwrap().step)
}

#[test]
fn a_pull_leaves_the_old_or_the_new_checkpoint() {
    let place = place(&[1, 2]);
    calm(place.path(), &["ckpt", "pull", &step(1), "pulled"]);
    let whole = |dir: &Path| {
        let found = Checkpoint::open(&dir.join("pulled")).unwrap();
        found.verify(&mut |_| {}).unwrap();
        found.manifest().unwrap().step
    };
    let judge = |dir: &Path, at: usize| assert!([1, 2].contains(&whole(dir)), "at {at}");
    let after = |dir: &Path| assert_eq!(whole(dir), 2);
    everywhere(place.path(), &["ckpt", "pull", &step(2), "pulled", "--replace"], &judge, &after);
}

#[test]
fn a_push_is_a_checkpoint_only_when_it_is_whole_and_goes_on() {
    let place = place(&[1, 2]);
    calm(place.path(), &["ckpt", "push", &step(1), "store"]);
    let judge = |dir: &Path, at: usize| {
        let found = newest(&dir.join("store"));
        assert!([Some(1), Some(2)].contains(&found), "at {at}: {found:?}");
    };
    let after = |dir: &Path| {
        assert_eq!(newest(&dir.join("store")), Some(2));
        let pushed = dir.join("store").join(name::committed(2));
        assert!(!pushed.join(".pushed").read_dir().is_ok_and(|mut notes| notes.next().is_some()), "no note is left");
    };
    everywhere(place.path(), &["ckpt", "push", &step(2), "store"], &judge, &after);
}

#[test]
fn pruning_never_takes_what_stays() {
    let place = place(&[1, 2, 3, 4]);
    let judge = |dir: &Path, at: usize| {
        let checkpoints = dir.join("run/checkpoints");
        assert_eq!(newest(&checkpoints), Some(4), "at {at}");
        for (step, path) in name::list(&checkpoints) {
            assert!(
                Checkpoint::open(&path).is_ok_and(|found| found.verify(&mut |_| {}).is_ok()),
                "step {step} at {at}"
            );
        }
    };
    let after = |dir: &Path| {
        let left = name::list(&dir.join("run/checkpoints")).into_iter().map(|(step, _)| step);
        assert_eq!(left.collect::<BTreeSet<u64>>(), [3, 4].into());
    };
    everywhere(place.path(), &["ckpt", "prune", "run", "--keep", "1"], &judge, &after);
}

#[test]
fn staging_goes_on_wherever_it_was_killed() {
    let place = tempfile::tempdir().unwrap();
    let rows: String = (0..4000).map(|row| format!("{},c{},{}\n", row as f64 / 3.0, row % 17, row % 100)).collect();
    fs::write(place.path().join("t.csv"), format!("a,c,y\n{rows}")).unwrap();
    let config = "name = \"t\"\n[data]\nfiles = [\"t.csv\"]\n[data.rows]\ntargets = [\"y\"]\n\
        features = [{ column = \"a\" }, { column = \"c\", kind = \"category\" }]\n";
    fs::write(place.path().join("t.toml"), config).unwrap();
    let args = ["stage", "t.toml", "--out", "staged"];
    let whole = tempfile::tempdir().unwrap();
    copy(place.path(), whole.path());
    calm(whole.path(), &args);
    let staged = |dir: &Path| -> BTreeMap<PathBuf, Vec<u8>> {
        // An empty lock may be left of a process that was killed right behind its last step.
        let hidden = |path: &PathBuf| path.iter().next().unwrap().to_string_lossy().starts_with('.');
        let visible = |path: &PathBuf| !hidden(path) && !path.ends_with("lock");
        contents(&dir.join("staged")).into_iter().filter(|(path, _)| visible(path)).collect()
    };
    let expected = staged(whole.path());
    let judge = |dir: &Path, at: usize| {
        let found = staged(dir);
        assert!(found.is_empty() || found == expected, "at {at}: {:?}", found.keys());
    };
    let after = |dir: &Path| {
        let found = staged(dir);
        assert!(found == expected, "{:?}, expected {:?}", found.keys(), expected.keys());
        let left = fs::read_dir(dir.join("staged")).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".staging")).collect();
        assert!(left.is_empty(), "{left:?}");
    };
    everywhere(place.path(), &args, &judge, &after);
}

#[test]
fn a_model_never_meets_the_tensors_of_another_one() {
    let write = |width| [env!("CARGO_BIN_EXE_onnx_fixture"), "split", ".", width];
    let place = tempfile::tempdir().unwrap();
    let new = tempfile::tempdir().unwrap();
    calm(place.path(), &write("40"));
    calm(new.path(), &write("24"));
    let model = Path::new("layers.onnx");
    // The cases beside it are the fixture's own.
    let sides = [place.path(), new.path()].map(|dir| {
        let files: BTreeMap<_, _> =
            contents(dir).into_iter().filter(|(path, _)| !path.ends_with("layers.json")).collect();
        assert_eq!(files.len(), 2, "{:?}", files.keys());
        files
    });
    let judge = |dir: &Path, at: usize| {
        let found = contents(dir);
        let is_here = |side: &&BTreeMap<PathBuf, Vec<u8>>| found.get(model) == side.get(model);
        let side = sides.iter().find(is_here).unwrap_or_else(|| panic!("neither model at {at}"));
        assert!(side.iter().all(|(path, bytes)| found.get(path) == Some(bytes)), "at {at}: {:?}", found.keys());
    };
    everywhere(place.path(), &write("24"), &judge, &|dir| assert_eq!(contents(dir)[model], sides[1][model]));
}
