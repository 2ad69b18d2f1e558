//! Slow and malicious clients over real sockets, while a good one measures how long it waits.

#![expect(clippy::disallowed_methods, reason = "some tests are about what time does to clients that do nothing")]

use super::tests::{Client, PATIENCE, k, local};
use super::*;
use crate::tcpstore::protocol::tests::{Said, encode, handshake, request};
use nix::sys::resource::{Resource, getrlimit};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::{Read, Write};
use std::net::Shutdown;

/// The good client never waits longer for an answer, whatever the others do; far above what a busy machine adds.
const LATENCY_MAX: Duration = Duration::from_millis(1500);
const BURST: usize = 5000;
/// Descriptors a burst needs on both sides, with some to spare.
const BURST_FILES: u64 = 2 * BURST as u64 + 512;

/// The longest wait of a client that adds one by one until `done`.
fn longest_wait(addr: SocketAddr, mut done: impl FnMut() -> bool) -> Duration {
    let mut good = Client::connect(addr);
    let mut longest = Duration::ZERO;
    let mut sum = 0;
    while !done() {
        let asked_at = Instant::now();
        sum += 1;
        assert_eq!(good.add("good", 1), sum);
        longest = longest.max(asked_at.elapsed());
    }
    assert!(sum > 0);
    longest
}

/// The longest wait while `misbehave` runs.
fn wait_beside(addr: SocketAddr, misbehave: impl FnOnce(SocketAddr) + Send + 'static) -> Duration {
    let bad = thread::spawn(move || misbehave(addr));
    let longest = longest_wait(addr, || bad.is_finished());
    bad.join().unwrap();
    longest
}

#[test]
fn half_open_handshakes_cost_the_others_nothing() {
    let store = serve(local(), Limits { handshake_timeout: Duration::from_secs(2), ..Limits::default() }).unwrap();
    let longest = wait_beside(store.addr(), |addr| {
        let mut half: Vec<Client> = (0..200).map(|_| Client::silent(addr)).collect();
        half.iter_mut().for_each(|client| client.0.write_all(&handshake()[..3]).unwrap());
        assert!(half.iter_mut().all(Client::closed), "the rest of the handshake never came");
    });
    assert!(longest < LATENCY_MAX, "{longest:?}");
    assert_eq!(store.clients_seen(), 1);
}

#[test]
fn giant_lengths_and_garbage_end_their_own_connection_only() {
    let store = serve(local(), Limits::default()).unwrap();
    let longest = wait_beside(store.addr(), |addr| {
        let mut state = 7u64;
        for turn in 0..300u64 {
            let mut bad = Client::connect(addr);
            let mut bytes = vec![(turn % 18) as u8];
            if turn % 2 == 0 {
                bytes.extend_from_slice(&u64::MAX.to_le_bytes());
                bytes.extend_from_slice(&u64::MAX.to_le_bytes());
                // What follows no length: a request that does not exist.
                bytes.push(255);
            } else {
                for _ in 0..4000 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    bytes.push((state >> 56) as u8);
                }
            }
            // The store may close before all of it is taken.
            let _ = bad.0.write_all(&bytes);
            let _ = bad.0.shutdown(Shutdown::Write);
            let _ = bad.0.read_to_end(&mut Vec::new());
        }
    });
    assert!(longest < LATENCY_MAX, "{longest:?}");
}

#[test]
fn a_client_that_never_reads_does_not_slow_the_others() {
    let store = serve(local(), Limits { stall_timeout: Duration::from_secs(2), ..Limits::default() }).unwrap();
    let longest = wait_beside(store.addr(), |addr| {
        let mut deaf = Client::connect(addr);
        deaf.send(&Said::Set(k("big"), vec![7; 4 << 20]));
        // 256 MB of replies, four times what the store keeps for one client.
        for _ in 0..64 {
            deaf.send(&Said::Get(k("big")));
        }
        thread::park_timeout(Duration::from_secs(4));
        let mut received = 0;
        let mut buffer = vec![0; 1 << 20];
        while let Ok(bytes @ 1..) = deaf.0.read(&mut buffer) {
            received += bytes;
        }
        assert!(received < 200 << 20, "it was closed before it had all: {received}");
    });
    assert!(longest < LATENCY_MAX, "{longest:?}");
}

#[test]
fn a_burst_of_connections_is_served_beside_a_good_client() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < BURST_FILES {
        let raised = nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, BURST_FILES, hard);
        raised.expect("this test opens 10,000 descriptors: raise the hard limit of open files");
    }
    let store = serve(local(), Limits::default()).unwrap();
    let longest = wait_beside(store.addr(), |addr| {
        let mut clients: Vec<Client> = (0..BURST).map(|_| Client::connect(addr)).collect();
        clients.iter_mut().for_each(|client| client.send(&Said::Add(k("burst"), 1)));
        let mut sums: Vec<i64> = clients.iter_mut().map(Client::number).collect();
        sums.sort_unstable();
        assert!(sums.into_iter().eq(1..=BURST as i64), "every client was served once");
    });
    assert!(longest < LATENCY_MAX, "{longest:?}");
    assert_eq!(store.clients_seen(), BURST as u64 + 1);
}

#[test]
fn replies_given_up_by_a_slow_reader_arrive_in_order_when_it_reads() {
    let limits = Limits { reply_bytes_max: 1 << 20, ..Limits::default() };
    let store = serve(local(), limits).unwrap();
    let mut slow = Client::connect(store.addr());
    slow.send(&Said::Set(k("big"), vec![7; 1 << 20]));
    let mut writer = Client(slow.0.try_clone().unwrap());
    // The store stops reading this client, so its requests are sent by another thread.
    let asking = thread::spawn(move || {
        for nonce in 0..40 {
            writer.send(&Said::Get(k("big")));
            writer.send(&Said::Ping(nonce));
        }
    });
    for nonce in 0..40 {
        assert_eq!(slow.value().len(), 1 << 20);
        assert_eq!(u32::from_le_bytes(slow.take()), nonce);
    }
    asking.join().unwrap();
}

