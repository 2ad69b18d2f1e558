//! Ranks that share the state of training learn what ranks learn that each have all of it, and leave the same checkpoints.

use crate::{
    PATIENCE,
    data::{commit_last, config, stage, task},
    floats, tensors,
};
use enn_broker::store::{Limits, serve};
use enn_common::{
    config::{
        RunConfig,
        train::{Execution, Precision, Recompute, Strategy, TrainConfig},
    },
    wire::message::FromWorker,
};
use enn_worker::{
    comm::{Forming, Gloo, GlooOptions, ProcessGroup, Shm, ShmFormed, ShmOptions, Solo, Store, StoreAddr},
    session::{Recorder, train},
};
use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

/// A training: in how many ranks, how they add up, from where, to which step.
#[derive(Clone, Copy)]
struct Way<'a> {
    size: u32,
    shared_memory: bool,
    resume: Option<&'a Path>,
    stop: Option<u64>,
}

const SHARED: [Strategy; 2] = [Strategy::Zero1, Strategy::Fsdp];
const TWO: Way<'static> = Way { size: 2, shared_memory: false, resume: None, stop: None };

fn group(store: &Store, rank: u32, way: Way<'_>) -> Box<dyn ProcessGroup> {
    let (size, timeout, forming) = (way.size, PATIENCE, Forming::within(PATIENCE));
    if !way.shared_memory {
        return Box::new(Gloo::form(store, &GlooOptions { rank, size, timeout }, &forming).unwrap());
    }
    match Shm::form(store, &ShmOptions { rank, size, timeout }, &forming).unwrap() {
        ShmFormed::Group(group) => Box::new(group),
        ShmFormed::Refused { rank, reason } => panic!("rank {rank}: {reason}"),
    }
}

/// Trains in `dir`: the last checkpoint.
fn run(config: &RunConfig, dir: &Path, staged: &Path, way: Way<'_>) -> PathBuf {
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
    let port = store.addr().port();
    let messages: Vec<FromWorker> = std::thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                tch::set_num_threads(1);
                let group: Box<dyn ProcessGroup> = if way.size == 1 {
                    Box::new(Solo)
                } else {
                    let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: "round-0".into() };
                    group(&Store::connect(addr, PATIENCE).unwrap(), rank, way)
                };
                let recorder = way.stop.map_or_else(Recorder::default, Recorder::stopping_at);
                train(config, &task(dir, staged, way.resume.map(Path::to_owned)), &recorder, &*group).unwrap();
                group.shutdown(PATIENCE).unwrap();
                recorder.take()
            })
        };
        let ranks: Vec<_> = (0..way.size).map(rank).collect();
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    });
    commit_last(&messages, config, staged)
}

fn with(strategy: Strategy, epochs: u64) -> RunConfig {
    let mut config = config(epochs);
    config.train.strategy = strategy;
    // Several buckets: the model has 30 thousand weights.
    config.train.bucket_mib = 0.01;
    config
}

fn assert_near(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>, place: &str) {
    assert!(a.keys().eq(b.keys()), "{place}");
    // The keys' bias does not change a softmax: its gradient is rounding noise, which AdamW makes as large as any other.
    for (name, bytes) in a.iter().filter(|(name, _)| !name.contains("attention.kv.bias") && !name.contains("progress"))
    {
        assert_eq!(bytes.len(), b[name].len(), "{place}, {name}");
        let pairs = floats(bytes).into_iter().zip(floats(&b[name]));
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-4, "{place}, {name} differs by {worst}");
    }
}

#[test]
fn a_shared_state_learns_the_same_in_every_world() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let expected = tensors(&run(&with(Strategy::Ddp, 3), &dir.path().join("ddp"), &staged, TWO));
    for strategy in SHARED {
        for (size, shared_memory) in [(2, false), (2, true), (3, false)] {
            let place = format!("{strategy:?}, {size} ranks, shared memory {shared_memory}");
            let way = Way { size, shared_memory, ..TWO };
            let path = run(&with(strategy, 3), &dir.path().join(&place), &staged, way);
            assert_near(&expected, &tensors(&path), &place);
        }
    }
}

#[test]
fn a_shared_state_goes_on_in_any_world_and_strategy() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    for shared in SHARED {
        let dir = dir.path().join(format!("{shared:?}"));
        let config = with(shared, 3);
        let whole = tensors(&run(&config, &dir.join("whole"), &staged, TWO));
        let half = run(&config, &dir.join("half"), &staged, Way { stop: Some(8), ..TWO });
        let on = Way { resume: Some(&half), ..TWO };
        let same = tensors(&run(&config, &dir.join("same"), &staged, on));
        assert!(whole == same, "{shared:?}: the same world goes on with the same bits");
        for (strategy, size) in [(Strategy::Ddp, 1), (Strategy::Zero1, 3), (Strategy::Fsdp, 3), (Strategy::Fsdp, 1)] {
            let place = format!("{shared:?}, then {strategy:?} in {size}");
            let path = run(&with(strategy, 3), &dir.join(&place), &staged, Way { size, ..on });
            assert_near(&whole, &tensors(&path), &place);
        }
    }
}

#[test]
fn a_shared_state_learns_the_same_however_its_steps_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let learnt = |strategy, change: &dyn Fn(&mut TrainConfig), name: &str| {
        let mut config = with(strategy, 3);
        change(&mut config.train);
        tensors(&run(&config, &dir.path().join(name), &staged, TWO))
    };
    let plain = learnt(Strategy::Fsdp, &|_| {}, "plain");
    let taped = learnt(Strategy::Fsdp, &|train| train.execution = Execution::Tape, "taped");
    assert!(plain == taped, "a plan and the code give the same bits");
    let again = learnt(Strategy::Fsdp, &|train| train.recompute = Recompute::Always, "computed again");
    assert!(plain == again, "activations that are computed again are the same bits");
    for (place, change) in [
        ("accumulated", &(|train: &mut TrainConfig| train.accumulation = 2) as &dyn Fn(&mut TrainConfig)),
        ("clipped", &|train: &mut TrainConfig| train.clip = 0.01),
    ] {
        let whole = learnt(Strategy::Ddp, change, &format!("{place}, whole"));
        assert_near(&whole, &learnt(Strategy::Fsdp, change, place), place);
    }
    // Low precision: the copies are shared like the weights. What is rounded differs with the last bits of what it is rounded from.
    let low = |train: &mut TrainConfig| train.precision = Precision::Bf16;
    let [whole, shared] =
        [Strategy::Ddp, Strategy::Fsdp].map(|strategy| learnt(strategy, &low, &format!("{strategy:?} low")));
    let largest = |name: &str| {
        let pairs = floats(&whole[name]).into_iter().zip(floats(&shared[name]));
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let worst = whole.keys().filter(|name| name.starts_with("model.")).map(|name| largest(name)).fold(0.0, f32::max);
    assert!(worst < 0.05 && whole.keys().eq(shared.keys()), "{worst}");
}
