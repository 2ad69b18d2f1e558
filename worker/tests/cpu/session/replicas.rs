//! Workers that die where nodes each have all of the state: what they had comes from their replicas, and from a checkpoint only when no
//! replica is left.

use crate::session::{
    data::config,
    process::{Run, Worker, story},
};
use enn_common::{
    config::{RunConfig, train::Strategy},
    wire::message::{Assignment, FromWorker},
};
use nix::sys::signal::Signal;

fn shared(strategy: Strategy, epochs: u64) -> RunConfig {
    let mut config = config(epochs);
    config.train.strategy = strategy;
    config.train.bucket_mib = 0.01;
    config
}

/// A seat on nodes of so many workers, in order.
fn seat(run: &Run, round: u64, rank: u32, nodes: &[u32]) -> Assignment {
    let mut first = 0;
    let mut own = 0;
    for &node in nodes {
        own = node;
        if rank < first + node {
            break;
        }
        first += node;
    }
    let local_rank = rank - first;
    let local_world_size = own;
    Assignment { round, local_rank, local_world_size, ..run.assignment(rank, nodes.iter().sum()) }
}

fn begin(run: &Run, nodes: &[u32]) -> Vec<Worker> {
    (0..nodes.iter().sum()).map(|rank| run.start(&seat(run, 0, rank, nodes))).collect()
}

/// Kills these ranks when the first one, which is none of them, has ended epoch 2; what that one told. All others have left the round.
fn lose(workers: &mut [Worker], dead: &[usize]) -> Vec<FromWorker> {
    let mut told = Vec::new();
    while !matches!(told.last(), Some(FromWorker::EpochEnded(report)) if report.epoch == 2) {
        told.push(workers[0].next().unwrap());
    }
    dead.iter().for_each(|&rank| workers[rank].signal(Signal::SIGKILL));
    for rank in (0..workers.len()).filter(|rank| !dead.contains(rank)) {
        workers[rank].announce_end(0);
    }
    while !matches!(told.last(), Some(FromWorker::Halted { round: 0, .. })) {
        told.push(workers[0].next().unwrap());
    }
    for rank in (1..workers.len()).filter(|rank| !dead.contains(rank)) {
        workers[rank].halted(0);
    }
    told
}

fn decisions(told: &[FromWorker]) -> Vec<String> {
    let decision =
        |m: &FromWorker| if let FromWorker::Decided { decision } = m { Some(decision.clone()) } else { None };
    told.iter().filter_map(decision).collect()
}

#[test]
fn a_newcomer_gets_its_share_from_a_replica_and_no_bit_changes() {
    let config = shared(Strategy::Hsdp, 20);
    let nodes = [2, 2];
    let undisturbed = Run::of(&config);
    let expected = story(&begin(&undisturbed, &nodes)[0].rest());
    assert_eq!(expected.len(), 21);

    let run = Run::of(&config);
    let mut workers = begin(&run, &nodes);
    let mut told = lose(&mut workers, &[1]);
    let Some(FromWorker::Halted { step, kept: true, .. }) = told.pop() else { panic!("{told:?}") };
    assert_eq!(told.pop(), Some(FromWorker::ShareKept { round: 0, share: 0, of: 2 }));
    workers[1] = Worker::fork(run.dir.path(), 9);
    for (rank, worker) in (0..).zip(&mut workers) {
        worker.seat(&seat(&run, 1, rank, &nodes));
    }
    let received = workers[1].until(|m| matches!(m, FromWorker::StateReceived { .. }));
    // Nobody read a file: there is none.
    assert!(
        matches!(received, FromWorker::StateReceived { step: at, from: 3, bytes, .. } if at.abs_diff(step) <= 1 && at > 0 && bytes > 1000),
        "{received:?}, {step}"
    );
    told.extend(workers[0].rest());
    assert_eq!(story(&told), expected);
    let said = decisions(&told);
    let from = "comes from the workers' shares, and from no file: share 0 from worker";
    assert!(said.iter().any(|said| said.contains(from) && said.contains("share 1 from worker 3")), "{said:?}");
    for worker in &mut workers[1..] {
        assert_eq!(worker.rest().last(), Some(&FromWorker::Done { stopped: false }));
    }
    assert!(workers.iter_mut().all(|worker| worker.status().success()));
}

