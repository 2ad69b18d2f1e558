//! Ranks that share the state of training learn what ranks learn that each have all of it, and leave the same checkpoints.

use crate::session::{
    PATIENCE,
    data::{commit_last, config, stage, task},
    floats, tensors,
};
use enn_broker::tcpstore::{Limits, serve};
use enn_common::{
    config::{
        RunConfig,
        train::{Execution, Precision, Recompute, Strategy, TrainConfig},
    },
    wire::message::FromWorker,
};
use enn_worker::{
    comm::{
        CommError, Forming, Gloo, GlooOptions, Meshed, ProcessGroup, Shm, ShmFormed, ShmOptions, Solo, Store, StoreAddr,
    },
    session::{Recorder, RoundTask, TrainTask, train},
};
use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

/// A training: in how many ranks on how many nodes, how those of a node add up, from where, to which step.
#[derive(Clone, Copy)]
struct Way<'a> {
    nodes: &'a [u32],
    shared_memory: bool,
    resume: Option<&'a Path>,
    stop: Option<u64>,
}

impl Way<'_> {
    fn size(self) -> u32 {
        self.nodes.iter().sum()
    }

    /// Ranks on the node of this one.
    fn local(self, rank: u32) -> u32 {
        let all = self.nodes.iter().flat_map(|&node| (0..node).map(move |_| node));
        all.take(rank as usize + 1).last().unwrap()
    }
}

const SHARED: [Strategy; 2] = [Strategy::Zero1, Strategy::Fsdp];
const TWO: Way<'static> = Way { nodes: &[2], shared_memory: false, resume: None, stop: None };
const TWO_OF_TWO: Way<'static> = Way { nodes: &[2, 2], ..TWO };

type Group = Box<dyn ProcessGroup>;

fn form(store: &Store, (rank, size): (u32, u32), shm: bool, forming: &Forming) -> Result<Group, CommError> {
    let timeout = PATIENCE;
    if !shm {
        return Ok(Box::new(Gloo::form(store, &GlooOptions { rank, size, timeout }, forming)?));
    }
    match Shm::form(store, &ShmOptions { rank, size, timeout }, forming)? {
        ShmFormed::Group(group) => Ok(Box::new(group)),
        ShmFormed::Refused { rank, reason } => panic!("rank {rank}: {reason}"),
    }
}

fn group(store: Store, rank: u32, way: Way<'_>) -> Group {
    let forming = Forming::within(PATIENCE);
    let shm = way.shared_memory;
    let whole = form(&store, (rank, way.size()), shm && way.nodes.len() == 1, &forming).unwrap();
    let inner = move |store: &Store, at: (u32, u32), together: bool, forming: &Forming| {
        form(store, at, shm && together, forming)
    };
    Box::new(Meshed::new(whole, store, Box::new(inner), &forming, PATIENCE))
}

/// Trains in `dir`: the last checkpoint.
fn run(config: &RunConfig, dir: &Path, staged: &Path, way: Way<'_>) -> PathBuf {
    commit_last(&told(config, dir, staged, way), config, staged)
}

/// Trains in `dir`: what the ranks tell.
fn told(config: &RunConfig, dir: &Path, staged: &Path, way: Way<'_>) -> Vec<FromWorker> {
    let store = serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap();
    let port = store.addr().port();
    std::thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                tch::set_num_threads(1);
                let group: Group = if way.size() == 1 {
                    Box::new(Solo)
                } else {
                    let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: "round-0".into() };
                    group(Store::connect(addr, PATIENCE).unwrap(), rank, way)
                };
                let recorder = way.stop.map_or_else(Recorder::default, Recorder::stopping_at);
                let task = task(dir, staged, way.resume.map(Path::to_owned));
                let round = RoundTask { local: way.local(rank), ..task.round.clone() };
                train(config, &TrainTask { round, ..task }, &recorder, &*group).unwrap();
                group.shutdown(PATIENCE).unwrap();
                recorder.take()
            })
        };
        let ranks: Vec<_> = (0..way.size()).map(rank).collect();
        ranks.into_iter().flat_map(|rank| rank.join().unwrap()).collect()
    })
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
fn judging_other_weights_leaves_the_low_precision_copies_of_a_share_those_of_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let moments = |every: u64| {
        let mut config = with(Strategy::Fsdp, 2);
        config.train.precision = Precision::Bf16;
        config.train.validate_every_steps = every;
        let mut all = tensors(&run(&config, &dir.path().join(every.to_string()), &staged, TWO));
        all.retain(|name, _| name.contains("exp_avg"));
        all
    };
    let seldom = moments(0);
    let often = moments(1);
    assert!(!seldom.is_empty());
    assert!(seldom == often, "steps after a validation computed with other weights");
}