#[test]
fn any_split_of_any_requests_gets_the_same_replies() {
    let store = serve(local(), Limits::default()).unwrap();
    let requests = proptest::collection::vec(request(), 0..20);
    let pieces = proptest::collection::vec(1usize..50, 1..20);
    let replies = |bytes: &[u8], pieces: &[usize]| {
        store.clear().unwrap();
        let mut client = Client::connect(store.addr());
        let mut rest = bytes;
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            // An add to what is no number closes the connection: as far as that the replies are compared.
            if now.is_empty() || client.0.write_all(now).is_err() {
                break;
            }
            rest = later;
        }
        let _ = client.0.shutdown(Shutdown::Write);
        client.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut replies = Vec::new();
        let _ = client.0.read_to_end(&mut replies);
        replies
    };
    let valid = |requests: &Vec<Said>| {
        // Their order in a list of keys is that of a hash table; and what closes a connection may lose replies on the way.
        !requests.iter().any(|request| matches!(request, Said::ListKeys | Said::Add(..)))
    };
    TestRunner::new(Config::with_cases(64))
        .run(&(requests.prop_filter("replies are certain", valid), pieces), |(requests, pieces)| {
            let mut bytes = Vec::new();
            requests.iter().for_each(|request| encode(request, &mut bytes));
            let whole = replies(&bytes, &[bytes.len().max(1)]);
            prop_assert_eq!(whole, replies(&bytes, &pieces));
            Ok(())
        })
        .unwrap();
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages: usize = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Memory is this process's: run each test in a process of its own.
#[test]
fn replies_that_nobody_reads_take_a_bounded_amount_of_memory_over_all_clients() {
    let store = serve(local(), Limits { buffers_bytes_max: 64 << 20, ..Limits::default() }).unwrap();
    let mut good = Client::connect(store.addr());
    good.send(&Said::Set(k("big"), vec![7; 8 << 20]));
    assert_eq!(good.add("n", 1), 1);
    let before = resident();
    let mut deaf: Vec<Client> = (0..40).map(|_| Client::connect(store.addr())).collect();
    for client in &mut deaf {
        for _ in 0..8 {
            client.send(&Said::Get(k("big")));
        }
    }
    let longest = longest_wait(store.addr(), {
        let began = Instant::now();
        move || began.elapsed() > Duration::from_secs(1)
    });
    assert!(longest < LATENCY_MAX, "{longest:?}");
    let taken = resident().saturating_sub(before);
    assert!(taken < 160 << 20, "{} MiB for 320 MiB of replies at least", taken >> 20);
    // Whoever reads has its replies in the end: those that do not are closed for it.
    good.0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    good.send(&Said::Get(k("big")));
    assert_eq!(good.value().len(), 8 << 20);
}

#[test]
fn requests_that_never_end_take_a_bounded_amount_of_memory_over_all_clients() {
    let store = serve(local(), Limits { buffers_bytes_max: 32 << 20, ..Limits::default() }).unwrap();
    let before = resident();
    let mut slow: Vec<Client> = (0..30).map(|_| Client::connect(store.addr())).collect();
    let mut request = Vec::new();
    encode(&Said::Set(k("big"), vec![7; 7 << 20]), &mut request);
    for client in &mut slow {
        client.0.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        // All but the last byte, as far as the store takes it.
        let _late = client.0.write_all(&request[..request.len() - 1]);
    }
    let taken = resident().saturating_sub(before);
    assert!(taken < 100 << 20, "{} MiB for 210 MiB of requests", taken >> 20);
    assert_eq!(Client::connect(store.addr()).add("n", 1), 1);
}

#[test]
fn short_requests_with_long_replies_do_not_keep_others_waiting() {
    let store = serve(local(), Limits::default()).unwrap();
    let longest = wait_beside(store.addr(), |addr| {
        let mut greedy = Client::connect(addr);
        greedy.send(&Said::Set(k("big"), vec![7; 1 << 20]));
        let mut bytes = Vec::new();
        (0..400).for_each(|_| encode(&Said::Get(k("big")), &mut bytes));
        greedy.0.write_all(&bytes).unwrap();
        (0..400).for_each(|_| assert_eq!(greedy.value().len(), 1 << 20));
    });
    assert!(longest < LATENCY_MAX, "{longest:?}");
}

/// The limit is this process's: run each test in a process of its own.
#[test]
fn a_store_without_descriptors_lets_those_in_who_say_the_handshake() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    let store = serve(local(), Limits::default()).unwrap();
    let mut first = Client::connect(store.addr());
    assert_eq!(first.add("n", 1), 1);
    let mut crowd = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect(store.addr()) {
        crowd.push(stream);
    }
    assert!(crowd.len() > 30, "{}", crowd.len());
    drop(crowd.split_off(crowd.len() - 2));
    thread::sleep(Duration::from_millis(1100));
    let mut second = Client::connect(store.addr());
    assert_eq!(second.add("n", 1), 2, "a silent one makes room for it");
    assert_eq!(first.add("n", 1), 3);
}

#[test]
fn silent_connections_make_room_for_each_other() {
    let store = serve(local(), Limits { silent_max: 4, ..Limits::default() }).unwrap();
    let mut silent: Vec<Client> = (0..4).map(|_| Client::silent(store.addr())).collect();
    assert!(Client::silent(store.addr()).closed(), "all of them have just come");
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(Client::connect(store.addr()).add("n", 1), 1);
    assert!(silent[0].closed(), "the oldest made room");
}
