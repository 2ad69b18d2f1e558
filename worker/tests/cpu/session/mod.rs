//! Sessions without a launcher: training learns, stops and resumes bit for bit, does the same in any world, and what it saved
//! predicts.

#![expect(clippy::unwrap_used, reason = "a test ends where something is wrong")]

mod autobatch;
mod averages;
mod data;
mod finetune;
mod ledger;
mod losses;
mod poisoned;
mod precision;
mod process;
mod replicas;
mod saving;
mod sources;
mod strategy;
mod validations;
mod worlds;

use data::{CELLS, ROWS, commit_last, config, spoil, stage, task};
use enn_broker::tcpstore::{Limits, serve};
use enn_common::{
    artifact::chunk::Chunk,
    checkpoint::Checkpoint,
    config::{
        Forest, RunConfig,
        model::ModelConfig,
        train::{Execution, Precision, Recompute, TrainConfig},
    },
    metrics::Metrics,
    profile::{RecordedProgram, Roofline},
    staged::Staged,
    wire::{client::ClientError, control::Phase, message::FromWorker},
};
use enn_worker::{
    block::SubModels,
    comm::{Forming, Gloo, GlooOptions, ProcessGroup, Shm, ShmFormed, ShmOptions, Solo, Store, StoreAddr},
    session::{KernelTask, Outcome, PredictTask, Recorder, Reporter, SessionError, TrainTask, predict, train},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};
use tch::Device;

const PATIENCE: Duration = Duration::from_secs(60);

fn alone(
    config: &RunConfig,
    dir: &Path,
    staged: &Path,
    resume: Option<PathBuf>,
    recorder: &Recorder,
) -> Result<(Outcome, Vec<FromWorker>), SessionError> {
    // Tests run side by side: more threads would only wait for each other.
    tch::set_num_threads(1);
    let outcome = train(config, &task(dir, staged, resume), recorder, &Solo)?;
    Ok((outcome, recorder.take()))
}

/// All tensors of a checkpoint, as bytes.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = Checkpoint::open(path).unwrap();
    checkpoint.tensor_names().map(|name| (name.to_owned(), checkpoint.tensor(name).unwrap().bytes)).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The last checkpoint of a short run on `device` with accumulation and dropout.
fn last(device: Device, model: &ModelConfig, change: &dyn Fn(&mut TrainConfig)) -> BTreeMap<String, Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = RunConfig { model: model.clone(), ..config(4) };
    config.train.accumulation = 2;
    change(&mut config.train);
    tch::set_num_threads(1);
    let recorder = Recorder::default();
    let task = TrainTask { device, ..task(dir.path(), &staged, None) };
    train(&config, &task, &recorder, &Solo).unwrap();
    tensors(&commit_last(&recorder.take(), &config, &staged))
}

fn modes_agree(device: Device) {
    for model in [config(1).model, composed()] {
        let last = |change: &dyn Fn(&mut TrainConfig)| last(device, &model, change);
        let tape = last(&|train| train.execution = Execution::Tape);
        assert!(tape == last(&|train| train.execution = Execution::Plan), "a replayed step");
        assert!(tape == last(&|train| train.execution = Execution::Auto), "a captured step");
        assert!(tape == last(&|train| train.recompute = Recompute::Always), "activations computed again");
    }
}

/// All mixers and both reductions, in sub-fusers.
fn composed() -> ModelConfig {
    let tasks = [
        r#"{"name": "all", "weight": 2.0, "reduction": "linear"}"#,
        r#"{"name": "one", "parent": "all", "mode": "temporal", "depth": 1, "tokens": 5, "mixer": "true_retention"}"#,
        r#"{"name": "two", "parent": "all", "mode": "spatial", "depth": 1, "tokens": 7, "mixer": "dilated"}"#,
        r#"{"name": "three", "mode": "spatial", "depth": 1, "tokens": 3, "mixer": "true_retention"}"#,
    ];
    let tasks = Forest::new(tasks.map(|task| serde_json::from_str(task).unwrap()).to_vec()).unwrap();
    ModelConfig { tasks, segments: vec![4, 8], dilations: vec![1, 2], ..config(1).model }
}

