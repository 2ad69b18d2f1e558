//! The broker over a real socket: who gets in, who is turned away, and that one worker's misbehaviour stays its own.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]
#![expect(clippy::disallowed_methods, reason = "some tests are about what time does to clients that do nothing")]

use enn_broker::{Broker, BrokerEvent, Command, RoundPlan};
use enn_common::{
    id::{Round, WorkerId},
    wire::{
        client::{Client, ClientError},
        frame::FrameBuffer,
        message::{Assignment, FromWorker, PROTOCOL, StateSource, ToWorker, WorkerTask},
        script::{self, FromScript, SCRIPT_PROTOCOL, ToScript},
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
        split: 1,
        task: WorkerTask::Init { meta: "/m".into(), attempt: "0".into() },
    };
    RoundPlan { round: Round(round), seats: (0..world).map(|rank| (WorkerId(rank), assignment(rank))).collect() }
}

/// Begins a round of new workers, which are named by their ranks.
fn begin(broker: &Broker, round: u64, world: u32) {
    for worker in 0..world {
        broker.send(Command::Expect { worker: WorkerId(worker), standby: None }).unwrap();
    }
    broker.send(Command::BeginRound(Box::new(plan(round, world)))).unwrap();
}

fn hello(worker: u32) -> FromWorker {
    FromWorker::Hello { protocol: PROTOCOL, worker, pid: std::process::id() }
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
    begin(&broker, 4, 2);
    let mut client = Client::connect(broker.socket()).unwrap();
    client.send(&hello(1)).unwrap();
    let ToWorker::Assign(assignment) = client.recv().unwrap() else { panic!() };
    assert_eq!((assignment.rank, assignment.round), (1, 4));
    client.send(&FromWorker::Warned { message: "w".into() }).unwrap();
    let worker = wait(&broker, |event| match event {
        BrokerEvent::Reported { worker, message: FromWorker::Warned { .. }, .. } => Some(worker),
        _ => None,
    });
    assert_eq!(worker, WorkerId(1));
    broker.send(Command::TellAll(Box::new(ToWorker::Committed { step: 3, path: "/c".into() }))).unwrap();
    assert_eq!(client.recv().unwrap(), ToWorker::Committed { step: 3, path: "/c".into() });
    broker.send(Command::CloseAll).unwrap();
    assert!(matches!(client.recv(), Err(ClientError::Closed)));
    drop(broker);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the socket's directory stays behind");
}

#[test]
fn a_worker_stays_connected_through_rounds() {
    let (_dir, broker) = serve();
    begin(&broker, 0, 2);
    let mut client = Client::connect(broker.socket()).unwrap();
    client.send(&hello(1)).unwrap();
    assert!(matches!(client.recv().unwrap(), ToWorker::Assign(_)));
    client.send(&FromWorker::Entered { round: 0 }).unwrap();
    client.send(&FromWorker::Warned { message: "w".into() }).unwrap();
    let reported = |event| match event {
        BrokerEvent::Reported { round, message, .. } => Some((round, message)),
        _ => None,
    };
    assert_eq!(wait(&broker, reported), (Some(Round(0)), FromWorker::Entered { round: 0 }));
    assert_eq!(wait(&broker, reported).0, Some(Round(0)));
    broker.send(Command::EndRound { reason: "rank 0 died".into() }).unwrap();
    assert_eq!(client.recv().unwrap(), ToWorker::RoundEnded { round: 0, reason: "rank 0 died".into() });
    client.send(&FromWorker::Halted { round: 0, step: 7, kept: true }).unwrap();
    assert_eq!(wait(&broker, reported), (Some(Round(0)), FromWorker::Halted { round: 0, step: 7, kept: true }));
    broker.send(Command::BeginRound(Box::new(plan(1, 2)))).unwrap();
    let ToWorker::Assign(seat) = client.recv().unwrap() else { panic!() };
    assert_eq!((seat.round, seat.rank), (1, 1));
    broker.send(Command::Dismiss { worker: WorkerId(1) }).unwrap();
    assert_eq!(client.recv().unwrap(), ToWorker::Dismissed);
    assert!(matches!(client.recv(), Err(ClientError::Closed)));
}

