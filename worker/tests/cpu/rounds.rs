//! Rounds that end early and begin anew: groups cut from another thread while peers stand still, forming given up, and many
//! rounds in one process that leave nothing behind. Shared memory and Gloo, with real processes.
//!
//! Every rank but 0 is this test binary started again (`child`, told who it is through the environment).

#![expect(clippy::unwrap_used, reason = "a test ends where something is wrong")]

use crate::again;
use crate::peer::{self, PATIENCE, Peer, connect, peer, store};
use enn_worker::comm::{CommError, Forming, Gloo, GlooOptions, ProcessGroup, Shm, ShmFormed, ShmOptions, Store};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs, thread,
    time::{Duration, Instant},
};
use tch::{Device, Kind, Tensor};

/// How long a rank is let wait before it is cut.
const A_WHILE: Duration = Duration::from_millis(300);
const BUCKET: i64 = 1 << 18;
/// What a process may have more of after many rounds than after a few: the allocator keeps some of what it was given back.
const RSS_GROWTH_KIB_MAX: usize = 24 << 10;

fn form(
    way: &str,
    store: &Store,
    (rank, size): (u32, u32),
    forming: &Forming,
) -> Result<Box<dyn ProcessGroup>, CommError> {
    let timeout = PATIENCE;
    if way == "gloo" {
        return Ok(Box::new(Gloo::form(store, &GlooOptions { rank, size, timeout }, forming)?));
    }
    match Shm::form(store, &ShmOptions { rank, size, timeout }, forming)? {
        ShmFormed::Group(group) => Ok(Box::new(group)),
        // Where all live on one node, only one that was cut meanwhile has no memory to share.
        ShmFormed::Refused { rank: refused, reason } => {
            Err(CommError::Form { backend: "shm", rank, size, message: format!("rank {refused}: {reason}") })
        }
    }
}

fn group(way: &str, store: &Store, at: (u32, u32)) -> Box<dyn ProcessGroup> {
    form(way, store, at, &Forming::within(PATIENCE)).unwrap()
}

fn ones() -> Tensor {
    Tensor::ones([BUCKET], (Kind::Float, Device::Cpu))
}

/// A bucket as training has it: in shared memory where there is some.
fn bucket(group: &dyn ProcessGroup) -> Tensor {
    let mut bucket = ones();
    if let Some(shared) = group.shared_like(&bucket).unwrap() {
        bucket = shared;
    }
    let _ = bucket.fill_(1.0);
    bucket
}

/// One round of a long life: formed, used, and ended in one of three ways.
fn live(way: &str, store: &Store, round: u32, at: (u32, u32)) {
    let group = group(way, &store.round(&round.to_string()).unwrap(), at);
    let bucket = bucket(&*group);
    group.all_reduce_sum(&bucket).unwrap().wait(PATIENCE).unwrap();
    assert_eq!(bucket.double_value(&[BUCKET - 1]), f64::from(at.1));
    match round % 3 {
        0 => group.shutdown(PATIENCE).unwrap(),
        1 => group.abort(PATIENCE).unwrap(),
        _ => {
            group.abort_handle().abort();
            drop(group);
        }
    }
    // The tensor outlives its group.
    assert_eq!(bucket.double_value(&[0]), f64::from(at.1));
}

#[test]
#[ignore = "the part of a peer; the other tests start it"]
fn child() {
    let Some((port, rank, size, words)) = peer::part() else { return };
    tch::set_num_threads(1);
    let words: Vec<&str> = words.split(' ').collect();
    match words[..] {
        ["linger", way] => {
            let group = group(way, &connect(port, 0), (rank, size));
            group.barrier(PATIENCE).unwrap();
            thread::park_timeout(PATIENCE);
        }
        // Waits in a collective that rank 0 never comes to, and must hear of its cut.
        ["hear", way] => {
            let group = group(way, &connect(port, 0), (rank, size));
            group.barrier(PATIENCE).unwrap();
            let begun = Instant::now();
            let error = group.all_reduce_sum(&ones()).unwrap().wait(PATIENCE).unwrap_err();
            assert!(!matches!(error, CommError::Aborted { .. } | CommError::TimedOut { .. }), "{error}");
            assert!(begun.elapsed() < PATIENCE / 4, "{:?}", begun.elapsed());
        }
        ["rounds", way, rounds] => {
            let store = connect(port, 0);
            for round in 0..rounds.parse().unwrap() {
                live(way, &store, round, (rank, size));
            }
        }
        ["once", way, round] => {
            let group = group(way, &connect(port, round.parse().unwrap()), (rank, size));
            let bucket = bucket(&*group);
            group.all_reduce_sum(&bucket).unwrap().wait(PATIENCE).unwrap();
            thread::park_timeout(PATIENCE);
        }
        _ => panic!("no part {words:?}"),
    }
}

