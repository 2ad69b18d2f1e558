//! Two real processes with a GPU each: collectives by copy engines against NCCL's, and what is left when a rank stays away, ends the group or
//! dies.
//!
//! Where there are not two GPUs, a test says so and ends. Every rank but 0 is this test binary started again (`child`, told who it is through
//! the environment).

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests: what goes wrong panics, what is skipped is said")]
#![expect(clippy::disallowed_methods, reason = "the environment is how a test names its child's part")]

use crate::peer::{self, PATIENCE, Peer, connect, peer, store};
use enn_worker::comm::{
    CommError, Forming, Linked, LinkedFormed, Nccl, ProcessGroup, Reduce, Shm, ShmFormed, ShmOptions, Work,
};
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};

/// An end that nobody has to wait for comes within this time.
const SOON: Duration = Duration::from_secs(2);
/// How long one that gives up waits before, and how long the other one computes meanwhile.
const GIVES_UP: Duration = Duration::from_millis(500);
const COMPUTES: Duration = Duration::from_secs(4);
/// Floats: of one piece, with a last part that is shorter; of several pieces.
const LENGTHS: [i64; 3] = [3_000_017, 262_144, 61_000_001];

/// Floats of arrays that are timed.
const RATED: i64 = 64 << 20;

type Begin<'a> = &'a dyn Fn(&dyn ProcessGroup, &Tensor) -> Result<Work, CommError>;

/// Forms with CUDA device `device`.
fn form(port: u16, rank: u32, device: usize) -> (LinkedFormed, Forming) {
    let forming = Forming::within(PATIENCE);
    let options = ShmOptions { rank, size: 2, timeout: PATIENCE };
    let host = match Shm::form(&connect(port, 0), &options, &forming.beside(PATIENCE)).unwrap() {
        ShmFormed::Group(host) => Box::new(host),
        ShmFormed::Refused { reason, .. } => panic!("{reason}"),
    };
    (Linked::form(host, device, PATIENCE, &forming).unwrap(), forming)
}

fn linked(port: u16, rank: u32) -> (Box<Linked>, Forming) {
    match form(port, rank, rank as usize) {
        (LinkedFormed::Group(group), forming) => (group, forming),
        (LinkedFormed::Refused { reason }, _) => panic!("{reason}"),
    }
}

