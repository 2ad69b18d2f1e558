//! Readers of text: configurations, the records of runs and of predictions, manifests, mirrors, what Slurm says.

use crate::readers::{directory, in_place, manifest_seeds};
use enn_checkpoint::{
    gather::{Header, Ledger},
    remote::{Store, pull},
};
use enn_cluster::slurm::{JobState, hostlist};
use enn_common::{
    artifact::{
        chunk::{self, Chunk, ChunkExtent, ChunkRows},
        cv::CvRecord,
        evaluation::Evaluation,
        prediction::PredictionManifest,
        run::RunManifest,
        seal,
    },
    checkpoint::{Checkpoint, Manifest, name},
    config::{Facts, RawConfig, RunConfig, resolve, resolve_model, train::Precision},
    event::{Event, EventKind},
    fs::Disk,
    ledger::Line,
    metrics::Metrics,
};
use enn_launcher::tasks::{self, TaskEdit, TaskKeys};
use enn_ui::{RunView, journal, kernels, metrics, program, report, roofline, status};
use std::{fs, path::Path};

pub(crate) fn configuration_seeds() -> Vec<Vec<u8>> {
    let weather = include_str!("../../../examples/weather/weather.toml");
    let tasks = "[model]\nd_model = 64\nheads = 4\n[[model.tasks]]\nname = \"left\"\nmode = \"spatial\"\ntokens = 7\nparent = \"top\"\n\
                 [[model.tasks]]\nname = \"right\"\nmode = \"temporal\"\n[[model.tasks]]\nname = \"top\"\nreduction = \"linear\"\n";
    assert!(tasks::read(tasks, Path::new("/c")).is_ok());
    vec![
        weather.into(),
        tasks.into(),
        "a.b.c = 1\n[x.y]\nz = [[1, 2], {q = 'r', s.t.u = 2024-01-01}]\n".into(),
        "train.lr=3e-4".into(),
    ]
}

pub(crate) fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let path = Path::new("/c/config.toml");
    let mut raw = RawConfig::parse(text, path).unwrap_or_else(|_| RawConfig::empty("--set"));
    text.lines().take(4).for_each(|line| drop(raw.set(line)));
    let facts = Facts { cores: 2, gpus: 0, cuda_worker: false, cwd: "/c".into() };
    drop((resolve(&raw, &facts), resolve_model(&raw)));
    if tasks::read(text, path).is_ok() {
        let name = "new".to_owned();
        let keys = TaskKeys { mode: None, ..TaskKeys::default() };
        let edits = [
            TaskEdit::Remove { name: "left".into() },
            TaskEdit::Detach { child: "left".into() },
            TaskEdit::Update { name: "right".into(), keys: keys.clone() },
            TaskEdit::Add { name, parent: Some("top".into()), children: vec!["left".into()], keys },
        ];
        edits.iter().for_each(|edit| drop(tasks::edited(text, path, edit)));
    }
}

fn line(time: f64, what: EventKind) -> String {
    serde_json::to_string(&Event { time, what }).unwrap() + "\n"
}