fn stop(peer: &Peer) {
    let pid = Pid::from_raw(i32::try_from(peer.0.id()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    // Its state in /proc says when it stands.
    let stat = format!("/proc/{pid}/stat");
    while !fs::read_to_string(&stat).unwrap().contains(") T ") {
        thread::yield_now();
    }
}

fn is_cut(result: Result<(), CommError>, expected: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, CommError::Aborted { operation, .. } if operation == expected), "{error}");
}

/// Rank 0 waits in a collective, its peers stand still, and another thread cuts it.
fn cut_while_peers_stand(way: &str, soon: Duration) {
    let store = store();
    let port = store.addr().port();
    let peers = [1, 2].map(|rank| peer(module_path!(), port, rank, 3, &format!("linger {way}")));
    let group = group(way, &connect(port, 0), (0, 3));
    group.barrier(PATIENCE).unwrap();
    peers.iter().for_each(stop);
    let bucket = ones();
    let works: Vec<_> = (0..5).map(|_| group.all_reduce_sum(&bucket).unwrap()).collect();
    let abort_handle = group.abort_handle();
    let before = group.waited();
    let took = thread::scope(|scope| {
        let cutting = scope.spawn(|| {
            thread::park_timeout(A_WHILE);
            let cut = Instant::now();
            abort_handle.abort();
            cut
        });
        is_cut(works[0].wait(PATIENCE), "all_reduce");
        let ended = Instant::now();
        ended.saturating_duration_since(cutting.join().unwrap())
    });
    assert!(took < soon, "{took:?}");
    works.iter().for_each(|work| is_cut(work.wait(soon), "all_reduce"));
    assert!(group.waited() - before >= A_WHILE - Duration::from_millis(50), "{:?}", group.waited());
    // Later ones end as well, a second cut changes nothing, and one after the group's end neither.
    is_cut(group.all_reduce_sum(&bucket).and_then(|work| work.wait(soon)), "all_reduce");
    is_cut(group.barrier(soon), "barrier");
    abort_handle.abort();
    group.abort(soon).unwrap();
    abort_handle.abort();
}

#[test]
fn shared_memory_is_cut_while_peers_stand() {
    cut_while_peers_stand("shm", Duration::from_millis(100));
}

#[test]
fn gloo_is_cut_while_peers_stand() {
    cut_while_peers_stand("gloo", Duration::from_secs(1));
}

#[test]
fn peers_of_a_rank_that_was_cut_get_an_error() {
    for way in ["shm", "gloo"] {
        let store = store();
        let port = store.addr().port();
        let mut peers = [1, 2].map(|rank| peer(module_path!(), port, rank, 3, &format!("hear {way}")));
        let group = group(way, &connect(port, 0), (0, 3));
        group.barrier(PATIENCE).unwrap();
        thread::park_timeout(A_WHILE);
        group.abort_handle().abort();
        peers.iter_mut().for_each(Peer::ends_well);
    }
}

/// What a process holds: descriptors, threads, mappings, KiB of memory.
fn holds() -> (usize, usize, usize, usize) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| -> usize {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("enn-collectives")).count();
    (count("/proc/self/fd"), field("Threads:"), shared, field("VmRSS:"))
}

/// Runs a test of this module in a process of its own: other tests of this one would show in what it holds.
fn alone(test: &str) {
    again::alone(again::command(module_path!(), test));
}

/// What it holds when the threads that were told to end have ended, without what malloc keeps of memory that was freed.
fn settled() -> (usize, usize, usize, usize) {
    thread::park_timeout(A_WHILE);
    // SAFETY: it gives back free memory, and touches nothing else.
    unsafe { nix::libc::malloc_trim(0) };
    holds()
}