#[test]
fn execution_and_recomputing_change_no_bit() {
    modes_agree(Device::Cpu);
}

#[test]
fn execution_and_recomputing_change_no_bit_on_a_gpu() {
    if !tch::Cuda::is_available() {
        eprintln!("skipped: no CUDA device");
        return;
    }
    enn_worker::backend::graph::use_own_stream(0).unwrap();
    modes_agree(Device::Cuda(0));
}

#[test]
fn a_deterministic_training_repeats_itself_bit_for_bit() {
    let mut devices = vec![Device::Cpu];
    if tch::Cuda::is_available() {
        enn_worker::backend::graph::use_own_stream(0).unwrap();
        devices.push(Device::Cuda(0));
    }
    for device in devices {
        let once = || last(device, &composed(), &|train| train.deterministic = true);
        assert!(once() == once(), "{device:?}");
    }
}

#[test]
fn a_run_learns_saves_and_predicts() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let config = config(60);
    let (outcome, messages) = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap();
    assert_eq!((outcome.stopped, outcome.epoch, outcome.step), (false, 60, 60 * 6));

    let order: Vec<&str> = messages
        .iter()
        .map(|message| match message {
            FromWorker::Ready { .. } => "ready",
            FromWorker::PrecisionChosen { format, .. } if format == "fp32" => "precision",
            FromWorker::BatchChosen { batch: 12, micro: 12, accumulation: 1, recompute: false, .. } => "batch",
            FromWorker::ModelBuilt { batch: 12, steps_per_epoch: 6, steps_total: 360, .. } => "built",
            FromWorker::Stepped { .. } => "step",
            FromWorker::EpochEnded(_) => "epoch",
            FromWorker::ShardWritten { step: 360, epoch: 60, .. } => "shard",
            FromWorker::Trained { .. } => "trained",
            FromWorker::KernelsRan(_) => "kernels",
            FromWorker::Decided { .. } => "decided",
            other => panic!("{other:?}"),
        })
        .filter(|word| !["step", "kernels", "decided"].contains(word))
        .collect();
    assert_eq!(order[..4], ["ready", "precision", "batch", "built"]);
    assert!(order[4..64].iter().all(|word| *word == "epoch"));
    assert_eq!(order[64..], ["shard", "trained"]);

    // The spread of a target cell is about 4.5: the constant prediction has an RMSE of that; noise alone has 0.12.
    let val = outcome.split["val"];
    assert!(val.rmse < 1.5 && val.r2 > 0.9, "{val:?}");
    assert_eq!(outcome.split.keys().collect::<Vec<_>>(), ["test", "train", "val"]);

    // Predicting with the checkpoint gives exactly the errors that were told.
    let checkpoint = commit_last(&messages, &config, &staged);
    let predict_task = PredictTask {
        staged: staged.clone(),
        checkpoint,
        out: dir.path().join("out"),
        chunk_rows: 40,
        done: vec![(40, 80)],
        place: (0, 1),
        local: 1,
        device: Device::Cpu,
        precision: Precision::Fp32,
        kernels: KernelTask::default(),
        models: SubModels::new(),
    };
    let recorder = Recorder::default();
    assert!(!predict(&predict_task, &recorder).unwrap());
    let early = chunks(&recorder.take());
    let late = {
        let task = PredictTask { done: vec![(0, 40), (80, 90)], ..predict_task };
        assert!(!predict(&task, &recorder).unwrap());
        chunks(&recorder.take())
    };
    assert_eq!(early.iter().map(|c| c.0).collect::<Vec<_>>(), [(0, 40), (80, 90)]);
    assert_eq!(late.iter().map(|c| c.0).collect::<Vec<_>>(), [(40, 80)]);
    let mut all = [early, late].concat();
    all.sort_by_key(|c| c.0);
    let ids: Vec<i64> = all.iter().flat_map(|c| c.2.clone()).collect();
    let values: Vec<f32> = all.into_iter().flat_map(|c| c.1).collect();
    let open = Staged::open(&staged).unwrap();
    assert_eq!(ids, open.row_id());
    let mine = errors(&open, &values, 1);
    assert!((mine.mae - val.mae).abs() < 1e-5 && (mine.rmse - val.rmse).abs() < 1e-5, "{mine:?} {val:?}");
    assert_eq!(mine.n, val.n);
}

