//! Over real sockets: the protocol, waking, both address families, and clients that misbehave.

use super::*;
use crate::tcpstore::{
    protocol::tests::{Said as Request, encode, handshake},
    table::Key,
};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpStream as StdStream},
};

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

pub(super) fn k(name: &str) -> Key {
    name.as_bytes().into()
}

pub(super) struct Client(pub(super) StdStream);

impl Client {
    pub(super) fn connect(addr: SocketAddr) -> Self {
        let mut client = Self::silent(addr);
        client.0.write_all(&handshake()).unwrap();
        client
    }

    pub(super) fn silent(addr: SocketAddr) -> Self {
        let stream = StdStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(super) fn send(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        encode(request, &mut bytes);
        self.0.write_all(&bytes).unwrap();
    }

    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(super) fn number(&mut self) -> i64 {
        i64::from_le_bytes(self.take())
    }

    pub(super) fn value(&mut self) -> Vec<u8> {
        let size = self.number();
        let mut value = vec![0; usize::try_from(size).unwrap()];
        self.0.read_exact(&mut value).unwrap();
        value
    }

    pub(super) fn add(&mut self, key: &str, amount: i64) -> i64 {
        self.send(&Request::Add(k(key), amount));
        self.number()
    }

    /// Whether the store closed the connection.
    pub(super) fn closed(&mut self) -> bool {
        let mut byte = [0];
        matches!(self.0.read(&mut byte), Ok(0)) || self.0.write_all(&[0]).is_err()
    }
}

#[test]
fn requests_in_one_write_and_byte_by_byte_are_answered_alike() {
    let store = serve(local(), Limits::default()).unwrap();
    let requests = [
        Request::Ping(77),
        Request::Set(k("a"), b"xyz".to_vec()),
        Request::Get(k("a")),
        Request::MultiSet(vec![(k("b"), vec![1]), (k("c"), vec![])]),
        Request::MultiGet(vec![k("c"), k("b"), k("a")]),
        Request::Check(vec![k("a"), k("nothing")]),
        Request::Wait(vec![k("a"), k("b")]),
        Request::NumKeys,
        Request::Delete(k("b")),
        Request::NumKeys,
    ];
    let mut bytes = Vec::new();
    requests.iter().for_each(|request| encode(request, &mut bytes));
    for piece in [bytes.len(), 1] {
        let mut client = Client::connect(store.addr());
        for part in bytes.chunks(piece) {
            client.0.write_all(part).unwrap();
        }
        assert_eq!(u32::from_le_bytes(client.take()), 77);
        assert_eq!(client.value(), b"xyz");
        assert_eq!([client.value(), client.value(), client.value()], [vec![], vec![1], b"xyz".to_vec()]);
        assert_eq!(client.take::<2>(), [1, 0], "check says not ready, wait says go on");
        assert_eq!([client.number(), client.number(), client.number()], [3, 1, 2]);
    }
}

#[test]
fn a_set_wakes_waiters_on_other_connections() {
    let store = serve(local(), Limits::default()).unwrap();
    let mut waiters: Vec<Client> = (0..20).map(|_| Client::connect(store.addr())).collect();
    for waiter in &mut waiters {
        waiter.send(&Request::Wait(vec![k("go")]));
        // A reply to a later request proves that the wait is registered.
        waiter.send(&Request::Ping(1));
        assert_eq!(waiter.take::<4>(), [1, 0, 0, 0]);
    }
    drop(waiters.pop());
    Client::connect(store.addr()).send(&Request::Set(k("go"), vec![]));
    for waiter in &mut waiters {
        assert_eq!(waiter.take::<1>(), [0]);
    }
}

#[test]
fn counters_are_exact_under_concurrent_clients() {
    let store = serve(local(), Limits::default()).unwrap();
    let addr = store.addr();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            thread::spawn(move || {
                let mut client = Client::connect(addr);
                for _ in 0..500 {
                    client.add("n", 1);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(Client::connect(addr).add("n", 0), 4000);
}

#[test]
fn both_address_families_are_served() {
    match serve((Ipv6Addr::LOCALHOST, 0).into(), Limits::default()) {
        Ok(store) => assert_eq!(Client::connect(store.addr()).add("n", 3), 3),
        // A machine without IPv6 says so; anything else is a fault.
        Err(StoreError::Bind { source, .. }) => assert_eq!(source.kind(), ErrorKind::AddrNotAvailable),
        Err(error) => panic!("{error}"),
    }
    if let Ok(store) = serve((Ipv6Addr::UNSPECIFIED, 0).into(), Limits::default()) {
        let addr = (Ipv4Addr::LOCALHOST, store.addr().port()).into();
        assert_eq!(Client::connect(addr).add("n", 4), 4, "the unspecified address serves IPv4 too");
    }
}

#[test]
fn a_busy_port_is_an_error_with_the_address() {
    let store = serve(local(), Limits::default()).unwrap();
    let error = serve(store.addr(), Limits::default()).unwrap_err();
    assert!(error.to_string().contains(&store.addr().to_string()), "{error}");
}

#[test]
fn misbehaving_clients_are_closed_and_harm_nobody() {
    let store = serve(local(), Limits::default()).unwrap();
    let mut good = Client::connect(store.addr());
    for bytes in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [handshake(), vec![200]].concat(),
        [handshake(), vec![3], u64::MAX.to_le_bytes().to_vec()].concat(),
    ] {
        let mut bad = Client::silent(store.addr());
        bad.0.write_all(&bytes).unwrap();
        assert!(bad.closed());
        assert_eq!(good.add("n", 1) % 100, good.add("n", 0));
    }
    let mut rude = Client::connect(store.addr());
    rude.send(&Request::Wait(vec![k("never")]));
    rude.0.shutdown(Shutdown::Both).unwrap();
    assert_eq!(good.add("n", 0), 3);
}

#[test]
fn a_client_that_reads_nothing_is_no_longer_served_and_then_closed() {
    let limits = Limits { reply_bytes_max: 1 << 20, stall_timeout: Duration::from_millis(10), ..Limits::default() };
    let store = serve(local(), limits).unwrap();
    let mut good = Client::connect(store.addr());
    good.send(&Request::Set(k("big"), vec![7; 1 << 20]));
    let mut deaf = Client::connect(store.addr());
    // 100 MiB of replies, far beyond what the kernel's buffers take.
    for _ in 0..100 {
        deaf.send(&Request::Get(k("big")));
    }
    assert_eq!(good.add("n", 1), 1, "others are served meanwhile");
    let mut received = 0usize;
    let mut buffer = vec![0; 1 << 20];
    thread::park_timeout(Duration::from_millis(2500));
    // What the kernel had taken can still be read; then the connection ends, far from 100 MiB.
    while let Ok(bytes @ 1..) = deaf.0.read(&mut buffer) {
        received += bytes;
    }
    assert!(received < 50 << 20, "{received} bytes");
    assert_eq!(good.add("n", 1), 2);
}

#[test]
fn a_client_without_a_handshake_is_closed_in_time() {
    let store = serve(local(), Limits { handshake_timeout: Duration::from_millis(10), ..Limits::default() }).unwrap();
    assert!(Client::silent(store.addr()).closed());
}

#[test]
fn too_many_clients_are_turned_away() {
    let store = serve(local(), Limits { clients_max: 1, ..Limits::default() }).unwrap();
    let mut first = Client::connect(store.addr());
    assert_eq!(first.add("n", 1), 1);
    assert!(Client::silent(store.addr()).closed());
    assert_eq!(first.add("n", 1), 2);
}

fn on_loopback(options: Options) -> StoreHandle {
    serve_on(vec![listener(local()).unwrap()], options).unwrap()
}

#[test]
fn strangers_are_handed_over_whole_and_the_store_forgets_them() {
    let (sender, foreign_handler) = unbounded();
    let strange: ForeignHandler = Box::new(move |stranger| sender.send(stranger).unwrap());
    let store = on_loopback(Options { foreign_handler: Some(strange), ..Options::default() });
    let mut agent = Client::silent(store.addr());
    agent.0.write_all(b"ENN hello").unwrap();
    let mut stranger: ForeignConnection = foreign_handler.recv_timeout(PATIENCE).unwrap();
    assert_eq!((stranger.bytes.as_slice(), stranger.peer), (b"ENN hello".as_slice(), agent.0.local_addr().unwrap()));
    store.clear().unwrap();
    let nothing = stranger.stream.read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock, "it is non-blocking and nobody else reads from it");
    stranger.stream.write_all(b"welcome").unwrap();
    assert_eq!(&agent.take::<7>(), b"welcome");
    agent.0.write_all(b"more").unwrap();
    stranger.stream.set_nonblocking(false).unwrap();
    let mut more = [0; 4];
    stranger.stream.read_exact(&mut more).unwrap();
    assert_eq!(&more, b"more");
    assert_eq!(store.clients_seen(), 0);
}

#[test]
fn a_stranger_that_says_nothing_is_closed_in_time() {
    let limits = Limits { handshake_timeout: Duration::from_millis(10), ..Limits::default() };
    let strange: ForeignHandler = Box::new(|_| panic!("it said nothing"));
    let store = on_loopback(Options { limits, foreign_handler: Some(strange), ..Options::default() });
    assert!(Client::silent(store.addr()).closed());
}

#[test]
fn a_clear_ends_the_round_for_everybody_in_it() {
    let (sender, foreign_handler) = unbounded();
    let strange: ForeignHandler = Box::new(move |stranger| sender.send(stranger).unwrap());
    let store = on_loopback(Options { foreign_handler: Some(strange), ..Options::default() });
    let mut waiting = Client::connect(store.addr());
    waiting.send(&Request::Wait(vec![k("never")]));
    let mut worker = Client::connect(store.addr());
    assert_eq!(worker.add("n", 7), 7);
    worker.send(&Request::QueuePush(k("q"), vec![1]));
    worker.send(&Request::Ping(1));
    worker.take::<4>();
    let mut undecided = Client::silent(store.addr());
    assert_eq!(store.clients_seen(), 2);
    // Said so late that the store may not even have accepted it; it is of the old round all the same.
    let mut late = Client::connect(store.addr());
    late.send(&Request::Add(k("n"), 100));
    store.clear().unwrap();
    assert_eq!(store.clients_seen(), 0);
    assert!(waiting.closed() && worker.closed());
    // A sum of the old round may have been on its way to it, or nobody has read what it said.
    match late.0.read_to_end(&mut Vec::new()) {
        Ok(read) => assert!(read == 0 || read == 8, "{read}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    let mut fresh = Client::connect(store.addr());
    fresh.send(&Request::NumKeys);
    assert_eq!(fresh.number(), 0);
    fresh.send(&Request::QueueLen(k("q")));
    assert_eq!(fresh.number(), 0);
    assert_eq!(fresh.add("n", 1), 1);
    assert_eq!(store.clients_seen(), 1);
    undecided.0.write_all(b"ENN").unwrap();
    assert_eq!(
        foreign_handler.recv_timeout(PATIENCE).unwrap().bytes,
        b"ENN",
        "agents that connected live through a clear"
    );
}

#[test]
fn the_listed_door_admits_this_host_and_dismisses_others_only() {
    let store = on_loopback(Options::default());
    let mut client = Client::connect(store.addr());
    assert_eq!(client.add("n", 1), 1, "loopback is let in");
    store.admit([192, 0, 2, 1].into()).unwrap();
    store.dismiss([192, 0, 2, 1].into()).unwrap();
    store.dismiss([127, 0, 0, 1].into()).unwrap();
    assert_eq!(client.add("n", 1), 2, "loopback cannot be dismissed");
}

#[test]
fn several_listeners_are_one_store() {
    let listeners = vec![listener(local()).unwrap(), listener(local()).unwrap()];
    let addrs: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
    let store = serve_on(listeners, Options::default()).unwrap();
    assert_eq!(store.addr(), addrs[0]);
    assert_eq!(Client::connect(addrs[0]).add("n", 1), 1);
    assert_eq!(Client::connect(addrs[1]).add("n", 1), 2);
}

#[test]
fn dropping_the_handle_ends_thread_and_connections() {
    let store = serve(local(), Limits::default()).unwrap();
    let addr = store.addr();
    let mut client = Client::connect(addr);
    assert_eq!(client.add("n", 1), 1);
    drop(store);
    assert!(client.closed());
    assert!(StdStream::connect(addr).is_err());
}
