//! Two real processes with a GPU each: sums by copy engines against NCCL's, and what is left when a rank stays away, ends the group or dies.
//!
//! Where there are not two GPUs, a test says so and ends. Every rank but 0 is this test binary started again (`child`, told who it is through
//! the environment).

#![cfg(feature = "cuda")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests: what goes wrong panics, what is skipped is said")]
#![expect(clippy::disallowed_methods, reason = "the environment is how a test names its child's part")]

mod peer;

use enn_worker::comm::{CommError, Forming, Linked, Nccl, ProcessGroup};
use peer::{PATIENCE, Peer, connect, peer, store};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// An end that nobody has to wait for comes within this time.
const SOON: Duration = Duration::from_secs(2);
/// How long one that gives up waits before, and how long the other one computes meanwhile.
const GIVES_UP: Duration = Duration::from_millis(500);
const COMPUTES: Duration = Duration::from_secs(4);
/// Floats: of one piece, with a last part that is shorter; of several pieces.
const LENGTHS: [i64; 3] = [3_000_017, 262_144, 61_000_001];

fn linked(port: u16, rank: u32) -> (Box<Linked>, Forming) {
    let forming = Forming::within(PATIENCE);
    let nccl = Nccl::form(&connect(port, 0), (rank, 2), rank, PATIENCE, &forming).unwrap();
    (Box::new(Linked::new(Box::new(nccl), (rank as usize, None), PATIENCE, &forming)), forming)
}

fn two_gpus() -> bool {
    let there = tch::Cuda::device_count() >= 2;
    if !there {
        eprintln!("skipped: there are not two GPUs");
    }
    there
}

fn shared(group: &Linked, rank: u32, length: i64) -> Tensor {
    let like = Tensor::zeros([length], (Kind::Float, Device::Cuda(rank as usize)));
    group.shared_like(&like).unwrap().unwrap()
}

/// What both ranks do: sums of whole arrays and of parts of them, one at a time and many in a row, by both ways.
fn sums(group: &Linked, rank: u32) {
    tch::manual_seed(i64::from(rank));
    for length in LENGTHS {
        let array = shared(group, rank, length);
        assert_eq!(group.backend(), "nccl, copy engines");
        assert_eq!(array.abs().max().double_value(&[]), 0.0);
        for (from, count) in [(0, length), (0, 1), (5, length / 3), (length / 2, length / 2), (3, 4)] {
            let numbers = Tensor::randn([length], (Kind::Float, array.device()));
            array.shallow_clone().copy_(&numbers);
            let part = array.narrow(0, from, count);
            let expected = numbers.copy();
            group.all_reduce_sum(&part).unwrap().wait(PATIENCE).unwrap();
            // A copy does not lie in memory of all.
            group.all_reduce_sum(&expected.narrow(0, from, count)).unwrap().wait(PATIENCE).unwrap();
            assert!(array.equal(&expected), "{count} from {from} of {length}");
        }
        let even = length / 2 * 2;
        let numbers = Tensor::randn([even], (Kind::Float, array.device()));
        let whole = array.narrow(0, 0, even);
        whole.shallow_clone().copy_(&numbers);
        group.reduce_scatter_sum(&whole).unwrap().wait(PATIENCE).unwrap();
        group.all_reduce_sum(&numbers).unwrap().wait(PATIENCE).unwrap();
        let own = |of: &Tensor| of.narrow(0, i64::from(rank) * even / 2, even / 2);
        assert!(own(&whole).equal(&own(&numbers)), "{length}");
    }
    // Begun in a row, behind what computes them, and waited for by the device only.
    let arrays: Vec<Tensor> = [500_000, 1_000_000, 700_000].map(|length| shared(group, rank, length)).into();
    for round in 1..=100 {
        let works = arrays.iter().map(|array| {
            let _filled = array.shallow_clone().fill_(f64::from(round) * f64::from(rank + 1));
            group.all_reduce_sum(array).unwrap()
        });
        let works: Vec<_> = works.collect();
        works.iter().for_each(|work| work.order(PATIENCE).unwrap());
        for array in &arrays {
            assert_eq!(array.min().double_value(&[]), f64::from(round) * 3.0);
            assert_eq!(array.max().double_value(&[]), f64::from(round) * 3.0);
        }
    }
}

#[test]
#[ignore = "the part of a peer; the other tests start it"]
fn child() {
    let Some((port, rank, _, word)) = peer::part() else { return };
    let (group, _forming) = linked(port, rank);
    match word.as_str() {
        "sum" => {
            sums(&group, rank);
            group.shutdown(PATIENCE).unwrap();
        }
        "linger" => {
            let _array = shared(&group, rank, 1 << 20);
            group.barrier(PATIENCE).unwrap();
            // Until the test kills it.
            std::thread::park_timeout(PATIENCE);
        }
        "give up" => {
            let array = shared(&group, rank, 1 << 20);
            let _twos = array.shallow_clone().fill_(2.0);
            group.barrier(PATIENCE).unwrap();
            let work = group.all_reduce_sum(&array).unwrap();
            let late = work.wait(GIVES_UP).unwrap_err();
            assert!(matches!(late, CommError::TimedOut { .. }), "{late}");
            drop(work);
            // The device has told all that it was given when this returns.
            group.abort(PATIENCE).unwrap();
        }
        part => panic!("no part {part}"),
    }
}

