//! Real processes of one machine over shared memory: against Gloo, in random sequences, and when a rank dies, leaves, hangs
//! or ends the group in the middle.
//!
//! Every rank but 0 is this test binary started again (`child`, told who it is through the environment).

#![expect(clippy::unwrap_used, reason = "a test ends where something is wrong")]

use crate::peer::{self, PATIENCE, Peer, connect, peer, store};
use enn_worker::comm::{CommError, Forming, Gloo, GlooOptions, ProcessGroup, Reduce, Shm, ShmFormed, ShmOptions};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// A death or an abort is known long before this.
const SOON: Duration = Duration::from_secs(1);
const KINDS: [Kind; 5] = [Kind::Float, Kind::Double, Kind::Int64, Kind::BFloat16, Kind::Half];
const REDUCES: [Reduce; 3] = [Reduce::Sum, Reduce::Min, Reduce::Max];
const MIB_64: i64 = 16 << 20;

fn shm(port: u16, rank: u32, size: u32, timeout: Duration) -> Box<Shm> {
    match Shm::form(&connect(port, 0), &ShmOptions { rank, size, timeout }, &Forming::within(PATIENCE)).unwrap() {
        ShmFormed::Group(group) => Box::new(group),
        ShmFormed::Refused { rank, reason } => panic!("rank {rank}: {reason}"),
    }
}

fn peers(port: u16, size: u32, part: &str) -> Vec<Peer> {
    (1..size).map(|rank| peer(module_path!(), port, rank, size, part)).collect()
}

