//! `enn export` as a user has it: files that are whole or absent, equal for equal models, and checked before they are there.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{
    artifact::export::{Level, Sidecar},
    staged::reader::NpyMap,
};
use enn_tests::{
    artifact::{gone, library, until},
    data, launch,
};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn enn() -> Command {
    let mut command = Command::new(launch::enn());
    // No runtime but libtorch, whatever this machine has.
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/cache-without-runtimes");
    command.env("ENN_RUNTIMES", "/nowhere").env("XDG_CACHE_HOME", cache).env("PYTHON_EXEC", "/nowhere/python");
    command
}

fn trained(dir: &Path, more: &[&str]) -> PathBuf {
    data::trained(enn(), dir, more)
}

fn export(run: &Path, to: &str, out: &Path, more: &[&str]) -> Output {
    enn().arg("export").arg(run).args(["--to", to, "--out"]).arg(out).args(more).output().unwrap()
}

fn said(out: &Path, artifact: &str) -> Sidecar {
    serde_json::from_slice(&fs::read(out.join(format!("{artifact}.json"))).unwrap()).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_libtorch_runs_is_checked_and_equal_twice() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &["--set", "train.loss=quantile", "--set", "data.input_units.b=m/s"]);
    let out = dir.path().join("out");
    let again = dir.path().join("again");
    let done = export(&run, "pt2,coreml", &out, &["--quantiles"]);
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    let parts = ["chaos.mlpackage", "chaos.mlpackage.json", "chaos.mlpackage.usage.py", "chaos.pt2", "chaos.pt2.json"];
    assert_eq!(names(&out)[..5], parts);
    assert_eq!(said(&out, "chaos.pt2").usage, names(&out)[5..]);
    let pt2 = said(&out, "chaos.pt2");
    assert_eq!((pt2.verified.level, pt2.verified.from.as_str()), (Level::Runtime, "test"));
    assert!(pt2.verified.largest <= pt2.verified.tolerance && pt2.verified.rows > 40, "{:?}", pt2.verified);
    assert_eq!(pt2.outputs.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["y", "quantiles"]);
    assert_eq!(pt2.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(pt2.columns.iter().map(|column| column.units.as_str()).collect::<Vec<_>>(), ["", "m/s", ""]);
    assert_eq!(said(&out, "chaos.mlpackage").verified.level, Level::Structure);
    // The staged rows are gone: rows are drawn, and the file is the same.
    fs::remove_file(run.join("staged")).unwrap();
    assert!(export(&run, "pt2", &again, &["--quantiles"]).status.success());
    let drawn = said(&again, "chaos.pt2");
    assert_eq!((drawn.blake3, drawn.graph, drawn.verified.from.as_str()), (pt2.blake3, pt2.graph, "drawn"));
}

/// Exports a run's model for a range of batches and predicts a table with it; the sizes of the calls that it was checked with.
fn in_batches(enn: &dyn Fn() -> Command, (run, to, range): (&Path, &str, &str), table: &Path) -> (Vec<u64>, Vec<f32>) {
    let out = table.with_file_name(format!("{to}-{}", range.replace(':', "-")));
    let mut command = enn();
    command.arg("export").arg(run).args(["--to", to, "--batch", range, "--out"]).arg(&out);
    let done = command.output().unwrap();
    assert!(done.status.success(), "{to} {range}: {}", String::from_utf8_lossy(&done.stdout));
    let artifact = out.join(format!("chaos.{to}"));
    let checked = said(&out, &format!("chaos.{to}")).verified;
    assert_eq!(checked.level, Level::Runtime, "{to} {range}");
    let mut command = enn();
    command.arg("predict").arg(artifact).args(["--quiet", "--nproc-per-node", "1", "--data"]).arg(table);
    let done = command.arg("--out").arg(out.join("predicted")).output().unwrap();
    assert!(done.status.success(), "{to} {range}: {}", String::from_utf8_lossy(&done.stderr));
    let predicted = NpyMap::open(&out.join("predicted/pred.npy")).unwrap().numbers().unwrap().to_vec();
    (checked.batches, predicted)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the environment says where runtimes are")]
fn a_range_of_batches_is_checked_at_its_ends_and_kept_to() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let table = dir.path().join("new.csv");
    let lines = (0..19).map(|row| format!("{row},0.{row},-0.5,0.25\n"));
    fs::write(&table, format!("id,a,b,c\n{}", lines.collect::<String>())).unwrap();
    // Those that are here; PT2 needs nothing but libtorch.
    let runtimes = std::env::var_os("ENN_RUNTIMES");
    let with = || {
        let mut command = enn();
        command.envs(runtimes.as_ref().map(|places| ("ENN_RUNTIMES", places)));
        command
    };
    let formats: &[&str] = if runtimes.is_some() { &["pt2", "onnx", "ort"] } else { &["pt2"] };
    for to in formats {
        let predicted = |range: &str, sizes: &[u64]| {
            let (checked, predicted) = in_batches(&with, (&run, to, range), &table);
            assert_eq!(checked, sizes, "{to} {range}");
            assert_eq!(predicted.len(), 19);
            predicted
        };
        let expected = predicted("1:4:16", &[1, 2, 4, 7, 16]);
        assert!(expected.windows(2).any(|pair| pair[0] != pair[1]), "{expected:?}");
        for (range, sizes) in [("1:1:1", &[1][..]), ("8:8:8", &[8])] {
            for (found, expected) in predicted(range, sizes).iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5, "{to} {range}: {found}, expected {expected}");
            }
        }
    }
}