type Rows = ((u64, u64), Vec<f32>, Vec<i64>);

fn chunks(messages: &[FromWorker]) -> Vec<Rows> {
    messages
        .iter()
        .filter_map(|message| match message {
            FromWorker::ChunkWritten { start, end, path, blake3 } => {
                let chunk = Chunk::open(path, Some(blake3)).unwrap();
                assert_eq!(chunk.shape(), [end - start, 2, 3]);
                Some(((*start, *end), chunk.predictions().unwrap().to_vec(), chunk.ids().unwrap().to_vec()))
            }
            _ => None,
        })
        .collect()
}

fn errors(staged: &Staged, values: &[f32], split: u8) -> Metrics {
    let mut mae = 0.0;
    let mut square = 0.0;
    let mut n = 0u64;
    for row in (0..ROWS).filter(|&row| staged.split()[row] == split) {
        let cells = row * CELLS..(row + 1) * CELLS;
        for ((value, y), valid) in values[cells.clone()].iter().zip(staged.y_row(row)).zip(&staged.y_mask()[cells]) {
            if *valid == 1 {
                let error = f64::from(*value) - f64::from(*y);
                mae += error.abs();
                square += error * error;
                n += 1;
            }
        }
    }
    Metrics { mae: mae / n as f64, rmse: (square / n as f64).sqrt(), r2: f64::NAN, n, ..Metrics::default() }
}

/// Stops a training after these steps, resumes it each time, and proves that it ends as one that was not stopped. Returns
/// the checkpoints' tensors, the last one's behind those of the stops.
fn resumed_as_whole(config: &RunConfig, dir: &Path, staged: &Path, stops: &[u64]) -> Vec<BTreeMap<String, Vec<u8>>> {
    let (whole, messages) = alone(config, &dir.join("whole"), staged, None, &Recorder::default()).unwrap();
    let expected = tensors(&commit_last(&messages, config, staged));
    let mut resume = None;
    let mut all = Vec::new();
    for (index, &stop) in stops.iter().enumerate() {
        let dir = dir.join(format!("part{index}"));
        let (outcome, messages) = alone(config, &dir, staged, resume, &Recorder::stopping_at(stop - 1)).unwrap();
        assert_eq!((outcome.stopped, outcome.step), (true, stop));
        let checkpoint = commit_last(&messages, config, staged);
        all.push(tensors(&checkpoint));
        resume = Some(checkpoint);
    }
    let (resumed, messages) = alone(config, &dir.join("rest"), staged, resume, &Recorder::default()).unwrap();
    // In words, where a number that is none equals itself: rows far out of range have such errors.
    assert_eq!(format!("{resumed:?}"), format!("{whole:?}"));
    let found = tensors(&commit_last(&messages, config, staged));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &expected {
        assert!(found[name] == *bytes, "{name} differs after resuming");
    }
    all.push(found);
    all
}

#[test]
fn stopping_anywhere_and_resuming_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    // In the middle of the first epoch, at the end of the second, and in the middle of the last.
    resumed_as_whole(&config(4), dir.path(), &staged, &[2, 12, 22]);
    // With a row that is left out from the first step on.
    spoil(&staged, 3e38);
    let states = resumed_as_whole(&config(3), &dir.path().join("spoilt"), &staged, &[1, 2, 3, 4, 5]);
    assert!(states.iter().all(|state| state["progress.poisoned_rows"] == 20i64.to_le_bytes()));
}