#[test]
#[ignore = "the part of a peer; the other tests start it"]
fn child() {
    let Some((port, rank, size, word)) = peer::part() else { return };
    tch::set_num_threads(1);
    let group = shm(port, rank, size, PATIENCE);
    match word.as_str() {
        "gloo" => {
            beside_gloo(port, &*group);
            group.shutdown(PATIENCE).unwrap();
        }
        "shared" => {
            shared_tensors(&*group);
            group.shutdown(PATIENCE).unwrap();
        }
        "random" => {
            random_sequences(&*group);
            group.shutdown(PATIENCE).unwrap();
        }
        "linger" => {
            group.barrier(PATIENCE).unwrap();
            // Until the test kills it.
            std::thread::park_timeout(PATIENCE);
        }
        "busy" => {
            let bucket = Tensor::ones([MIB_64 / 4], (Kind::Float, Device::Cpu));
            group.barrier(PATIENCE).unwrap();
            while group.all_reduce(&bucket, Reduce::Max).unwrap().wait(PATIENCE).is_ok() {}
        }
        "leave" => {
            group.barrier(PATIENCE).unwrap();
            group.shutdown(PATIENCE).unwrap();
            std::thread::park_timeout(PATIENCE);
        }
        "other" => {
            let error = group.all_reduce_sum(&Tensor::ones([7], (Kind::Float, Device::Cpu))).unwrap().wait(PATIENCE);
            assert!(error.is_err());
        }
        "cut" => {
            group.barrier(PATIENCE).unwrap();
            let begun = Instant::now();
            let work = group.all_reduce_sum(&Tensor::ones([7], (Kind::Float, Device::Cpu))).unwrap();
            let error = work.wait(PATIENCE).unwrap_err();
            assert!(matches!(error, CommError::PeerLost { peer: 0, what: "ended the group", .. }), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        }
        part => panic!("no part {part}"),
    }
}

/// Numbers that differ by place and rank, small enough to be exact in every kind.
fn values(count: i64, kind: Kind, rank: u32) -> Tensor {
    let step = i64::from(rank) * 5 + 3;
    let values = (Tensor::arange(count, (Kind::Int64, Device::Cpu)) * step).remainder(23) - 11;
    if kind == Kind::Int64 { values } else { values.to_kind(Kind::Double).g_div_scalar(4.0).to_kind(kind) }
}

/// Numbers whose sums round.
fn fractions(count: i64, kind: Kind, rank: u32) -> Tensor {
    let step = 0.618_033_988_749_894_9 + f64::from(rank) * 0.37;
    let places = Tensor::arange(count, (Kind::Double, Device::Cpu)) * step;
    ((&places - places.floor() - 0.5) * 100.0).to_kind(kind)
}

/// Fails when the bits of `tensor` differ between ranks.
fn same_on_all(group: &dyn ProcessGroup, tensor: &Tensor) {
    let bytes: Vec<u8> = Vec::try_from(tensor.view_dtype(Kind::Uint8).flatten(0, -1)).unwrap();
    let digest = i64::from_le_bytes(blake3::hash(&bytes).as_bytes()[..8].try_into().unwrap());
    let low = Tensor::from_slice(&[digest]);
    let high = Tensor::from_slice(&[digest]);
    group.all_reduce(&low, Reduce::Min).unwrap().wait(PATIENCE).unwrap();
    group.all_reduce(&high, Reduce::Max).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(low, high, "the ranks hold different bits");
}

fn beside_gloo(port: u16, shm: &dyn ProcessGroup) {
    let options = GlooOptions { rank: shm.rank(), size: shm.size(), timeout: PATIENCE };
    let gloo = Gloo::form(&connect(port, 0), &options, &Forming::within(PATIENCE)).unwrap();
    let mut sizes = vec![0, 1, 3, 1023, 16_384, 70_001, 262_147];
    if shm.size() == 2 {
        sizes.push(MIB_64);
    }
    for count in sizes {
        // The large one in one kind only: this is a test, and not the bench.
        for kind in KINDS.into_iter().take(if count == MIB_64 { 1 } else { KINDS.len() }) {
            for reduce in REDUCES.into_iter().take(if count == MIB_64 { 1 } else { REDUCES.len() }) {
                let ours = values(count, kind, shm.rank());
                let theirs = values(count, kind, shm.rank());
                shm.all_reduce(&ours, reduce).unwrap().wait(PATIENCE).unwrap();
                gloo.all_reduce(&theirs, reduce).unwrap().wait(PATIENCE).unwrap();
                assert_eq!(ours, theirs, "{count} {kind:?} {reduce:?}");
            }
            if matches!(kind, Kind::Float | Kind::Double) && count < MIB_64 {
                let ours = fractions(count, kind, shm.rank());
                let theirs = fractions(count, kind, shm.rank());
                shm.all_reduce_sum(&ours).unwrap().wait(PATIENCE).unwrap();
                gloo.all_reduce_sum(&theirs).unwrap().wait(PATIENCE).unwrap();
                assert!(ours.allclose(&theirs, 1e-5, 1e-4, false), "{count} {kind:?}");
                same_on_all(shm, &ours);
            }
        }
        for kind in [Kind::Float, Kind::Bool, Kind::Int64].into_iter().take(if count == MIB_64 { 1 } else { 3 }) {
            let root = shm.size() - 1;
            let received = values(count, Kind::Int64, shm.rank()).to_kind(kind);
            shm.broadcast(&received, root).unwrap().wait(PATIENCE).unwrap();
            assert_eq!(received, values(count, Kind::Int64, root).to_kind(kind), "{count} {kind:?}");
        }
    }
    gloo.barrier(PATIENCE).unwrap();
    Box::new(gloo).shutdown(PATIENCE).unwrap();
}

fn against_gloo(size: u32) {
    let store = store();
    let port = store.addr().port();
    let mut peers = peers(port, size, "gloo");
    let group = shm(port, 0, size, PATIENCE);
    assert_eq!((group.rank(), group.size(), group.backend()), (0, size, "shm"));
    beside_gloo(port, &*group);
    group.shutdown(PATIENCE).unwrap();
    peers.iter_mut().for_each(Peer::ends_well);
}

#[test]
fn two_ranks_get_what_gloo_gets() {
    against_gloo(2);
}

#[test]
fn three_ranks_get_what_gloo_gets() {
    against_gloo(3);
}

#[test]
fn four_ranks_get_what_gloo_gets() {
    against_gloo(4);
}

/// The same numbers on every rank, from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn count(&mut self) -> i64 {
        let size = [8, 1000, 40_000, 300_000][self.below(4) as usize];
        self.below(size).cast_signed()
    }
}