/// The journal of a run, as [`JournalWriter`](journal::JournalWriter) leaves it.
pub(crate) fn journal_seeds() -> Vec<Vec<u8>> {
    use enn_common::id::{LocalRank, Rank, Round};
    let split = || [("test".to_owned(), Metrics { mae: 1.0, rmse: 2.0, n: 10, ..Metrics::default() })].into();
    let worker = |rank| EventKind::WorkerStarted {
        round: Round(1),
        local_rank: LocalRank(rank),
        rank: Rank(rank),
        pid: 77 + rank,
        host: String::new(),
        forked: false,
    };
    let events = [
        EventKind::RunStarted {
            run: "weather-1".into(),
            mode: "train".into(),
            dir: "/r".into(),
            host: "h".into(),
            nproc: 2,
            argv: vec!["enn".into()],
        },
        EventKind::StageProgressed { rows: 5, bytes: 100, bytes_total: 1000 },
        EventKind::RoundStarted { round: Round(1), world_size: 2, attempt: 1, resume_step: None },
        worker(0),
        worker(1),
        EventKind::ModelBuilt {
            parameters: 9,
            program_hash: "ab".into(),
            batch: 8,
            steps_per_epoch: 4,
            steps_total: 8,
        },
        EventKind::Stepped { epoch: 1, step: 3, loss: 0.5, lr: 1e-3, grad_norm: f64::NAN, samples_per_s: 100.0 },
        EventKind::CheckpointCommitted {
            step: 4,
            path: "/r/checkpoints/step-00000004".into(),
            bytes: 100,
            seconds: 0.1,
            metric: Some(1.0),
            blocked_seconds: 0.0,
        },
        EventKind::WorkerExited {
            round: Round(1),
            rank: Rank(1),
            pid: 78,
            code: None,
            signal: Some(9),
            seconds_to_notice: 0.1,
        },
        EventKind::RoundFailed { round: Round(1), cause: "rank 1".into(), restarting: true, restarts_left: 2 },
        EventKind::Trained {
            epoch: 2,
            step: 8,
            stopped_early: false,
            split: split(),
            samples_per_s: 9.0,
            seconds: 1.0,
        },
        EventKind::BaselinesComputed { split: [("test".to_owned(), split())].into(), notes: vec!["n".into()] },
        EventKind::RunEnded { code: 0, seconds: 3.0, restarts: 1, rounds: 2, cause: None },
    ];
    let text: String = events.into_iter().zip(0..).map(|(what, time)| line(f64::from(time), what)).collect();
    let kernels = serde_json::to_vec(&enn_common::kernels::KernelBook::default()).unwrap();
    let ceiling = r#"{"version":2,"device":"Cpu","steps":3,"ceiling":{"flops_per_s":{"f32":1e9},"bytes_per_s":1e9},"ops":[{"op":"matmul",
        "kernel":"plain","kind":"bf16","calls":3,"seconds":0.1,"flops":9,"bytes":7}]}"#;
    let trace = r#"{"baseTimeNanoseconds":7,"traceEvents":[{"ts":1.5,"dur":2,"name":"matmul"}]}"#;
    let record = r#"{"version":1,"hash":"ab","structure_hash":"cd","flops":9,"peak_bytes":7,
        "values":[{"kind":"Float","shape":[2,3],"role":"Input"}],
        "records":[{"op":"Zero","kernel":"plain","phase":"forward","place":"a","operands":[0],"results":[1]}]}"#;
    vec![text.into_bytes(), kernels, ceiling.into(), trace.into(), record.into()]
}

/// A run whose records are these bytes: what `enn status`, `metrics`, `kernels`, `profile` and `report` make of it.
pub(crate) fn journals(bytes: &[u8]) {
    in_place(|dir| {
        fs::create_dir_all(dir.join("profile")).unwrap();
        let files = [
            journal::FILE,
            "kernels.json",
            "profile/roofline.json",
            "profile/trace-0.json",
            "profile/program.json",
            "run.json",
        ];
        files.iter().for_each(|file| fs::write(dir.join(file), bytes).unwrap());
        if let Ok(view) = RunView::read(dir) {
            let context = status::StatusContext { living: false, now: 20.0, width: 80 };
            drop((status::text(&view, &context), status::json(&view, &context)));
            drop((metrics::of(&view), metrics::table(&view), metrics::contenders(&view)));
        }
        drop(report::build(dir));
        drop(kernels::read(dir).map(|book| kernels::text(&book)));
        drop(roofline::read(dir).map(|table| roofline::table(&table)));
        drop(roofline::gather_traces(dir));
        drop(program::read(dir).map(|record| program::listing(&record)));
        if let Ok(text) = std::str::from_utf8(bytes) {
            drop(Line::decode_all(text));
        }
    });
}

fn header() -> Header {
    Header { checkpoint: "c".into(), data: "d".into(), chunk_rows: 2, precision: Precision::Fp32 }
}