#[test]
fn a_composed_model_stops_and_resumes_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let states = resumed_as_whole(&RunConfig { model: composed(), ..config(3) }, dir.path(), &staged, &[7]);
    assert!(states.iter().all(|state| state.contains_key("model.fuser.one.factor")));
}

#[test]
fn two_ranks_train_as_one() {
    two_train_as_one(gloo);
}

#[test]
fn two_ranks_that_share_memory_train_as_one() {
    two_train_as_one(|store, rank| {
        match Shm::form(store, &ShmOptions { rank, size: 2, timeout: PATIENCE }, &Forming::within(PATIENCE)).unwrap() {
            ShmFormed::Group(group) => Box::new(group),
            ShmFormed::Refused { rank, reason } => panic!("rank {rank}: {reason}"),
        }
    });
}

fn gloo(store: &Store, rank: u32) -> Box<dyn ProcessGroup> {
    Box::new(Gloo::form(store, &GlooOptions { rank, size: 2, timeout: PATIENCE }, &Forming::within(PATIENCE)).unwrap())
}

/// Trains with two ranks in `dir`: what both of them tell, and the messages of one behind those of the other.
fn two_ranks(
    config: &RunConfig,
    dir: &Path,
    staged: &Path,
    form: impl Fn(&Store, u32) -> Box<dyn ProcessGroup> + Sync,
) -> (Outcome, Vec<FromWorker>) {
    two_ranks_from(None, config, dir, staged, form)
}

/// The same, going on from a checkpoint.
fn two_ranks_from(
    resume: Option<&Path>,
    config: &RunConfig,
    dir: &Path,
    staged: &Path,
    form: impl Fn(&Store, u32) -> Box<dyn ProcessGroup> + Sync,
) -> (Outcome, Vec<FromWorker>) {
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
    let port = store.addr().port();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let form = &form;
                scope.spawn(move || {
                    let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: "round-0".into() };
                    let store = Store::connect(addr, PATIENCE).unwrap();
                    let group = form(&store, rank);
                    let recorder = Recorder::default();
                    let task = task(dir, staged, resume.map(Path::to_owned));
                    let outcome = train(config, &task, &recorder, &*group).unwrap();
                    group.shutdown(PATIENCE).unwrap();
                    (outcome, recorder.take())
                })
            })
            .collect();
        let done: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        // In words, where a number that is none equals itself.
        assert_eq!(format!("{:?}", done[0].0), format!("{:?}", done[1].0), "both ranks tell the same metrics");
        (done[0].0.clone(), done.into_iter().flat_map(|(_, messages)| messages).collect())
    })
}

fn two_train_as_one(form: impl Fn(&Store, u32) -> Box<dyn ProcessGroup> + Sync) {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let config = config(3);
    let (one, messages) = alone(&config, &dir.path().join("one"), &staged, None, &Recorder::default()).unwrap();
    let expected = tensors(&commit_last(&messages, &config, &staged));

    let (both, messages) = two_ranks(&config, &dir.path().join("two"), &staged, form);
    assert_eq!(messages.iter().filter(|m| matches!(m, FromWorker::Trained { .. })).count(), 1);
    assert_eq!(messages.iter().filter(|m| matches!(m, FromWorker::ShardWritten { .. })).count(), 2);
    let found = tensors(&commit_last(&messages, &config, &staged));
    for (name, bytes) in &expected {
        // The keys' bias does not change a softmax: its gradient is rounding noise, which AdamW makes as large as any other.
        if !name.starts_with("best.") || name.ends_with("attention.kv.bias") {
            continue;
        }
        let a = floats(bytes);
        let b = floats(&found[name]);
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-4, "{name} differs by {worst}");
    }
    for (split, metrics) in &one.split {
        let other = both.split[split];
        assert!((metrics.mae - other.mae).abs() < 1e-3 && metrics.n == other.n, "{split}: {metrics:?} {other:?}");
    }
}