/// Tensors in memory of all ranks, whole and in part, among private ones.
fn shared_tensors(group: &dyn ProcessGroup) {
    for kind in [Kind::Float, Kind::Double, Kind::Int64, Kind::BFloat16] {
        let counts = [1, 5, 1023, 200_003];
        let private: Vec<Tensor> = counts.map(|count| values(count, kind, group.rank())).into();
        let shared: Vec<Tensor> =
            private.iter().map(|tensor| group.shared_like(tensor).unwrap().expect("memory is shared here")).collect();
        assert!(shared.iter().all(|tensor| tensor.abs().max().double_value(&[]) == 0.0), "fresh memory is zero");
        for reduce in REDUCES {
            let mut flying = Vec::new();
            for (count, shared) in counts.into_iter().zip(&shared) {
                shared.shallow_clone().copy_(&values(count, kind, group.rank()));
                let part = shared.narrow(0, count / 3, count - count / 3);
                let private = values(count, kind, group.rank());
                flying.push((group.all_reduce(&part, reduce).unwrap(), group.all_reduce(&private, reduce).unwrap()));
                let sum = (1..group.size()).map(|rank| values(count, kind, rank)).fold(
                    values(count, kind, 0),
                    |sum, next| match reduce {
                        Reduce::Sum => sum + next,
                        Reduce::Min => sum.minimum(&next),
                        Reduce::Max => sum.maximum(&next),
                    },
                );
                let (one, other) = flying.last().unwrap();
                one.wait(PATIENCE).unwrap();
                other.wait(PATIENCE).unwrap();
                assert_eq!(private, sum, "{kind:?} {reduce:?} {count}");
                assert_eq!(part, sum.narrow(0, count / 3, count - count / 3), "{kind:?} {reduce:?} {count}");
                let before = shared.narrow(0, 0, count / 3);
                assert_eq!(before, values(count, kind, group.rank()).narrow(0, 0, count / 3), "the rest is untouched");
            }
        }
    }
}

#[test]
fn tensors_in_shared_memory_are_reduced_in_place() {
    for size in [2, 3] {
        let store = store();
        let port = store.addr().port();
        let mut peers = peers(port, size, "shared");
        let group = shm(port, 0, size, PATIENCE);
        shared_tensors(&*group);
        group.shutdown(PATIENCE).unwrap();
        peers.iter_mut().for_each(Peer::ends_well);
    }
}

/// What the ranks' `fractions` come to when added in the order of the ranks.
fn expected(count: i64, kind: Kind, size: u32, reduce: Reduce) -> Tensor {
    (1..size).map(|rank| fractions(count, kind, rank)).fold(fractions(count, kind, 0), |sum, next| match reduce {
        Reduce::Sum => sum + next,
        Reduce::Min => sum.minimum(&next),
        Reduce::Max => sum.maximum(&next),
    })
}

fn random_sequences(group: &dyn ProcessGroup) {
    let mut dice = Dice(7);
    for sequence in 0..200 {
        let mut flying = Vec::new();
        for _ in 0..1 + dice.below(6) {
            let count = dice.count();
            let kind = [Kind::Float, Kind::Double][dice.below(2) as usize];
            match dice.below(8) {
                0 => group.barrier(PATIENCE).unwrap(),
                1 | 2 => {
                    let root = dice.below(u64::from(group.size())) as u32;
                    let tensor = fractions(count, kind, group.rank());
                    let work = group.broadcast(&tensor, root).unwrap();
                    flying.push((work, tensor, fractions(count, kind, root)));
                }
                _ => {
                    let reduce = REDUCES[dice.below(3) as usize];
                    let tensor = fractions(count, kind, group.rank());
                    let work = group.all_reduce(&tensor, reduce).unwrap();
                    flying.push((work, tensor, expected(count, kind, group.size(), reduce)));
                }
            }
        }
        for (work, tensor, expected) in &flying {
            work.wait(PATIENCE).unwrap();
            assert_eq!(tensor, expected, "sequence {sequence}: not the sum in the order of the ranks, to the bit");
        }
    }
}