#[test]
fn a_shared_state_learns_the_same_in_every_world() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let expected = tensors(&run(&with(Strategy::Ddp, 3), &dir.path().join("ddp"), &staged, TWO));
    for strategy in SHARED {
        for (nodes, shared_memory) in [(&[2], false), (&[2], true), (&[3], false)] {
            let place = format!("{strategy:?}, {nodes:?} ranks, shared memory {shared_memory}");
            let way = Way { nodes, shared_memory, ..TWO };
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
        for (strategy, nodes) in
            [(Strategy::Ddp, &[1]), (Strategy::Zero1, &[3]), (Strategy::Fsdp, &[3]), (Strategy::Fsdp, &[1])]
        {
            let place = format!("{shared:?}, then {strategy:?} in {nodes:?}");
            let path = run(&with(strategy, 3), &dir.join(&place), &staged, Way { nodes, ..on });
            assert_near(&whole, &tensors(&path), &place);
        }
    }
}

#[test]
fn nodes_that_each_have_all_learn_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let expected = tensors(&run(&with(Strategy::Ddp, 3), &dir.path().join("ddp"), &staged, TWO));
    for (nodes, shared_memory, accumulation) in
        [(&[2, 2][..], false, 1), (&[2, 2], true, 1), (&[2, 2], true, 2), (&[2, 2, 2], true, 1), (&[3, 3], false, 1)]
    {
        let place = format!("{nodes:?}, shared memory {shared_memory}, {accumulation} micro-batches");
        let mut config = with(Strategy::Hsdp, 3);
        config.train.accumulation = accumulation;
        let path = run(&config, &dir.path().join(&place), &staged, Way { nodes, shared_memory, ..TWO });
        assert_near(&expected, &tensors(&path), &place);
    }
}

#[test]
fn what_nodes_that_each_have_all_save_goes_on_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let dir = dir.path();
    let config = with(Strategy::Hsdp, 3);
    let whole = tensors(&run(&config, &dir.join("whole"), &staged, TWO_OF_TWO));
    let half = run(&config, &dir.join("half"), &staged, Way { stop: Some(8), ..TWO_OF_TWO });
    let same = tensors(&run(&config, &dir.join("same"), &staged, Way { resume: Some(&half), ..TWO_OF_TWO }));
    assert!(whole == same, "the same world goes on with the same bits");
    for (strategy, nodes) in
        [(Strategy::Ddp, &[1][..]), (Strategy::Zero1, &[3]), (Strategy::Fsdp, &[2]), (Strategy::Hsdp, &[2, 2, 2])]
    {
        let place = format!("hsdp, then {strategy:?} in {nodes:?}");
        let path = run(&with(strategy, 3), &dir.join(&place), &staged, Way { nodes, resume: Some(&half), ..TWO });
        assert_near(&whole, &tensors(&path), &place);
    }
    for strategy in [Strategy::Ddp, Strategy::Zero1, Strategy::Fsdp] {
        let place = format!("{strategy:?}, then hsdp");
        let half = run(&with(strategy, 3), &dir.join(format!("{place}, half")), &staged, Way { stop: Some(8), ..TWO });
        let path = run(&config, &dir.join(&place), &staged, Way { resume: Some(&half), ..TWO_OF_TWO });
        assert_near(&whole, &tensors(&path), &place);
    }
}

/// What the first rank says of the strategy; and every rank saves less than its share, where nodes have the same.
#[test]
fn nodes_that_cannot_each_have_all_say_what_they_do_instead() {
    let dir = tempfile::tempdir().unwrap();
    let staged = stage(dir.path());
    let expected = tensors(&run(&with(Strategy::Ddp, 1), &dir.path().join("ddp"), &staged, TWO));
    for (nodes, sentence) in [
        (&[2, 2][..], "strategy hsdp: as asked, over 2 nodes of 2 workers"),
        (&[2, 1], "strategy fsdp in place of hsdp: the nodes have 2, 1 workers, and it needs the same number on each"),
        (&[3], "strategy fsdp in place of hsdp: all workers are on one node, and no other has what they share"),
        (&[1, 1], "strategy ddp in place of hsdp: every node has one worker, and nobody to share with"),
        (&[1], "strategy ddp in place of hsdp: there is one worker"),
    ] {
        let config = with(Strategy::Hsdp, 1);
        let told = told(&config, &dir.path().join(format!("{nodes:?}")), &staged, Way { nodes, ..TWO });
        let decisions: Vec<&str> = told
            .iter()
            .filter_map(|m| if let FromWorker::Decided { decision } = m { Some(&decision[..]) } else { None })
            .filter(|decision| decision.starts_with("strategy"))
            .collect();
        assert_eq!(decisions, [sentence], "{nodes:?}");
        assert_near(&expected, &tensors(&commit_last(&told, &config, &staged)), sentence);
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