#[test]
fn a_format_is_there_when_it_is_told_and_one_that_cannot_be_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let out = dir.path().join("out");
    let mut command = enn();
    command.arg("export").arg(&run).args(["--to", "pt2,coreml", "--out"]).arg(&out);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("pt2 "));
    assert!(out.join("chaos.pt2").is_file() && out.join("chaos.pt2.json").is_file(), "{:?}", names(&out));
    assert!(lines.next().unwrap().starts_with("coreml ") && out.join("chaos.mlpackage").is_dir());
    assert!(child.wait().unwrap().success());
    // What stands in the way of one is told; the other one is there.
    let obstacle = out.join("chaos.pt2.0123456789abcdef.data");
    fs::create_dir(&obstacle).unwrap();
    fs::remove_dir_all(out.join("chaos.mlpackage")).unwrap();
    let done = export(&run, "pt2,coreml", &out, &[]);
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(5), "{told}");
    assert!(told.starts_with("pt2         not exported: ") && told.contains("0123456789abcdef.data: "), "{told}");
    assert!(told.contains("\ncoreml      chaos.mlpackage  ") && out.join("chaos.mlpackage").is_dir(), "{told}");
}

#[test]
fn what_cannot_be_checked_is_published_only_when_asked_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &["--set", "model.preset=temporal"]);
    let out = dir.path().join("out");
    let done = export(&run, "onnx,aoti,pt2", &out, &["--json"]);
    assert_eq!(done.status.code(), Some(5), "one of the formats is there");
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let error = |i: usize| told["exported"][i]["error"].as_str().unwrap_or_default().to_owned();
    assert!(error(0).contains("onnxruntime is not available"), "{told}");
    assert!(error(0).contains("hint: `enn export --prepare onnx` installs it"), "{told}");
    assert!(error(2).contains("AOTInductor is not available") && error(2).contains("--prepare aoti"), "{told}");
    assert_eq!(names(&out), ["chaos.pt2", "chaos.pt2.json", "chaos.pt2.usage.py"]);
    let done = export(&run, "onnx", &out, &["--unverified", "--name", "other", "--stream"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert!(String::from_utf8_lossy(&done.stdout).contains("not verified"));
    let other = said(&out, "other.onnx");
    assert_eq!(other.verified.level, Level::None);
    assert_eq!(other.usage, ["py", "cpp", "rs"].map(|end| format!("other.onnx.usage.{end}")));
    assert!(other.usage.iter().all(|name| out.join(name).is_file()));
    assert_eq!(other.inputs.len(), other.outputs.len(), "the state of a stream goes in and comes out");
    assert!(other.inputs.len() > 1);
}

#[test]
fn a_library_that_crashes_takes_nothing_with_it_but_what_it_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let out = dir.path().join("out");
    let crashes = library(dir.path(), "fputs(\"boom\\n\", stderr); *(volatile int *)8 = 1;");
    let mut command = enn();
    command.env("ENN_RUNTIMES", crashes).arg("export").arg(&run).args(["--to", "onnx,ort,pt2", "--out"]).arg(&out);
    let done = command.output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(5), "{told}{}", String::from_utf8_lossy(&done.stderr));
    let log = out.join("chaos.ort.log");
    for said in [
        "onnx        not exported: onnxruntime failed on ",
        "it crashed (SIGSEGV); its last lines:\n  boom\nhint: ",
        "ort         not exported: onnxruntime failed on ",
        &format!("it crashed (SIGSEGV): boom; its output is in {}\nhint: ", log.display()),
    ] {
        assert!(told.contains(said), "{said}: {told}");
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "boom\n");
    assert_eq!(names(&out), ["chaos.ort.log", "chaos.pt2", "chaos.pt2.json", "chaos.pt2.usage.py"]);
}