#[test]
fn copy_engines_sum_as_nccl_does() {
    if !two_gpus() {
        return;
    }
    let store = store();
    let mut peer = peer(store.addr().port(), 1, 2, "sum");
    let (group, _forming) = linked(store.addr().port(), 0);
    sums(&group, 0);
    group.shutdown(PATIENCE).unwrap();
    peer.ends_well();
}

#[test]
fn a_rank_that_says_no_speaks_for_all() {
    if !two_gpus() {
        return;
    }
    let store = store();
    let mut peer = peer(store.addr().port(), 1, 2, "linger");
    let forming = Forming::within(PATIENCE);
    let nccl = Nccl::form(&connect(store.addr().port(), 0), (0, 2), 0, PATIENCE, &forming).unwrap();
    let group = Box::new(Linked::new(Box::new(nccl), (0, Some("it must not")), PATIENCE, &forming));
    let like = Tensor::zeros([1 << 20], (Kind::Float, Device::Cuda(0)));
    assert!(group.shared_like(&like).unwrap().is_none());
    assert_eq!(group.backend(), "nccl");
    assert_eq!(group.fell_back().unwrap(), "NCCL's kernels sum gradients, not copy engines: rank 0: it must not");
    // The other one fails its own expectation of shared memory.
    assert!(!peer.0.wait().unwrap().success());
    group.abort(SOON).unwrap();
}

#[test]
fn a_sum_that_one_rank_never_comes_to_ends_with_a_cut_or_in_time_and_leaves_the_device_to_others() {
    if !two_gpus() {
        return;
    }
    for kills in [false, true] {
        let store = store();
        let mut peer: Peer = peer(store.addr().port(), 1, 2, "linger");
        let (group, forming) = linked(store.addr().port(), 0);
        let array = shared(&group, 0, 1 << 20);
        group.barrier(PATIENCE).unwrap();
        let work = group.all_reduce_sum(&array).unwrap();
        assert!(!work.is_done().unwrap());
        if kills {
            peer.0.kill().unwrap();
            peer.0.wait().unwrap();
        }
        let late = work.wait(Duration::from_millis(300)).unwrap_err();
        assert!(matches!(late, CommError::TimedOut { operation: "all_reduce", rank: 0, size: 2, .. }), "{late}");
        let cutter = forming.cutter();
        let cuts = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            cutter.cut();
        });
        let begun = Instant::now();
        let error = work.wait(PATIENCE).unwrap_err();
        assert!(matches!(error, CommError::Aborted { operation: "all_reduce", .. }), "{error}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        cuts.join().unwrap();
        assert!(group.all_reduce_sum(&array).and_then(|work| work.wait(PATIENCE)).is_err());
        let ending = Instant::now();
        drop(work);
        group.abort(PATIENCE).unwrap();
        drop(array);
        assert!(ending.elapsed() < SOON, "{:?}", ending.elapsed());
        // The device computes on.
        let ones = Tensor::ones([1000], (Kind::Float, Device::Cuda(0)));
        assert_eq!(ones.sum(Kind::Float).double_value(&[]), 1000.0);
    }
}

#[test]
fn a_sum_that_the_other_rank_gave_up_is_none_however_late_one_looks() {
    if !two_gpus() {
        return;
    }
    let store = store();
    let mut peer = peer(store.addr().port(), 1, 2, "give up");
    let (group, _forming) = linked(store.addr().port(), 0);
    let array = shared(&group, 0, 1 << 20);
    let _ones = array.shallow_clone().fill_(1.0);
    let square = Tensor::ones([8192, 8192], (Kind::Float, Device::Cuda(0)));
    let multiply = || assert_eq!(square.matmul(&square).double_value(&[0, 0]), 8192.0);
    // The first product takes longer.
    multiply();
    let begun = Instant::now();
    multiply();
    let products = COMPUTES.as_secs_f64() / begun.elapsed().as_secs_f64();
    group.barrier(PATIENCE).unwrap();
    // Begun before the other one gives up; what is summed is computed after it did.
    for _ in 0..products as usize {
        let _product = square.matmul(&square);
    }
    let work = group.all_reduce_sum(&array).unwrap();
    peer.ends_well();
    // The other one told all its words, and this device has come to the end of the sum before anybody looks.
    multiply();
    std::thread::sleep(Duration::from_millis(200));
    let lost = |error: &CommError| matches!(error, CommError::PeerLost { operation: "all_reduce", peer: 1, .. });
    let error = work.wait(PATIENCE).unwrap_err();
    assert!(lost(&error), "{error}");
    let (least, most) = (array.min().double_value(&[]), array.max().double_value(&[]));
    assert_ne!((least, most), (3.0, 3.0), "it gave up too late for this test to show anything");
    let begun = Instant::now();
    let error = group.all_reduce_sum(&array).unwrap_err();
    assert!(lost(&error), "{error}");
    group.abort(PATIENCE).unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}