#[test]
fn a_foreign_protocol_is_refused_in_words() {
    let (_dir, broker) = serve();
    begin(&broker, 0, 1);
    let mut client = Client::connect(broker.socket()).unwrap();
    client.send(&FromWorker::Hello { protocol: PROTOCOL + 1, worker: 0, pid: 1 }).unwrap();
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
    begin(&broker, 0, 2);
    let mut good = Client::connect(broker.socket()).unwrap();
    good.send(&hello(0)).unwrap();
    good.recv().unwrap();
    let mut bad = UnixStream::connect(broker.socket()).unwrap();
    let mut bytes = Vec::new();
    enn_common::wire::frame::encode(&hello(1), &mut bytes).unwrap();
    bad.write_all(&bytes).unwrap();
    bad.write_all(&[2, 0, 0, 0, 250, 250]).unwrap();
    let error = wait(&broker, |event| match event {
        BrokerEvent::Left { worker: WorkerId(1), error, .. } => error,
        _ => None,
    });
    assert!(error.contains("not a message"), "{error}");
    broker.send(Command::TellAll(Box::new(ToWorker::Abandoned { step: 1, error: "x".into() }))).unwrap();
    assert!(matches!(good.recv().unwrap(), ToWorker::Abandoned { .. }));
}

/// The other end of a script's connection.
struct Script {
    socket: UnixStream,
    buffer: FrameBuffer,
}

impl Script {
    fn connect(broker: &Broker) -> Self {
        let socket = UnixStream::connect(broker.script_socket()).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        Self { socket, buffer: FrameBuffer::new() }
    }

    fn send(&mut self, message: &FromScript) {
        let mut bytes = Vec::new();
        script::encode(message, &mut bytes).unwrap();
        self.socket.write_all(&bytes).unwrap();
    }

    /// The next message; `None` at the end.
    fn recv(&mut self) -> Option<ToScript> {
        let mut chunk = [0; 100];
        loop {
            if let Some(message) = script::decode(&mut self.buffer).unwrap() {
                return Some(message);
            }
            match self.socket.read(&mut chunk).unwrap_or(0) {
                0 => return None,
                read => self.buffer.extend(&chunk[..read]),
            }
        }
    }

    fn refusal(&mut self) -> String {
        let Some(ToScript::Refused { error }) = self.recv() else { panic!("nothing was refused") };
        assert_eq!(self.recv(), None, "the connection is closed");
        error
    }
}

fn attach(worker: u32) -> FromScript {
    FromScript::Attach { protocol: SCRIPT_PROTOCOL, worker, pid: std::process::id() }
}

#[test]
fn a_script_is_assigned_heard_and_told() {
    let (_dir, broker) = serve();
    assert_eq!(std::fs::metadata(broker.script_socket()).unwrap().permissions().mode() & 0o777, 0o600);
    begin(&broker, 0, 2);
    let mut one = Script::connect(&broker);
    one.send(&attach(1));
    let Some(ToScript::Assigned(seat)) = one.recv() else { panic!() };
    assert_eq!((seat.round, seat.rank, seat.world, seat.source_rank), (0, 1, 2, None));
    one.send(&FromScript::Ready { round: 0, step: 0 });
    one.send(&FromScript::Progress { round: 0, step: 9 });
    let ready = |event| match event {
        BrokerEvent::Reported { worker, round, message: FromWorker::Ready { .. } } => Some((worker, round)),
        _ => None,
    };
    assert_eq!(wait(&broker, ready), (WorkerId(1), Some(Round(0))));
    wait(&broker, |event| matches!(event, BrokerEvent::Progressed { step: 9, .. }).then_some(()));
    // Of no interest to a script.
    broker.send(Command::TellAll(Box::new(ToWorker::Committed { step: 3, path: "/c".into() }))).unwrap();
    broker.send(Command::EndRound { reason: "rank 0 died".into() }).unwrap();
    assert_eq!(one.recv(), Some(ToScript::Broken { round: 0, reason: "rank 0 died".into() }));
    one.send(&FromScript::Halted { round: 0, step: 9, whole: true });
    let halted = |event| match event {
        BrokerEvent::Reported { message: FromWorker::Halted { step, kept, .. }, .. } => Some((step, kept)),
        _ => None,
    };
    assert_eq!(wait(&broker, halted), (9, true));
    let mut next = plan(1, 2);
    for seat in next.seats.values_mut() {
        let source = Some(StateSource { rank: 1, step: 9 });
        seat.task = WorkerTask::Script { attempt: "1-x".into(), source };
    }
    broker.send(Command::BeginRound(Box::new(next))).unwrap();
    let Some(ToScript::Assigned(seat)) = one.recv() else { panic!() };
    assert_eq!((seat.round, seat.store_prefix.as_str(), seat.source_rank, seat.step), (1, "enn/1-x/", Some(1), 9));
    broker.send(Command::StopScript { worker: WorkerId(1) }).unwrap();
    assert_eq!(one.recv(), Some(ToScript::Stop {}));
    broker.send(Command::CloseAll).unwrap();
    assert_eq!(one.recv(), None);
}