#[test]
fn mistakes_are_told_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let out = dir.path().join("out");
    let refused = |to: &str, more: &[&str], said: &str| {
        let done = export(&run, to, &out, more);
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    };
    refused("onxx", &[], "onxx is no format, expected one of onnx, ort, pt2");
    refused("pt2", &["--batch", "8:4:16"], "three numbers from 1 on that do not fall");
    assert!(!out.exists());
    refused("pt2", &["--name", "a/b"], "cannot be called \"a/b\"");
    fs::remove_dir(&out).unwrap();
    // A file where the directory should be.
    fs::write(&out, "mine").unwrap();
    let done = export(&run, "pt2", &out, &[]);
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("out"));
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
}

/// Where exports into a directory are being made.
fn drafts(out: &Path) -> Vec<String> {
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".export.tmp-")).collect()
}

#[test]
fn a_killed_export_is_swept_by_the_next_one_and_a_living_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let out = dir.path().join("out");
    let begun = |own: &str| {
        let mut command = enn();
        command.arg("export").arg(&run).args(["--to", "pt2", "--name", own, "--out"]).arg(&out);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        // Before it has a lock nobody lives there, for others.
        let is_own = |name: &String| name.contains(&format!("-{pid}-")) && out.join(name).join("lock").exists();
        until("it has begun", || drafts(&out).iter().any(is_own));
        child
    };
    let mut dead = begun("dead");
    dead.kill().unwrap();
    dead.wait().unwrap();
    let left = drafts(&out);
    assert_eq!(left.len(), 1);
    let mut living = begun("living");
    let pid = Pid::from_raw(living.id().cast_signed());
    signal::kill(pid, Signal::SIGSTOP).unwrap();
    let own = drafts(&out);
    assert!(own.len() == 1 && own != left, "{left:?}, then {own:?}");
    assert!(export(&run, "pt2", &out, &["--name", "next"]).status.success());
    assert_eq!(drafts(&out), own);
    signal::kill(pid, Signal::SIGCONT).unwrap();
    assert!(living.wait().unwrap().success());
    assert!(drafts(&out).is_empty());
    assert_eq!(names(&out).len(), 6, "{:?}", names(&out));
}

/// A Python whose PyTorch has a compiler at work that never ends; both write their numbers into `pids`.
fn compiling(dir: &Path) -> (PathBuf, PathBuf) {
    let python = dir.join("python");
    let packages = dir.join("packages");
    let pids = dir.join("pids");
    let torch = packages.join("torch");
    let about = packages.join("torch-2.11.0.dist-info");
    fs::create_dir_all(&torch).unwrap();
    fs::create_dir_all(&about).unwrap();
    fs::write(about.join("METADATA"), "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n").unwrap();
    let part = pids.with_extension("part");
    let whole = pids.display();
    let lines = [
        "import os, subprocess",
        "compiler = subprocess.Popen(['sh', '-c', 'trap : TERM HUP INT; while :; do sleep 1; done'])",
        &format!("open('{}', 'w').write(f'{{os.getpid()}} {{compiler.pid}}')", part.display()),
        &format!("os.rename('{}', '{whole}')", part.display()),
        "compiler.wait()\n",
    ];
    fs::write(torch.join("__init__.py"), lines.join("\n")).unwrap();
    let before = format!("import sys; sys.path.insert(0, '{}')", packages.display());
    fs::write(&python, format!("#!/bin/sh\nexec python3 \"$1\" \"$2\" \"$3\" \"$4\" \"{before}\n$5\"\n")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o700)).unwrap();
    (python, pids)
}

#[test]
fn a_killed_export_leaves_no_compiler_behind() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let (python, pids) = compiling(dir.path());
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT] {
        let mut command = enn();
        command.env("PYTHON_EXEC", &python).arg("export").arg(&run).args(["--to", "aoti", "--out"]);
        let mut child = command.arg(dir.path().join("out")).stdout(Stdio::null()).spawn().unwrap();
        until("it compiles", || pids.exists());
        let told = fs::read_to_string(&pids).unwrap();
        let told: Vec<i32> = told.split(' ').map(|pid| pid.parse().unwrap()).collect();
        told.iter().for_each(|pid| signal::kill(Pid::from_raw(*pid), None).unwrap());
        signal::kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let code = child.wait().unwrap().code();
        told.into_iter().for_each(gone);
        // One that is asked to stop leaves nothing of what it was making.
        let (expected, left) = match signal {
            Signal::SIGINT => (Some(130), 0),
            Signal::SIGTERM => (Some(143), 0),
            _ => (None, 1),
        };
        assert_eq!((code, drafts(&dir.path().join("out")).len()), (expected, left), "{signal}");
        fs::remove_file(&pids).unwrap();
    }
}