#[test]
fn a_profiled_run_leaves_a_trace_and_a_table_and_learns_the_same() {
    let checkpoint = |profile: bool| {
        let dir = tempfile::tempdir().unwrap();
        let staged = stage(dir.path());
        let mut config = config(4);
        config.train.profile = profile;
        let run = dir.path().join("run");
        let (_, messages) = alone(&config, &run, &staged, None, &Recorder::default()).unwrap();
        let folder = task(&run, &staged, None).checkpoints.with_file_name("profile");
        let found = profile.then(|| {
            let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
            let trace: serde_json::Value = serde_json::from_slice(&read("trace-0.json")).unwrap();
            let table: Roofline = serde_json::from_slice(&read("roofline.json")).unwrap();
            let record: RecordedProgram = serde_json::from_slice(&read("program.json")).unwrap();
            (trace, table, record)
        });
        assert_eq!(folder.exists(), profile);
        (tensors(&commit_last(&messages, &config, &staged)), found)
    };
    let (weights, found) = checkpoint(true);
    let (trace, table, record) = found.unwrap();
    assert!(weights == checkpoint(false).0, "being watched changes no bit");
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |category: &str| events.iter().filter(|event| event["cat"] == category).count();
    assert_eq!((of("step") as u64, of("op") as u64), (table.steps, table.ops.iter().map(|op| op.calls).sum()));
    let told: u64 =
        events.iter().filter(|e| e["cat"] == "step").map(|e| e["args"]["operations"].as_u64().unwrap()).sum();
    assert_eq!(of("op") as u64, told, "a slice for every record");
    assert!(events.iter().any(|event| event["args"]["place"].as_str().is_some_and(|place| place.contains('.'))));
    assert!(table.steps == 3 && table.ops.iter().any(|op| op.flops > 0 && op.seconds > 0.0));
    assert_eq!(record.records.len() as u64, told / 3, "a line for every record of a step");
    assert_eq!(record.flops, table.ops.iter().map(|op| op.flops).sum::<u64>() / 3);
    assert!(record.peak_bytes > 0 && record.hash != record.structure_hash);
    let made: BTreeSet<usize> = record.records.iter().flat_map(|op| op.results.clone()).collect();
    let read: BTreeSet<usize> = record.records.iter().flat_map(|op| op.operands.clone()).collect();
    for number in read.difference(&made) {
        assert_ne!(record.values[*number].role, "Temp", "%{number} comes from nowhere");
    }
    assert!(record.records.iter().any(|op| op.op.starts_with("AdamW") && op.phase == "optimizer"));
}

#[test]
fn each_rank_of_a_profiled_run_leaves_its_own_trace() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(4);
    config.train.profile = true;
    let run = dir.path().join("run");
    two_ranks(&config, &run, &staged, gloo);
    let folder = task(&run, &staged, None).checkpoints.with_file_name("profile");
    for rank in 0..2 {
        let text = std::fs::read(folder.join(format!("trace-{rank}.json"))).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert!(events.iter().all(|event| event["pid"] == rank));
        let of = |category: &str| events.iter().filter(|event| event["cat"] == category).count();
        assert!(of("collective") > 0 && of("step") == 3, "rank {rank}: {} collectives", of("collective"));
    }
    let record: RecordedProgram = serde_json::from_slice(&std::fs::read(folder.join("program.json")).unwrap()).unwrap();
    assert!(record.records.iter().any(|op| op.op == "AllReduce" && op.phase == "communication"));
}

#[test]
fn accumulated_micro_batches_are_one_batch() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let plain = config(2);
    let mut split = plain.clone();
    split.train.accumulation = 3;
    let (one, _) = alone(&plain, &dir.path().join("one"), &staged, None, &Recorder::default()).unwrap();
    let (three, _) = alone(&split, &dir.path().join("three"), &staged, None, &Recorder::default()).unwrap();
    assert!((one.split["val"].mae - three.split["val"].mae).abs() < 1e-3, "{one:?} {three:?}");
}