/// A ledger of two chunks, and one of their files.
pub(crate) fn prediction_seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let partial = dir.path().join("partial");
    let mut ledger = Ledger::open(&partial, &header()).unwrap();
    let mut path = partial.clone();
    for start in [0, 2] {
        let content = ChunkRows { values: &[1.0, 2.0], ids: &[5, 6], status: &[0, 0] };
        let written = chunk::write(&partial, ChunkExtent { start, end: start + 2, out_shape: &[1] }, content).unwrap();
        ledger.record(start, start + 2, &written.blake3).unwrap();
        path = written.path;
    }
    assert_eq!(Ledger::open(&partial, &header()).unwrap().done(), [(0, 2), (2, 4)]);
    vec![fs::read(partial.join("ledger.jsonl")).unwrap(), fs::read(path).unwrap()]
}

/// A broken prediction that is taken up: its ledger, or the files of a chunk that the ledger knows.
pub(crate) fn predictions(bytes: &[u8]) {
    in_place(|dir| {
        let partial = dir.join("partial");
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("ledger.jsonl"), bytes).unwrap();
        let ledger = Ledger::open(&partial, &header()).unwrap();
        assert_eq!(ledger.done().len(), ledger.chunks().len());
        let path = chunk::path(&partial, 0, 2);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let sound = chunk::write(
            &partial,
            ChunkExtent { start: 0, end: 2, out_shape: &[1] },
            ChunkRows { values: &[1.0, 2.0], ids: &[5, 6], status: &[0, 0] },
        );
        sound.unwrap();
        for file in [path.clone(), chunk::ids_path(&path), chunk::status_path(&path)] {
            let before = fs::read(&file).unwrap();
            fs::write(&file, bytes).unwrap();
            if let Ok(open) = Chunk::open(&path, None) {
                let _ = (open.shape().len(), open.predictions().map(<[f32]>::len), open.ids().map(<[i64]>::len));
                assert!(open.status().len() as u64 == open.shape().first().copied().unwrap_or(0));
            }
            fs::write(&file, before).unwrap();
        }
    });
}

/// Manifests that say their own digest, whatever they say else: what trusts them has to doubt them.
pub(crate) fn sealed(bytes: &[u8]) {
    drop(serde_json::from_slice::<PredictionManifest>(bytes));
    drop(serde_json::from_slice::<RunManifest>(bytes));
    drop(serde_json::from_slice::<CvRecord>(bytes));
    drop(serde_json::from_slice::<Evaluation>(bytes));
    drop(serde_json::from_slice::<RunConfig>(bytes));
    let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) else { return };
    in_place(|dir| {
        let sound = dir.join("mirror").join("step-00000003");
        if !sound.exists() {
            fs::create_dir_all(&sound).unwrap();
            for entry in fs::read_dir(directory().path()).unwrap().flatten() {
                fs::copy(entry.path(), sound.join(entry.file_name())).unwrap();
            }
        }
        seal::write(&Disk, &sound.join(name::MANIFEST), &manifest).unwrap();
        if let Ok(open) = Checkpoint::open(&sound) {
            let _ = (open.tensor("a.weight"), open.inspect(&mut |_| {}));
        }
        // The same as a mirror of another machine's.
        let place = Store::open(dir.join("mirror").to_str().unwrap()).unwrap();
        let target = dir.join("pulled");
        _ = fs::remove_dir_all(&target);
        let _ = pull(&place, None, &target, false, &mut |_, _| {});
    });
}

pub(crate) fn sealed_seeds() -> Vec<Vec<u8>> {
    manifest_seeds()
}

pub(crate) fn host_list_seeds() -> Vec<Vec<u8>> {
    ["gpu[001-003,007],cpu-[a,b][1-2]", "n[1-9][01-12]", "login"].map(Into::into).to_vec()
}

pub(crate) fn host_lists(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(names) = hostlist::expand(&text) {
        assert!(names.len() <= hostlist::NAMES_MAX);
    }
    drop(JobState::parse(&text));
}