fn nccl(port: u16, rank: u32) -> Box<Nccl> {
    let forming = Forming::within(PATIENCE);
    Box::new(Nccl::form(&connect(port, 1), rank, 2, rank, PATIENCE, &forming).unwrap())
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
fn sums(group: &Linked, nccl: &Nccl, rank: u32) {
    tch::manual_seed(i64::from(rank));
    for length in LENGTHS {
        let array = shared(group, rank, length);
        assert_eq!(array.abs().max().double_value(&[]), 0.0);
        for (from, count) in [(0, length), (0, 1), (5, length / 3), (length / 2, length / 2), (3, 4)] {
            let numbers = Tensor::randn([length], (Kind::Float, array.device()));
            array.shallow_clone().copy_(&numbers);
            let part = array.narrow(0, from, count);
            let expected = numbers.copy();
            group.all_reduce_sum(&part).unwrap().wait(PATIENCE).unwrap();
            // A copy does not lie in memory of all.
            let apart = numbers.copy();
            group.all_reduce_sum(&apart.narrow(0, from, count)).unwrap().wait(PATIENCE).unwrap();
            nccl.all_reduce_sum(&expected.narrow(0, from, count)).unwrap().wait(PATIENCE).unwrap();
            assert!(array.equal(&expected) && apart.equal(&expected), "{count} from {from} of {length}");
            let norms = group.norms_of(&array).unwrap();
            let found = norms.norm().double_value(&[]);
            let norm = part.to_kind(Kind::Double).norm().double_value(&[]);
            assert!((found - norm).abs() <= 1e-6 * norm, "{found}, not {norm}, of {count} from {from} of {length}");
        }
        let even = length / 2 * 2;
        let numbers = Tensor::randn([even], (Kind::Float, array.device()));
        let whole = array.narrow(0, 0, even);
        whole.shallow_clone().copy_(&numbers);
        group.reduce_scatter_sum(&whole).unwrap().wait(PATIENCE).unwrap();
        nccl.all_reduce_sum(&numbers).unwrap().wait(PATIENCE).unwrap();
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

/// Every other collective, of every kind that NCCL has, in memory of the rank's own.
fn collectives(group: &Linked, nccl: &Nccl, rank: u32) {
    let device = Device::Cuda(rank as usize);
    let kinds =
        [Kind::Float, Kind::Double, Kind::Int64, Kind::Int, Kind::Int8, Kind::Uint8, Kind::BFloat16, Kind::Half];
    for (kind, length) in kinds.into_iter().flat_map(|kind| [2, 6, 100_002].map(|length| (kind, length))) {
        let numbers = Tensor::randint_low(-50, 50, [length], (Kind::Float, device)).abs().to_kind(kind);
        let all: [(&str, Begin<'_>); 7] = [
            ("sum", &|group, t| group.all_reduce(t, Reduce::Sum)),
            ("min", &|group, t| group.all_reduce(t, Reduce::Min)),
            ("max", &|group, t| group.all_reduce(t, Reduce::Max)),
            ("from 0", &|group, t| group.broadcast(t, 0)),
            ("from 1", &|group, t| group.broadcast(t, 1)),
            ("all_gather", &|group, t| group.all_gather(t)),
            ("reduce_scatter", &|group, t| group.reduce_scatter_sum(t)),
        ];
        for (what, begin) in all {
            let found = numbers.copy();
            let expected = numbers.copy();
            begin(group, &found).unwrap().wait(PATIENCE).unwrap();
            begin(nccl, &expected).unwrap().wait(PATIENCE).unwrap();
            let part = |of: &Tensor| match what {
                "reduce_scatter" => of.narrow(0, i64::from(rank) * length / 2, length / 2),
                _ => of.shallow_clone(),
            };
            assert!(part(&found).equal(&part(&expected)), "{what} of {length} of {kind:?}");
        }
    }
    let not_a_number = Tensor::from_slice(&[f32::NAN, 1.0]).to_device(device).roll([i64::from(rank)], [0]);
    for reduce in [Reduce::Min, Reduce::Max, Reduce::Sum] {
        let found = not_a_number.copy();
        group.all_reduce(&found, reduce).unwrap().wait(PATIENCE).unwrap();
        assert!(found.isnan().all().int64_value(&[]) != 0, "{reduce:?}");
    }
    // In the host's memory.
    let host = Tensor::from_slice(&[i64::from(rank), 5]);
    group.all_reduce(&host, Reduce::Max).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(Vec::<i64>::try_from(host).unwrap(), [1, 5]);
    let nothing = Tensor::zeros([0], (Kind::Float, device));
    group.all_reduce_sum(&nothing).unwrap().wait(PATIENCE).unwrap();
    // Several times what the scratch takes; and memory that is given back at once, and used anew before it was sent.
    let large = 40_000_002;
    let all = Tensor::full([large], f64::from(rank), (Kind::Float, device));
    group.all_gather(&all).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(all.sum(Kind::Double).double_value(&[]), large as f64 / 2.0);
    let filled = all.shallow_clone().fill_(f64::from(rank));
    group.broadcast(&filled, 1).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(all.min().double_value(&[]), 1.0);
    for round in 0..50 {
        let numbers = Tensor::full([1 << 20], f64::from(round), (Kind::Float, device));
        let sums = numbers.copy();
        let work = group.all_reduce_sum(&sums).unwrap();
        drop(numbers);
        let _reused = Tensor::full([1 << 20], -1.0, (Kind::Float, device));
        work.order(PATIENCE).unwrap();
        assert_eq!(sums.max().double_value(&[]), f64::from(2 * round));
        assert_eq!(sums.min().double_value(&[]), f64::from(2 * round));
    }
}

/// No collective takes much longer than NCCL's.
fn rates(group: &Linked, nccl: &Nccl, rank: u32) {
    let whole = Tensor::zeros([RATED], (Kind::Float, Device::Cuda(rank as usize)));
    let all: [(&str, Begin<'_>); 4] = [
        ("sum", &|group, t| group.all_reduce_sum(t)),
        ("broadcast", &|group, t| group.broadcast(t, 0)),
        ("all_gather", &|group, t| group.all_gather(t)),
        ("reduce_scatter", &|group, t| group.reduce_scatter_sum(t)),
    ];
    for (what, begin) in all {
        let took = |group: &dyn ProcessGroup| {
            let times = (0..5).map(|_| {
                group.barrier(PATIENCE).unwrap();
                let begun = Instant::now();
                begin(group, &whole).unwrap().wait(PATIENCE).unwrap();
                tch::Cuda::synchronize(i64::from(rank));
                begun.elapsed()
            });
            times.min().unwrap()
        };
        let ours = took(group);
        let theirs = took(nccl);
        let rate = |took: Duration| whole.numel() as f64 * 4e-9 / took.as_secs_f64();
        eprintln!("{what} of {RATED} floats: {:.0} GB/s, NCCL {:.0} GB/s", rate(ours), rate(theirs));
        assert!(ours <= 3 * theirs, "{what}: {ours:?}, NCCL {theirs:?}");
    }
}

#[test]
#[ignore = "the part of a peer; the other tests start it"]
fn child() {
    let Some((port, rank, _, word)) = peer::part() else { return };
    if word == "refused" {
        assert!(matches!(form(port, rank, rank as usize).0, LinkedFormed::Refused { .. }));
        return;
    }
    let (group, _forming) = linked(port, rank);
    match word.as_str() {
        "sum" => {
            let nccl = nccl(port, rank);
            sums(&group, &nccl, rank);
            collectives(&group, &nccl, rank);
            rates(&group, &nccl, rank);
            nccl.shutdown(PATIENCE).unwrap();
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
fn copy_engines_do_as_nccl_does() {
    if !two_gpus() {
        return;
    }
    let store = store();
    let mut peer = peer(module_path!(), store.addr().port(), 1, 2, "sum");
    let (group, _forming) = linked(store.addr().port(), 0);
    assert_eq!(group.backend(), "copy engines");
    let nccl = nccl(store.addr().port(), 0);
    sums(&group, &nccl, 0);
    collectives(&group, &nccl, 0);
    rates(&group, &nccl, 0);
    nccl.shutdown(PATIENCE).unwrap();
    group.shutdown(PATIENCE).unwrap();
    peer.ends_well();
}

#[test]
fn a_rank_that_cannot_speaks_for_all() {
    if !two_gpus() {
        return;
    }
    let store = store();
    let mut peer = peer(module_path!(), store.addr().port(), 1, 2, "refused");
    match form(store.addr().port(), 0, 1000).0 {
        LinkedFormed::Refused { reason } => assert!(reason.starts_with("rank 0: open the device: "), "{reason}"),
        LinkedFormed::Group(_) => panic!("with a device that is not there"),
    }
    peer.ends_well();
}

#[test]
fn a_sum_that_one_rank_never_comes_to_ends_with_a_cut_or_in_time_and_leaves_the_device_to_others() {
    if !two_gpus() {
        return;
    }
    for kills in [false, true] {
        let store = store();
        let mut peer: Peer = peer(module_path!(), store.addr().port(), 1, 2, "linger");
        let (group, forming) = linked(store.addr().port(), 0);
        let array = shared(&group, 0, 1 << 20);
        group.barrier(PATIENCE).unwrap();
        let work = group.all_reduce_sum(&array).unwrap();
        assert!(!work.is_done().unwrap());
        // What is broadcast lies in scratch, where something else lies when a cut ends the wait for it.
        let live = Tensor::ones([1000], (Kind::Float, Device::Cuda(0)));
        let taken = group.broadcast(&live, 1).unwrap();
        let summed = group.all_reduce_sum(&live.zeros_like()).unwrap();
        if kills {
            peer.0.kill().unwrap();
            peer.0.wait().unwrap();
        }
        let late = work.wait(Duration::from_millis(300)).unwrap_err();
        assert!(matches!(late, CommError::TimedOut { operation: "all_reduce", rank: 0, size: 2, .. }), "{late}");
        let abort_handle = forming.abort_handle();
        let cuts = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            abort_handle.abort();
        });
        let begun = Instant::now();
        let error = work.wait(PATIENCE).unwrap_err();
        assert!(matches!(error, CommError::Aborted { operation: "all_reduce", .. }), "{error}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        cuts.join().unwrap();
        assert!(group.all_reduce_sum(&array).and_then(|work| work.wait(PATIENCE)).is_err());
        let ending = Instant::now();
        for work in [taken, summed] {
            assert!(work.wait(PATIENCE).is_err());
        }
        drop(work);
        group.abort(PATIENCE).unwrap();
        drop(array);
        assert_eq!(live.min().double_value(&[]), 1.0);
        assert_eq!(live.max().double_value(&[]), 1.0);
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
    let mut peer = peer(module_path!(), store.addr().port(), 1, 2, "give up");
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
    let least = array.min().double_value(&[]);
    let most = array.max().double_value(&[]);
    assert_ne!((least, most), (3.0, 3.0), "it gave up too late for this test to show anything");
    let begun = Instant::now();
    let error = group.all_reduce_sum(&array).unwrap_err();
    assert!(lost(&error), "{error}");
    group.abort(PATIENCE).unwrap();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}