#[test]
fn a_script_that_speaks_otherwise_is_told_so_and_may_come_again() {
    let (_dir, broker) = serve();
    begin(&broker, 0, 1);
    let mut http = Script::connect(&broker);
    http.socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(http.refusal().contains("at most 65536 are allowed"));
    let mut hasty = Script::connect(&broker);
    hasty.send(&FromScript::Progress { round: 0, step: 1 });
    assert!(hasty.refusal().contains("must be attach"));
    let mut later = Script::connect(&broker);
    later.send(&FromScript::Attach { protocol: SCRIPT_PROTOCOL + 1, worker: 0, pid: 1 });
    assert!(later.refusal().contains("protocol 3, enn speaks 2"));
    let mut foreign = Script::connect(&broker);
    foreign.send(&attach(7));
    assert!(foreign.refusal().contains("not expected"));
    let mut script = Script::connect(&broker);
    script.send(&attach(0));
    assert!(matches!(script.recv(), Some(ToScript::Assigned(_))));
    let mut second = Script::connect(&broker);
    second.send(&attach(0));
    assert!(second.refusal().contains("already connected"));
    script.socket.write_all(b"\x05\0\0\0hello").unwrap();
    assert!(script.refusal().contains("not a message of this protocol"));
    let left = wait(&broker, |event| match event {
        BrokerEvent::Left { worker: WorkerId(0), error } => error,
        _ => None,
    });
    assert!(left.contains("not a message"), "{left}");
    let mut again = Script::connect(&broker);
    again.send(&attach(0));
    assert!(matches!(again.recv(), Some(ToScript::Assigned(_))));
}

#[test]
fn sync_comes_behind_everything_sent_before() {
    let (_dir, broker) = serve();
    begin(&broker, 0, 1);
    for token in 0..50 {
        broker.send(Command::Expect { worker: WorkerId(0), standby: None }).unwrap();
        let client = Client::connect(broker.socket()).unwrap();
        client.send(&hello(0)).unwrap();
        for _ in 0..20 {
            client.send(&FromWorker::Warned { message: "x".repeat(1000) }).unwrap();
        }
        client.send(&FromWorker::Failed { error: token.to_string() }).unwrap();
        drop(client);
        broker.send(Command::Sync { token }).unwrap();
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
    begin(&broker, 0, 2);
    let flood = Client::connect(broker.socket()).unwrap();
    flood.send(&hello(0)).unwrap();
    let sender = flood.sender();
    let flooder = std::thread::spawn(move || {
        let message = FromWorker::Warned { message: "x".repeat(100_000) };
        while sender.send(&message).is_ok() {}
    });
    let quiet = Client::connect(broker.socket()).unwrap();
    quiet.send(&hello(1)).unwrap();
    quiet.send(&FromWorker::Done { stopped: false }).unwrap();
    let mut before = 0;
    wait(&broker, |event| match event {
        BrokerEvent::Reported { worker: WorkerId(0), .. } => {
            before += 1;
            None
        }
        BrokerEvent::Reported { worker: WorkerId(1), .. } => Some(()),
        _ => None,
    });
    assert!(before < 3000, "{before} messages of the flood came first");
    drop(broker);
    flooder.join().unwrap();
}

/// The limit is this process's: run each test in a process of its own.
#[test]
fn a_broker_without_descriptors_goes_on_and_lets_workers_in() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    let (_dir, broker) = serve();
    begin(&broker, 0, 2);
    let mut first = Client::connect(broker.socket()).unwrap();
    first.send(&hello(0)).unwrap();
    assert!(matches!(first.recv().unwrap(), ToWorker::Assign(_)));
    // Connections that say nothing, until neither this side nor the broker has a descriptor left.
    let mut crowd = Vec::new();
    while let Ok(stream) = UnixStream::connect(broker.socket()) {
        crowd.push(stream);
    }
    assert!(crowd.len() > 30, "{}", crowd.len());
    std::thread::sleep(Duration::from_millis(1100));
    // Test and broker share one table of descriptors: what the test gives back, the broker may take for connections that still wait. One
    // that it closes for lack of another comes again, as a new worker does.
    let lets_in = || {
        let mut client = Client::connect(broker.socket()).ok()?;
        client.send(&hello(1)).ok()?;
        matches!(client.recv().ok()?, ToWorker::Assign(_)).then_some(client)
    };
    let _second = loop {
        match lets_in() {
            Some(client) => break client,
            None => drop(crowd.pop().expect("room before the last of the crowd has gone")),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!crowd.is_empty(), "a silent one makes room for it");
    first.send(&FromWorker::Warm).unwrap();
    wait(&broker, |event| match event {
        BrokerEvent::Broke { error } => panic!("{error}"),
        BrokerEvent::Reported { worker: WorkerId(0), .. } => Some(()),
        _ => None,
    });
}