#[test]
fn random_sequences_come_out_to_the_bit() {
    let store = store();
    let port = store.addr().port();
    let mut peers = peers(port, 3, "random");
    let group = shm(port, 0, 3, PATIENCE);
    random_sequences(&*group);
    group.shutdown(PATIENCE).unwrap();
    peers.iter_mut().for_each(Peer::ends_well);
}

#[test]
fn a_killed_peer_is_named_at_once() {
    let store = store();
    let port = store.addr().port();
    let _first = peer(module_path!(), port, 1, 3, "linger");
    let mut second = peer(module_path!(), port, 2, 3, "linger");
    let group = shm(port, 0, 3, PATIENCE);
    group.barrier(PATIENCE).unwrap();
    // Rank 1 lives and never comes; rank 2 dies.
    let tensor = Tensor::ones([1000], (Kind::Float, Device::Cpu));
    let work = group.all_reduce_sum(&tensor).unwrap();
    second.0.kill().unwrap();
    let killed = Instant::now();
    let error = work.wait(PATIENCE).unwrap_err();
    assert!(matches!(error, CommError::PeerLost { operation: "all_reduce", peer: 2, what: "died", .. }), "{error}");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    let again = group.all_reduce_sum(&tensor).unwrap().wait(PATIENCE).unwrap_err();
    assert!(matches!(again, CommError::PeerLost { peer: 2, .. }), "{again}");
    let ending = Instant::now();
    group.abort(PATIENCE).unwrap();
    assert!(ending.elapsed() < SOON, "{:?}", ending.elapsed());
}

#[test]
fn a_peer_killed_in_the_middle_of_a_large_sum_is_named_at_once() {
    let store = store();
    let port = store.addr().port();
    let mut busy = peer(module_path!(), port, 1, 2, "busy");
    let group = shm(port, 0, 2, PATIENCE);
    let bucket = Tensor::ones([MIB_64 / 4], (Kind::Float, Device::Cpu));
    group.barrier(PATIENCE).unwrap();
    group.all_reduce(&bucket, Reduce::Max).unwrap().wait(PATIENCE).unwrap();
    let works: Vec<_> = (0..50).map(|_| group.all_reduce(&bucket, Reduce::Max).unwrap()).collect();
    works[0].wait(PATIENCE).unwrap();
    busy.0.kill().unwrap();
    let killed = Instant::now();
    let error = works[49].wait(PATIENCE).unwrap_err();
    assert!(matches!(error, CommError::PeerLost { peer: 1, what: "died", .. }), "{error}");
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    assert!(works.iter().all(|work| work.is_done().unwrap()));
}

#[test]
fn abort_cuts_what_is_in_flight_here_and_there() {
    let store = store();
    let port = store.addr().port();
    let mut cut = peer(module_path!(), port, 1, 3, "cut");
    let _linger = peer(module_path!(), port, 2, 3, "linger");
    let group = shm(port, 0, 3, PATIENCE);
    group.barrier(PATIENCE).unwrap();
    let work = group.all_reduce_sum(&Tensor::ones([7], (Kind::Float, Device::Cpu))).unwrap();
    let behind = group.broadcast(&Tensor::ones([7], (Kind::Float, Device::Cpu)), 0).unwrap();
    assert!(!work.is_done().unwrap());
    assert!(matches!(work.wait(Duration::from_millis(100)), Err(CommError::TimedOut { operation: "all_reduce", .. })));
    let begun = Instant::now();
    group.abort(PATIENCE).unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(matches!(work.wait(Duration::ZERO), Err(CommError::Aborted { operation: "all_reduce", .. })));
    assert!(matches!(behind.wait(Duration::ZERO), Err(CommError::Aborted { operation: "broadcast", .. })));
    cut.ends_well();
}