fn no_more_than(before: (usize, usize, usize, usize)) {
    let now = settled();
    assert!(now.0 <= before.0 && now.1 <= before.1 && now.2 <= before.2, "descriptors, threads or mappings grew");
    // Under AddressSanitizer freed memory is kept back.
    let kept_back = option_env!("ENN_ASAN").is_some();
    assert!(kept_back || now.3 < before.3 + RSS_GROWTH_KIB_MAX, "{} KiB grew to {} KiB", before.3, now.3);
}

/// Rounds of two ranks, unless the environment says how many; other tests of rounds take a share of them.
const ROUNDS: u32 = 250;

#[expect(clippy::disallowed_methods, reason = "the environment says how many rounds, as `make soak` does")]
fn rounds() -> u32 {
    std::env::var("ENN_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("ENN_ROUNDS is a number"))
}

fn many_rounds(way: &str, size: u32, rounds: u32) {
    tch::set_num_threads(1);
    let store = store();
    let port = store.addr().port();
    let mut peers: Vec<Peer> =
        (1..size).map(|rank| peer(module_path!(), port, rank, size, &format!("rounds {way} {rounds}"))).collect();
    let server = store;
    let store = connect(port, 0);
    let warm = rounds / 10;
    for round in 0..warm {
        live(way, &store, round, (0, size));
    }
    let before = settled();
    for round in warm..rounds {
        live(way, &store, round, (0, size));
    }
    no_more_than(before);
    assert!(server.clients_seen() >= u64::from(size));
    peers.iter_mut().for_each(Peer::ends_well);
}

/// Rounds in which the peer dies in a collective, forming, or both.
fn deadly_rounds(way: &str, rounds: u32) {
    tch::set_num_threads(1);
    let store = store();
    let port = store.addr().port();
    let mut before = None;
    for round in 0..rounds {
        if round == rounds / 4 {
            before = Some(settled());
        }
        let mut peer = peer(module_path!(), port, 1, 2, &format!("once {way} {round}"));
        let group = group(way, &connect(port, round), (0, 2));
        let bucket = bucket(&*group);
        group.all_reduce_sum(&bucket).unwrap().wait(PATIENCE).unwrap();
        let work = group.all_reduce_sum(&bucket).unwrap();
        peer.0.kill().unwrap();
        assert!(work.wait(PATIENCE).is_err());
        drop(group);
        drop(peer);
    }
    no_more_than(before.unwrap());
}

#[test]
#[ignore = "alone in its process; see below"]
fn many_shm() {
    many_rounds("shm", 2, rounds());
}

#[test]
#[ignore = "alone in its process; see below"]
fn many_gloo() {
    many_rounds("gloo", 2, rounds());
}

#[test]
#[ignore = "alone in its process; see below"]
fn four_ranks() {
    many_rounds("shm", 4, rounds() / 4);
    many_rounds("gloo", 4, rounds() / 3);
}

#[test]
#[ignore = "alone in its process; see below"]
fn deadly() {
    deadly_rounds("shm", rounds() / 20);
    deadly_rounds("gloo", rounds() / 20);
}

#[test]
fn many_rounds_in_shared_memory_leave_nothing() {
    alone("many_shm");
}

#[test]
fn many_rounds_of_gloo_leave_nothing() {
    alone("many_gloo");
}

#[test]
fn rounds_of_four_leave_nothing() {
    alone("four_ranks");
}

#[test]
fn rounds_in_which_a_peer_dies_leave_nothing() {
    alone("deadly");
}

/// The store's keys of a peer that died while forming: as far as it came.
#[test]
fn forming_is_given_up_from_another_thread_and_in_time() {
    for way in ["shm", "gloo"] {
        let server = store();
        let port = server.addr().port();
        for round in 0..5 {
            let store = connect(port, round);
            let forming = Forming::within(PATIENCE);
            let abort_handle = forming.abort_handle();
            let took = thread::scope(|scope| {
                let cutting = scope.spawn(|| {
                    thread::park_timeout(A_WHILE);
                    abort_handle.abort();
                    Instant::now()
                });
                // The others died before they came.
                is_cut(form(way, &store, (round % 3, 3), &forming).map(drop), "form");
                let ended = Instant::now();
                ended.saturating_duration_since(cutting.join().unwrap())
            });
            assert!(took < Duration::from_millis(250), "{took:?}");
        }
        // Cut before it began, and out of time.
        let forming = Forming::within(PATIENCE);
        forming.abort_handle().abort();
        is_cut(form(way, &connect(port, 7), (0, 2), &forming).map(drop), "form");
        let begun = Instant::now();
        let error = form(way, &connect(port, 8), (0, 2), &Forming::within(A_WHILE)).map(drop).unwrap_err();
        assert!(matches!(error, CommError::Form { rank: 0, size: 2, .. }), "{error}");
        assert!(begun.elapsed() < A_WHILE + Duration::from_millis(250), "{:?}", begun.elapsed());
    }
}

/// The peer said where it is and died before it connected: its address stays in the store.
#[test]
fn forming_with_an_address_of_the_dead_is_given_up() {
    let server = store();
    let port = server.addr().port();
    for (round, (mine, dead)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        let store = connect(port, round as u32);
        // The dead one: it forms, and is given up when it has said where it is.
        let gone = Forming::within(A_WHILE);
        assert!(form("gloo", &store, (dead, 2), &gone).is_err());
        let forming = Forming::within(PATIENCE);
        let abort_handle = forming.abort_handle();
        let took = thread::scope(|scope| {
            let cutting = scope.spawn(|| {
                thread::park_timeout(A_WHILE);
                let cut = Instant::now();
                abort_handle.abort();
                cut
            });
            let result = form("gloo", &store, (mine, 2), &forming).map(drop);
            let ended = Instant::now();
            let cut = cutting.join().unwrap();
            assert!(result.is_err());
            ended.saturating_duration_since(cut)
        });
        assert!(took < Duration::from_millis(500), "{took:?}");
    }
}

/// A short time to form in is none to work in.
#[test]
fn the_time_to_form_does_not_limit_collectives() {
    let server = store();
    let port = server.addr().port();
    let form = move |rank| {
        let group = form("gloo", &connect(port, 0), (rank, 2), &Forming::within(Duration::from_secs(2))).unwrap();
        group.barrier(PATIENCE).unwrap();
        group
    };
    let late = thread::spawn(move || {
        let group = form(1);
        thread::park_timeout(Duration::from_secs(3));
        group.all_reduce_sum(&ones()).unwrap().wait(PATIENCE).unwrap();
        group.waited()
    });
    let group = form(0);
    let before = group.waited();
    group.all_reduce_sum(&ones()).unwrap().wait(PATIENCE).unwrap();
    let waited = group.waited() - before;
    assert!(waited > Duration::from_secs(2), "{waited:?}");
    assert!(late.join().unwrap() < waited, "who comes last waits least");
}

/// Forms, adds up until something ends it, and ends the group; how long after `cut` that took.
fn until_cut(way: &str, store: &Store, rank: u32, forming: &Forming) -> Instant {
    if let Ok(group) = form(way, store, (rank, 2), forming) {
        let tensor = Tensor::ones([1 << 12], (Kind::Float, Device::Cpu));
        while group.all_reduce_sum(&tensor).and_then(|work| work.wait(PATIENCE)).is_ok() {}
        group.abort(PATIENCE).unwrap();
    }
    Instant::now()
}

/// A cut may come at any moment of a group's life, and both ranks come out of it: the one that was cut at once, the other
/// by an error or by its own cut.
#[test]
fn a_cut_may_come_at_any_moment() {
    let server = store();
    let port = server.addr().port();
    for way in ["shm", "gloo"] {
        let stores = [0, 1].map(|_| connect(port, 0));
        let mut worst = Duration::ZERO;
        for round in 0..200u32 {
            let [mine, theirs] = [0, 1].map(|rank: usize| stores[rank].round(&format!("{way}-{round}")).unwrap());
            let formings = [Forming::within(PATIENCE), Forming::within(PATIENCE)];
            let abort_handles = formings.each_ref().map(Forming::abort_handle);
            let [first, second] = formings;
            thread::scope(|scope| {
                let other = scope.spawn(move || until_cut(way, &theirs, 1, &second));
                let one = scope.spawn(move || until_cut(way, &mine, 0, &first));
                // From the first instant to well within the collectives.
                thread::park_timeout(Duration::from_micros(u64::from(round) * 97));
                let cut = Instant::now();
                abort_handles[0].abort();
                worst = worst.max(one.join().unwrap().saturating_duration_since(cut));
                abort_handles[1].abort();
                other.join().unwrap();
            });
        }
        assert!(worst < Duration::from_secs(1), "{worst:?}");
    }
}