#[test]
fn half_precision_is_checked_where_it_runs_and_refused_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &["--set", "model.d_model=64"]);
    let sizes = |precision: &str| {
        let out = dir.path().join(precision);
        let done = export(&run, "pt2,coreml,litert", &out, &["--precision", precision, "--unverified"]);
        let told = String::from_utf8_lossy(&done.stdout).into_owned();
        if precision == "bf16" {
            assert_eq!(done.status.code(), Some(5), "{told}");
            assert!(told.contains("coreml in bf16: Core ML has no numbers of bf16\nhint: fp16"), "{told}");
            assert!(told.contains("litert in bf16: LiteRT's kernels have no bf16"), "{told}");
            assert_eq!(names(&out), ["chaos.pt2", "chaos.pt2.json", "chaos.pt2.usage.py"]);
        } else {
            assert!(done.status.success(), "{told}{}", String::from_utf8_lossy(&done.stderr));
        }
        let pt2 = said(&out, "chaos.pt2");
        assert_eq!((pt2.precision.as_str(), pt2.verified.level), (precision, Level::Runtime), "{:?}", pt2.verified);
        assert!(pt2.verified.largest <= pt2.verified.tolerance, "{:?}", pt2.verified);
        let reduced = pt2.notes.contains_key("reference_largest");
        assert_eq!((reduced, pt2.verified.largest > 1e-5), (precision != "fp32", precision != "fp32"), "{pt2:?}");
        let artifacts = ["chaos.pt2", "chaos.mlpackage", "chaos.tflite"];
        let there = artifacts.iter().filter(|name| out.join(name).exists());
        (pt2.graph, there.map(|name| said(&out, name).bytes).collect::<Vec<_>>())
    };
    let (graph, single) = sizes("fp32");
    let (same, half) = sizes("fp16");
    assert_eq!(graph, same, "it is the same function");
    for (single, half) in single.iter().zip(&half) {
        assert!(*half < single * 7 / 10, "{half} bytes instead of {single}");
    }
    assert_eq!(sizes("bf16").1.len(), 1);
    let done = export(&run, "pt2", &dir.path().join("never"), &["--precision", "fp8"]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("fp8 is no precision, expected fp32, fp16 or bf16"));
    let done = export(&run, "pt2", &dir.path().join("never"), &["--code-of", "old.aoti.pt2"]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("give --to aoti, and no other device"));
}

/// An array as NumPy writes it.
fn npy(path: &Path, shape: &[usize], values: impl Iterator<Item = f32>) {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes}), }}");
    let head = format!("{head:117}\n");
    let mut bytes = [b"\x93NUMPY\x01\x00".as_slice(), &(head.len() as u16).to_le_bytes(), head.as_bytes()].concat();
    bytes.extend(values.flat_map(f32::to_le_bytes));
    fs::write(path, bytes).unwrap();
}

const GRID: &str = r#"
name = "grid"
[data]
files = ["x.npy", "y.npy"]
[data.arrays]
x = "x"
y = "y"
[data.split]
kind = "random"
val = 0.2
test = 0.1
[model]
d_model = 8
heads = 2
spatial_depth = 1
temporal_depth = 1
spatial_latents = 2
temporal_latents = 2
fuser_latents = 2
fuser_rounds = 1
collector_depth = 1
patch = [2, 1, 3]
[train]
epochs = 1
batch = 32
threads = 1
[cluster]
device = "cpu"
nproc_per_node = 1
"#;

#[test]
fn a_grid_of_three_axes_leaves_in_formats_of_five_and_six() {
    let dir = tempfile::tempdir().unwrap();
    let value = |i: u64| (data::mix(i) % 2_000) as f32 / 1_000.0 - 1.0;
    npy(&dir.path().join("x.npy"), &[200, 4], (0..800).map(value));
    npy(&dir.path().join("y.npy"), &[200, 4, 2, 3], (0..4800).map(|i| value(i / 24) + value(i % 24)));
    fs::write(dir.path().join("grid.toml"), GRID).unwrap();
    let mut command = enn();
    command.arg("train").arg(dir.path().join("grid.toml")).args(["--quiet", "--runs-dir"]).arg(dir.path().join("runs"));
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let entries = fs::read_dir(dir.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let run = entries.into_iter().find(|path| path.join("run.json").is_file()).unwrap();
    let out = dir.path().join("out");
    let done = export(&run, "coreml,litert,pt2", &out, &["--unverified"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert_eq!(said(&out, "grid.mlpackage").verified.level, Level::Structure);
    assert_eq!(said(&out, "grid.pt2").verified.level, Level::Runtime);
    assert_eq!(said(&out, "grid.tflite").outputs[0].shape.len(), 4);
}