#[test]
fn a_peer_that_left_is_named_and_one_that_hangs_at_the_deadline() {
    let store = store();
    let port = store.addr().port();
    let _peer = peer(module_path!(), port, 1, 2, "leave");
    let group = shm(port, 0, 2, PATIENCE);
    group.barrier(PATIENCE).unwrap();
    let begun = Instant::now();
    let error = group.barrier(PATIENCE).unwrap_err();
    assert!(error.to_string().contains("rank 1, left the group"), "{error}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());

    let store = self::store();
    let port = store.addr().port();
    let _peer = peer(module_path!(), port, 1, 2, "linger");
    let group = shm(port, 0, 2, Duration::from_millis(300));
    assert!(group.barrier(PATIENCE).is_ok(), "the peer was there");
    let begun = Instant::now();
    let error = group.barrier(PATIENCE).unwrap_err();
    assert!(matches!(error, CommError::PeerSilent { operation: "barrier", peer: 1, .. }), "{error}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn ranks_out_of_step_hear_of_both_sides() {
    let store = store();
    let port = store.addr().port();
    let mut other = peer(module_path!(), port, 1, 2, "other");
    let group = shm(port, 0, 2, PATIENCE);
    let work = group.all_reduce_sum(&Tensor::ones([8], (Kind::Double, Device::Cpu))).unwrap();
    let error = work.wait(PATIENCE).unwrap_err().to_string();
    // Whoever looks first tells the other side.
    assert!(
        (error.contains("64 bytes") && error.contains("28 bytes")) || error.contains("rank 1, ended the group"),
        "{error}"
    );
    other.ends_well();
}

#[test]
fn what_cannot_be_reduced_is_refused_by_name() {
    let store = store();
    let group = shm(store.addr().port(), 0, 1, PATIENCE);
    let refused = |tensor: &Tensor| group.all_reduce_sum(tensor).unwrap_err().to_string();
    let view = Tensor::ones([4, 4], (Kind::Float, Device::Cpu)).transpose(0, 1).narrow(0, 0, 2);
    assert!(refused(&view).contains("a view with gaps"));
    assert!(refused(&Tensor::ones([1], (Kind::Int8, Device::Cpu))).contains("Int8"));
    let error = group.broadcast(&Tensor::ones([1], (Kind::Float, Device::Cpu)), 1).unwrap_err();
    assert!(matches!(error, CommError::RootOutside { root: 1, size: 1 }), "{error}");
    let alone = Tensor::from_slice(&[1.5f32]);
    group.all_reduce_sum(&alone).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(alone.double_value(&[0]), 1.5);
}

#[test]
fn one_rank_that_cannot_map_makes_all_say_no() {
    let server = store();
    let store = connect(server.addr().port(), 0);
    // Rank 0 of a node where nothing can be shared.
    store.set("shm/segment", b"none").unwrap();
    store.set("shm/rank-0", b"no memory").unwrap();
    let formed =
        Shm::form(&store, &ShmOptions { rank: 1, size: 2, timeout: PATIENCE }, &Forming::within(PATIENCE)).unwrap();
    assert!(matches!(&formed, ShmFormed::Refused { rank: 0, reason } if reason == "memory"), "{formed:?}");
    // And the other way round: rank 1 looks in the wrong place.
    store.set("shm/segment", format!("{} 9999 1 2", std::process::id()).as_bytes()).unwrap();
    store.set("shm/rank-0", b"ok 1").unwrap();
    let formed =
        Shm::form(&store, &ShmOptions { rank: 1, size: 2, timeout: PATIENCE }, &Forming::within(PATIENCE)).unwrap();
    assert!(matches!(&formed, ShmFormed::Refused { rank: 1, .. }), "{formed:?}");
}