/// A round that ends though nobody died, as when memory was short: all shares are there, also where each is there once.
#[test]
fn shares_that_are_all_there_lose_nothing() {
    let config = shared(Strategy::Fsdp, 6);
    let undisturbed = Run::of(&config);
    let expected = story(&begin(&undisturbed, &[2])[0].rest());
    let run = Run::of(&config);
    let mut workers = begin(&run, &[2]);
    let mut told = lose(&mut workers, &[]);
    for (rank, worker) in (0..).zip(&mut workers) {
        worker.seat(&seat(&run, 1, rank, &[2]));
    }
    told.extend(workers[0].rest());
    assert_eq!(story(&told), expected);
    let said = decisions(&told);
    assert!(said.iter().any(|said| said.ends_with("share 0 from worker 0, share 1 from worker 1")), "{said:?}");
    assert_eq!(workers[1].rest().last(), Some(&FromWorker::Done { stopped: false }));
}

/// Who is left goes on alone, however they are spread.
#[test]
fn the_others_go_on_without_the_dead_and_a_whole_node_may_die() {
    for (dead, left, strategy) in [
        (&[1][..], &[1, 2][..], "strategy fsdp in place of hsdp: the nodes have 1, 2 workers"),
        (&[2, 3], &[2], "strategy fsdp in place of hsdp: all workers are on one node"),
        // One of each node, and both shares are there.
        (&[1, 2], &[1, 1], "strategy ddp in place of hsdp: every node has one worker"),
    ] {
        let run = Run::of(&shared(Strategy::Hsdp, 6));
        let mut workers = begin(&run, &[2, 2]);
        let mut told = lose(&mut workers, dead);
        let Some(FromWorker::Halted { step, kept: true, .. }) = told.pop() else { panic!("{told:?}") };
        let mut workers: Vec<Worker> = workers
            .into_iter()
            .enumerate()
            .filter(|(rank, _)| !dead.contains(rank))
            .map(|(_, worker)| worker)
            .collect();
        for (rank, worker) in (0..).zip(&mut workers) {
            worker.seat(&seat(&run, 1, rank, left));
        }
        let next =
            workers[0].until(|m| matches!(m, FromWorker::Decided { decision } if decision.starts_with("strategy")));
        assert!(matches!(&next, FromWorker::Decided { decision } if decision.starts_with(strategy)), "{next:?}");
        let told = workers[0].rest();
        let first = told.iter().find_map(|m| if let FromWorker::Stepped { step, .. } = m { Some(*step) } else { None });
        assert!(first.is_some_and(|first| first > step.saturating_sub(1)), "{first:?} after {step}");
        assert!(matches!(told.last(), Some(FromWorker::Done { .. })), "{:?}", told.last());
        for worker in &mut workers[1..] {
            assert_eq!(worker.rest().last(), Some(&FromWorker::Done { stopped: false }));
        }
    }
}

/// The last worker with a share, or any where nobody has the same: the run goes on from the checkpoint, here from the beginning,
/// and says why.
#[test]
fn a_share_that_is_gone_is_told() {
    for (strategy, nodes, dead) in
        [(Strategy::Hsdp, &[2, 2][..], &[1, 3][..]), (Strategy::Fsdp, &[2], &[1]), (Strategy::Zero1, &[2], &[1])]
    {
        let run = Run::of(&shared(strategy, 4));
        let mut workers = begin(&run, nodes);
        let told = lose(&mut workers, dead);
        let kept = strategy != Strategy::Zero1;
        assert!(
            matches!(told.last(), Some(FromWorker::Halted { kept: said, .. }) if *said == kept),
            "{:?}",
            told.last()
        );
        for &rank in dead {
            workers[rank] = Worker::fork(run.dir.path(), 10 + rank as u32);
        }
        for (rank, worker) in (0..).zip(&mut workers) {
            worker.seat(&seat(&run, 1, rank, nodes));
        }
        let told = workers[0].rest();
        let said = decisions(&told);
        let gone =
            "training begins again: of 2 shares of the state one is gone, number 1, with the last worker that had it";
        assert_eq!(said.iter().filter(|said| *said == gone).count(), 1, "{strategy:?}: {said:?}");
        let first = told.iter().find_map(|m| if let FromWorker::Stepped { step, .. } = m { Some(*step) } else { None });
        assert_eq!(first, Some(1), "{strategy:?}");
        for worker in &mut workers {
            assert!(worker.status().success());
        }
    }
}
