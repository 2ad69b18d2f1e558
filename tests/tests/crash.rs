//! The program killed at every write, sync, rename and removal: what a command replaces is the old or the new, whole, and the same
//! command given again succeeds.
//!
//! `tests/src/crash.c` is preloaded into the real `enn`: it counts the calls and ends the process at the k-th, a write half done.
//! Needs `enn`, for predictions `enn-worker` and libtorch, and a C compiler, as building does. Power cuts are in
//! `common/tests/checkpoint/crash.rs`.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::artifact::prediction;
use enn_common::checkpoint::{Checkpoint, Draft, ShardWriter, TensorDType, commit, latest, name};
use enn_tests::{data, launch::enn};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Points of a command at which it is killed, at most; of more, every n-th.
const POINTS_MAX: usize = 120;
/// The same of a command that takes a second, and its last ones: what has been made gets its name in them.
const SLOW_POINTS_MAX: usize = 12;
const LAST_POINTS: usize = 16;
/// Exit status of a process that was ended.
const ENDED: i32 = 137;

/// The preloaded library.
fn library() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_dir, path) = BUILT.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crash.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/crash.c");
        let built =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(source).arg("-ldl").output();
        let built = built.unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        (dir, path)
    });
    path
}

/// `enn` with the arguments, or the program whose path stands before them, in `dir`, with the library.
fn command(dir: &Path, args: &[&str]) -> Command {
    let is_program = args[0].starts_with('/');
    let (program, args) = if is_program { (args[0].into(), &args[1..]) } else { (enn(), args) };
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("LD_PRELOAD", library());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs to its end and says how many calls there were.
fn calm(dir: &Path, args: &[&str]) -> usize {
    let count = tempfile::NamedTempFile::new().unwrap();
    let done = command(dir, args).env("CRASH_COUNT", count.path()).output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    fs::read_to_string(count.path()).unwrap().parse().unwrap()
}

/// Every file below a directory, or the file; nothing where there is nothing.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    if path.is_file() {
        all.insert(PathBuf::new(), fs::read(path).unwrap());
    } else if path.is_dir() {
        for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
            let below = contents(&entry.path()).into_iter();
            let name = PathBuf::from(entry.file_name());
            // A path that ends with a slash is that of a directory.
            let at = |rest: PathBuf| if rest.as_os_str().is_empty() { name.clone() } else { name.join(rest) };
            all.extend(below.map(|(rest, bytes)| (at(rest), bytes)));
        }
    }
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for (path, bytes) in contents(from) {
        fs::create_dir_all(to.join(&path).parent().unwrap()).unwrap();
        fs::write(to.join(path), bytes).unwrap();
    }
}

/// A copy of `place` in which `args` was killed at a call.
fn struck(place: &Path, args: &[&str], at: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(place, dir.path());
    let done = command(dir.path(), args).env("CRASH_AT", at.to_string()).output().unwrap();
    // Threads may do a call less than last time: then it has ended well.
    let code = done.status.code();
    assert!(code == Some(ENDED) || code == Some(0), "{args:?} at {at}: {}", String::from_utf8_lossy(&done.stderr));
    dir
}

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
        assert!(new.is_some() && new != old && calls > LAST_POINTS, "{calls} calls");
        let step = calls.div_ceil(SLOW_POINTS_MAX);
        for at in (1..=calls).filter(|at| at % step == 0 || at + LAST_POINTS > calls) {
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
