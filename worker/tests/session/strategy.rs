//! Ranks that share the state of training learn what ranks learn that each have all of it, and leave the same checkpoints.

use crate::{
    PATIENCE,
    data::{commit_last, config, stage, task},
    floats, tensors,
};
use enn_broker::store::{Limits, serve};
use enn_common::{
    config::{RunConfig, train::Strategy},
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
    for (size, shared_memory) in [(2, false), (2, true), (3, false)] {
        let place = format!("{size} ranks, shared memory {shared_memory}");
        let way = Way { size, shared_memory, ..TWO };
        let path = run(&with(Strategy::Zero1, 3), &dir.path().join(format!("{size}{shared_memory}")), &staged, way);
        assert_near(&expected, &tensors(&path), &place);
    }
}

#[test]
fn a_shared_state_goes_on_in_any_world_and_strategy() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let zero = with(Strategy::Zero1, 3);
    let whole = tensors(&run(&zero, &dir.path().join("whole"), &staged, TWO));
    let half = run(&zero, &dir.path().join("half"), &staged, Way { stop: Some(8), ..TWO });
    let on = Way { resume: Some(&half), ..TWO };
    let same = tensors(&run(&zero, &dir.path().join("same"), &staged, on));
    assert!(whole == same, "the same world goes on with the same bits");
    for (name, strategy, size) in
        [("ddp", Strategy::Ddp, 1), ("three", Strategy::Zero1, 3), ("alone", Strategy::Zero1, 1)]
    {
        let path = run(&with(strategy, 3), &dir.path().join(name), &staged, Way { size, ..on });
        assert_near(&whole, &tensors(&path), name);
    }
}
