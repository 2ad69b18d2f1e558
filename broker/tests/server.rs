//! The broker over a real socket: who gets in, who is turned away, and that one worker's misbehaviour stays its own.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_broker::{Broker, BrokerEvent, RoundPlan};
use enn_common::{
    id::{LocalRank, Round},
    wire::{
        client::{Client, ClientError},
        message::{Assignment, FromWorker, PROTOCOL, Task, ToWorker},
    },
};
use nix::poll::{PollFd, PollFlags, poll};
use std::{
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    time::{Duration, Instant},
};

const WAIT_MAX: Duration = Duration::from_secs(20);

fn plan(round: u64, world: u32) -> RoundPlan {
    let assignment = |rank| Assignment {
        round,
        rank,
        world_size: world,
        local_rank: rank,
        local_world_size: world,
        store_host: String::new(),
        store_port: 0,
        device: "cpu".into(),
        threads: 1,
        run_dir: "/run".into(),
        kernels: enn_common::kernels::Quarantined::default(),
        task: Task::Init { meta: "/m".into(), attempt: "0".into() },
    };
    RoundPlan { round: Round(round), assignments: (0..world).map(assignment).collect() }
}

fn hello(round: u64, local_rank: u32) -> FromWorker {
    FromWorker::Hello { protocol: PROTOCOL, round, local_rank, pid: std::process::id() }
}

/// Waits for the event that `wanted` picks; others are dropped.
fn wait<T>(broker: &Broker, mut wanted: impl FnMut(BrokerEvent) -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        while let Some(event) = broker.event() {
            if let Some(found) = wanted(event) {
                return found;
            }
        }
        assert!(Instant::now() < deadline, "the event did not come");
        poll(&mut [PollFd::new(broker.wake_fd(), PollFlags::POLLIN)], 1000u16).unwrap();
        broker.clear_wake();
    }
}

fn serve() -> (tempfile::TempDir, Broker) {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::serve(dir.path()).unwrap();
    (dir, broker)
}

#[test]
fn a_worker_is_assigned_heard_and_told() {
    let (dir, broker) = serve();
    assert_eq!(std::fs::metadata(broker.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(broker.socket().parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    broker.begin_round(plan(4, 2)).unwrap();
    let mut client = Client::connect(broker.socket()).unwrap();
    client.send(&hello(4, 1)).unwrap();
    let ToWorker::Assign(assignment) = client.recv().unwrap() else { panic!() };
    assert_eq!((assignment.rank, assignment.round), (1, 4));
    client.send(&FromWorker::Warned { message: "w".into() }).unwrap();
    let worker = wait(&broker, |event| match event {
        BrokerEvent::Reported { worker, message: FromWorker::Warned { .. }, .. } => Some(worker),
        _ => None,
    });
    assert_eq!(worker, LocalRank(1));
    broker.tell_all(ToWorker::Committed { step: 3, path: "/c".into() }).unwrap();
    assert_eq!(client.recv().unwrap(), ToWorker::Committed { step: 3, path: "/c".into() });
    broker.end_round().unwrap();
    assert!(matches!(client.recv(), Err(ClientError::Closed)));
    drop(broker);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the socket's directory stays behind");
}

#[test]
fn a_foreign_protocol_is_refused_in_words() {
    let (_dir, broker) = serve();
    broker.begin_round(plan(0, 1)).unwrap();
    let mut client = Client::connect(broker.socket()).unwrap();
    client.send(&FromWorker::Hello { protocol: PROTOCOL + 1, round: 0, local_rank: 0, pid: 1 }).unwrap();
    let ToWorker::Refused { error } = client.recv().unwrap() else { panic!() };
    assert!(error.contains(&format!("protocol {}", PROTOCOL + 1)), "{error}");
    let mut http = UnixStream::connect(broker.socket()).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(http.read(&mut [0; 8]).unwrap_or(0), 0);
    wait(&broker, |event| {
        matches!(event, BrokerEvent::Refused { error } if error.contains("another protocol")).then_some(())
    });
}

#[test]
fn garbage_costs_the_sender_its_connection_only() {
    let (_dir, broker) = serve();
    broker.begin_round(plan(0, 2)).unwrap();
    let mut good = Client::connect(broker.socket()).unwrap();
    good.send(&hello(0, 0)).unwrap();
    good.recv().unwrap();
    let mut bad = UnixStream::connect(broker.socket()).unwrap();
    let mut bytes = Vec::new();
    enn_common::wire::frame::encode(&hello(0, 1), &mut bytes).unwrap();
    bad.write_all(&bytes).unwrap();
    bad.write_all(&[2, 0, 0, 0, 250, 250]).unwrap();
    let error = wait(&broker, |event| match event {
        BrokerEvent::Left { worker: LocalRank(1), error, .. } => error,
        _ => None,
    });
    assert!(error.contains("not a message"), "{error}");
    broker.tell_all(ToWorker::Abandoned { step: 1, error: "x".into() }).unwrap();
    assert!(matches!(good.recv().unwrap(), ToWorker::Abandoned { .. }));
}

#[test]
fn sync_comes_behind_everything_sent_before() {
    let (_dir, broker) = serve();
    broker.begin_round(plan(0, 1)).unwrap();
    for token in 0..50 {
        let client = Client::connect(broker.socket()).unwrap();
        client.send(&hello(0, 0)).unwrap();
        for _ in 0..20 {
            client.send(&FromWorker::Warned { message: "x".repeat(1000) }).unwrap();
        }
        client.send(&FromWorker::Failed { error: token.to_string() }).unwrap();
        drop(client);
        broker.sync(token).unwrap();
        let mut failed = false;
        let mut left = false;
        wait(&broker, |event| {
            match event {
                BrokerEvent::Reported { message: FromWorker::Failed { error }, .. } => {
                    failed = error == token.to_string()
                }
                BrokerEvent::Left { error, .. } => left = error.is_none(),
                BrokerEvent::Synced { token: found } => return (found == token).then_some(()),
                _ => {}
            }
            None
        });
        assert!(failed && left, "token {token}: failed {failed}, left {left}");
    }
}

#[test]
fn a_flood_is_slowed_and_others_are_heard() {
    let (_dir, broker) = serve();
    broker.begin_round(plan(0, 2)).unwrap();
    let flood = Client::connect(broker.socket()).unwrap();
    flood.send(&hello(0, 0)).unwrap();
    let sender = flood.sender();
    let flooder = std::thread::spawn(move || {
        let message = FromWorker::Warned { message: "x".repeat(100_000) };
        while sender.send(&message).is_ok() {}
    });
    let quiet = Client::connect(broker.socket()).unwrap();
    quiet.send(&hello(0, 1)).unwrap();
    quiet.send(&FromWorker::Done { stopped: false }).unwrap();
    let mut before = 0;
    wait(&broker, |event| match event {
        BrokerEvent::Reported { worker: LocalRank(0), .. } => {
            before += 1;
            None
        }
        BrokerEvent::Reported { worker: LocalRank(1), .. } => Some(()),
        _ => None,
    });
    assert!(before < 3000, "{before} messages of the flood came first");
    drop(broker);
    flooder.join().unwrap();
}