#[test]
fn a_disk_that_refuses_the_checkpoint_does_not_end_training() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    std::fs::write(dir.path().join("checkpoints"), b"not a folder").unwrap();
    let (outcome, messages) = alone(&config(1), dir.path(), &staged, None, &Recorder::default()).unwrap();
    assert_eq!(outcome.epoch, 1);
    let failed = messages.iter().find_map(|message| match message {
        FromWorker::ShardFailed { step: 6, error } => Some(error.clone()),
        _ => None,
    });
    assert!(failed.unwrap().contains("checkpoints"));
}

#[test]
fn a_diverging_run_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(5);
    config.train.lr = 1e38;
    config.train.clip = 0.0;
    config.train.warmup_ratio = 0.0;
    let error = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap_err();
    assert!(matches!(error, SessionError::NonfiniteWeight { step: 1, .. }), "{error}");
    assert!(error.to_string().contains("a smaller train.lr"), "{error}");
}

#[test]
fn early_stopping_keeps_the_best_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let mut config = config(40);
    // Far too fast to stay good: the error rises soon.
    config.train.lr = 0.3;
    config.train.ema = 0.0;
    config.train.patience = 2;
    let (outcome, messages) = alone(&config, dir.path(), &staged, None, &Recorder::default()).unwrap();
    let maes: Vec<f64> = messages
        .iter()
        .filter_map(|m| if let FromWorker::EpochEnded(report) = m { Some(report.val.mae) } else { None })
        .collect();
    assert!(outcome.epoch < 40, "{maes:?}");
    let best = maes.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(maes.iter().rposition(|mae| *mae == best).unwrap() + 3, maes.len());
    assert!((outcome.split["val"].mae - best).abs() < 1e-9);
}

#[test]
fn checkpoints_of_other_models_and_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let first = config(1);
    let (_, messages) = alone(&first, dir.path(), &staged, None, &Recorder::default()).unwrap();
    let checkpoint = commit_last(&messages, &first, &staged);
    let mut other = config(2);
    other.model.d_model = 8;
    let error = alone(&other, dir.path(), &staged, Some(checkpoint.clone()), &Recorder::default()).unwrap_err();
    assert!(error.to_string().contains("checkpoint of another model"), "{error}");
    let mut other = config(2);
    other.train.batch = 10;
    let error = alone(&other, dir.path(), &staged, Some(checkpoint), &Recorder::default()).unwrap_err();
    assert!(error.to_string().contains("batch 12, expected 10"), "{error}");
}

/// Counts signs of life; each is of one step.
#[derive(Default)]
struct Pulse {
    recorder: Recorder,
    beats: Cell<u32>,
    of_steps: RefCell<Vec<u32>>,
}

impl Reporter for Pulse {
    fn send(&self, message: FromWorker) -> Result<(), ClientError> {
        self.recorder.send(message)
    }

    fn mark(&self, phase: Phase, step: u64) {
        let done = self.of_steps.borrow().len() as u64;
        if phase == Phase::Compute && step > done {
            self.of_steps.borrow_mut().push(self.beats.take());
        }
    }

    fn alive(&self) {
        self.beats.set(self.beats.get() + 1);
    }

    fn stop_requested(&self) -> bool {
        false
    }
}

#[test]
fn each_micro_batch_of_a_long_step_is_a_sign_of_life() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    for execution in [Execution::Tape, Execution::Plan] {
        let mut config = config(2);
        config.train.accumulation = 3;
        config.train.execution = execution;
        let pulse = Pulse::default();
        tch::set_num_threads(1);
        train(&config, &task(&dir.path().join(format!("{execution:?}")), &staged, None), &pulse, &Solo).unwrap();
        let beats = pulse.of_steps.take();
        assert!(beats.len() == 12 && beats.iter().all(|beats| (6..20).contains(beats)), "{execution:?}: {beats:?}");
    }
}
