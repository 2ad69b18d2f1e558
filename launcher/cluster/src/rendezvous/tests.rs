//! Nodes of one process over real sockets: every way in which they can meet, part and fail.

use super::{
    authentication::{Key, Nonces, Prover},
    settings::tests::settings,
    *,
};
use enn_common::{
    failure::Failure,
    wire::{
        frame::{self, FrameBuffer},
        node::{
            FromLeader, Members, NodeDescription, NodeId, PREFIX, PROTOCOL, Roster, StandbyEndpoint, Successor,
            ToLeader,
        },
    },
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

/// Longest wait for a notification in a test.
const NOTIFICATION_WAIT_MS: u16 = 15_000;

/// The next notification of any kind.
fn any(rendezvous: &Rendezvous) -> Notification {
    loop {
        let mut fds = [PollFd::new(rendezvous.fd(), PollFlags::POLLIN)];
        rendezvous.clear();
        match rendezvous.next_notification() {
            Some(notification) => return notification,
            None => assert_eq!(poll(&mut fds, PollTimeout::from(NOTIFICATION_WAIT_MS)).unwrap(), 1, "no news came"),
        }
    }
}

/// The next notification but those about waiting and for the journal.
fn next(rendezvous: &Rendezvous) -> Notification {
    loop {
        match any(rendezvous) {
            Notification::Waiting(_)
            | Notification::NodeJoined { .. }
            | Notification::NodeLost { .. }
            | Notification::LeaderLost(_) => {}
            notification => return notification,
        }
    }
}

/// The next reason for waiting that has these words.
fn waiting(rendezvous: &Rendezvous, words: &str) -> String {
    loop {
        match any(rendezvous) {
            Notification::Waiting(reason) if reason.contains(words) => return reason,
            Notification::Waiting(_)
            | Notification::NodeJoined { .. }
            | Notification::NodeLost { .. }
            | Notification::LeaderLost(_) => {}
            notification => panic!("{notification:?} instead of waiting for {words:?}"),
        }
    }
}

fn round(rendezvous: &Rendezvous) -> RendezvousInfo {
    match next(rendezvous) {
        Notification::Round(plan) => plan,
        notification => panic!("{notification:?} instead of a round"),
    }
}

fn round_end(rendezvous: &Rendezvous) -> RoundEnd {
    match next(rendezvous) {
        Notification::RoundEnded(end) => end,
        notification => panic!("{notification:?} instead of a round's end"),
    }
}

fn run_end(rendezvous: &Rendezvous) -> RunEnd {
    match next(rendezvous) {
        Notification::RunEnded(end) => end,
        notification => panic!("{notification:?} instead of the run's end"),
    }
}

fn at(port: u16, is_host: bool) -> StoreLocation {
    StoreLocation::Endpoint { host: "127.0.0.1".into(), port, is_host: Some(is_host) }
}

/// So many nodes that ask for a round; the first one leads.
fn start(nodes: usize, common: &Settings) -> Vec<Rendezvous> {
    let host = Rendezvous::start(Settings { location: at(0, true), host: "n0".into(), ..common.clone() }).unwrap();
    host.join();
    let port = host.store().1;
    let mut all = vec![host];
    all.extend((1..nodes).map(|n| follower(n, port, common)));
    all
}

fn follower(n: usize, port: u16, common: &Settings) -> Rendezvous {
    let node = Settings { location: at(port, false), host: format!("n{n}"), ..common.clone() };
    let rendezvous = Rendezvous::start(node).unwrap();
    rendezvous.join();
    rendezvous
}

fn of(nodes_min: u32, nodes_max: u32) -> Settings {
    Settings { nodes_min, nodes_max, last_call: Duration::from_millis(300), ..settings() }
}

/// The supervisor on the host ends a round because of a failure.
fn end_round(host: &Rendezvous, round: u64, failure: &Failure) {
    host.end_round(round, RoundEnd::Failed(Box::new(failure.clone())), 1, Duration::ZERO);
}

fn hosts(plan: &RendezvousInfo) -> Vec<&str> {
    plan.members.iter().map(|member| member.host.as_str()).collect()
}

#[test]
fn one_node_begins_restarts_and_finishes_at_once() {
    let rendezvous = Rendezvous::start(Settings { restarts_max: 1, ..settings() }).unwrap();
    let began = Instant::now();
    rendezvous.join();
    let plan = round(&rendezvous);
    eprintln!("the round came {:?} after join", began.elapsed());
    assert_eq!((plan.round, plan.node_rank, plan.members.len()), (0, 0, 1));
    assert_eq!(plan.members[0], Member { host: "n0".into(), local_world: 2, role: "default".into() });
    assert_eq!(plan.master, rendezvous.store());
    TcpStream::connect((&*plan.master.0, plan.master.1)).unwrap();
    let failure = Failure { host: "n0".into(), code: Some(3), ..Failure::default() };
    end_round(&rendezvous, 0, &failure);
    // A round that is over is not ended again.
    end_round(&rendezvous, 0, &Failure { code: Some(4), ..failure.clone() });
    assert_eq!(round_end(&rendezvous), RoundEnd::Failed(Box::new(failure)));
    let began = Instant::now();
    rendezvous.join();
    let plan = round(&rendezvous);
    eprintln!("the next round came {:?} after join", began.elapsed());
    assert_eq!(plan.round, 1);
    rendezvous.finished(1);
    assert_eq!(run_end(&rendezvous), RunEnd::Finished);
    let began = Instant::now();
    drop(rendezvous);
    assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
}

#[test]
fn joining_twice_is_joining_once() {
    let rendezvous = Rendezvous::start(Settings { restarts_max: 1, ..settings() }).unwrap();
    rendezvous.join();
    assert_eq!(round(&rendezvous).round, 0);
    end_round(&rendezvous, 0, &Failure::default());
    // The workers are gone before the end of the round is read; when it is read, the node asks again.
    rendezvous.join();
    assert!(matches!(round_end(&rendezvous), RoundEnd::Failed(_)));
    let mut fds = [PollFd::new(rendezvous.fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::from(1000u16)).unwrap();
    rendezvous.join();
    assert_eq!(round(&rendezvous).round, 1);
    rendezvous.join();
    // But workers that are gone without a report end their round.
    assert!(matches!(round_end(&rendezvous), RoundEnd::NodeLost { .. }));
}

#[test]
fn three_nodes_share_rounds_failures_and_the_end() {
    let nodes = start(3, &Settings { restarts_max: 1, ..of(3, 3) });
    let plans: Vec<RendezvousInfo> = nodes.iter().map(round).collect();
    assert_eq!(hosts(&plans[0])[0], "n0", "the host of the store comes first");
    let mut ranks: Vec<u32> = plans.iter().map(|plan| plan.node_rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    assert!(plans.iter().all(|plan| plan.members == plans[0].members && plan.master == plans[0].master));
    let failure = Failure { rank: 5, host: "n2".into(), stderr: "why".into(), ..Failure::default() };
    end_round(&nodes[0], 0, &failure);
    for node in &nodes {
        assert_eq!(round_end(node), RoundEnd::Failed(Box::new(failure.clone())));
    }
    nodes.iter().for_each(Rendezvous::join);
    for (node, before) in nodes.iter().zip(&plans) {
        let plan = round(node);
        assert_eq!((plan.round, plan.node_rank), (1, before.node_rank), "ranks stay");
    }
    nodes[0].finished(1);
    nodes[2].finished(1);
    let end = RoundEnd::Failed(Box::new(failure.clone()));
    nodes[0].end_run(RunEnd::Failed { end, reason: "all restarts are used up".into() });
    for node in &nodes {
        let RunEnd::Failed { end, reason } = run_end(node) else { panic!("no failure") };
        assert_eq!(end, RoundEnd::Failed(Box::new(failure.clone())));
        assert_eq!(reason, "all restarts are used up");
    }
}

#[test]
fn all_nodes_must_finish() {
    let nodes = start(2, &of(2, 2));
    nodes.iter().map(round).for_each(drop);
    nodes[1].finished(0);
    nodes[0].finished(0);
    assert!(nodes.iter().map(run_end).all(|end| end == RunEnd::Finished));
    // A node that joins after the end receives it.
    assert_eq!(run_end(&follower(9, nodes[0].store().1, &of(2, 2))), RunEnd::Finished);
}

#[test]
fn fixed_ranks_are_kept_and_missing_ones_named() {
    let common = Settings { node_rank: Some(2), ..of(3, 3) };
    let host = start(1, &common).remove(0);
    let port = host.store().1;
    let reason = waiting(&host, "node ranks");
    assert!(reason.starts_with("1 of 3 nodes are here; waiting for node ranks 0, 1, "), "{reason}");
    let second = follower(1, port, &Settings { node_rank: Some(0), ..common.clone() });
    let RunEnd::Refused { reason } = run_end(&follower(7, port, &common)) else { panic!("not refused") };
    assert!(reason.starts_with("node rank 2 is wanted by n7 and taken by n0\nhint: "), "{reason}");
    let third = follower(2, port, &Settings { node_rank: Some(1), ..common });
    for (node, rank) in [(&host, 2), (&second, 0), (&third, 1)] {
        let plan = round(node);
        assert_eq!(plan.node_rank, rank);
        assert_eq!(hosts(&plan), ["n1", "n2", "n0"]);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_both_values() {
    let host = start(1, &of(2, 2)).remove(0);
    let port = host.store().1;
    for (other, words) in [
        (Settings { run_id: "b".into(), ..of(2, 2) }, "the run's name is b on n1 and run on n0\nhint: "),
        (of(2, 3), "the number of nodes is 2:3 on n1 and 2 on n0\nhint: "),
        (Settings { restarts_max: 7, ..of(2, 2) }, "the number of restarts is 7 on n1 and 0 on n0\nhint: "),
        (Settings { node_rank: Some(0), ..of(2, 2) }, "the node rank is fixed on n1 and given by the rendezvous on n0"),
    ] {
        let RunEnd::Refused { reason } = run_end(&follower(1, port, &other)) else { panic!("not refused") };
        assert!(reason.starts_with(words), "{reason}");
    }
    // Different numbers of workers are fine.
    let other = follower(1, port, &Settings { local_world: 7, role: "other".into(), ..of(2, 2) });
    let plan = round(&host);
    assert_eq!((plan.members[1].local_world, &*plan.members[1].role), (7, "other"));
    assert_eq!(round(&other).members, plan.members);
}

#[test]
fn a_late_node_ends_the_round_until_the_run_is_full() {
    let common = of(2, 3);
    let mut nodes = start(2, &common);
    let began = Instant::now();
    nodes.iter().map(round).for_each(drop);
    assert!(began.elapsed() > Duration::from_millis(200), "the last call was not waited for");
    let port = nodes[0].store().1;
    nodes.push(follower(2, port, &common));
    for node in &nodes[..2] {
        assert_eq!(round_end(node), RoundEnd::NodeWaiting { host: "n2".into() });
        node.join();
    }
    for node in &nodes {
        let plan = round(node);
        assert_eq!((plan.round, plan.members.len()), (1, 3));
    }
    let spare = follower(3, port, &common);
    let reason = waiting(&spare, "has all its");
    assert_eq!(reason, "the run has all its 3 nodes; 1 wait in case one is lost");
    // One dies: the spare takes its place, and nobody restarted.
    drop(nodes.pop());
    for node in &nodes {
        let RoundEnd::NodeLost { host, reason } = round_end(node) else { panic!("not lost") };
        assert_eq!((&*host, &*reason), ("n2", "its connection was closed; the agent there ended"));
        node.join();
    }
    for node in nodes.iter().chain([&spare]) {
        let plan = round(node);
        assert_eq!(plan.round, 2);
        assert_eq!(hosts(&plan), ["n0", "n1", "n3"]);
    }
}

#[test]
fn a_node_that_leaves_ends_the_run_only_when_it_is_needed() {
    let nodes = start(3, &of(2, 3));
    nodes.iter().map(round).for_each(drop);
    nodes[2].leave("SIGTERM".into());
    assert_eq!(run_end(&nodes[2]), RunEnd::Stopped { by: "SIGTERM on n2".into() });
    for node in &nodes[..2] {
        let reason = "it was asked to stop (SIGTERM)".to_owned();
        assert_eq!(round_end(node), RoundEnd::NodeLost { host: "n2".into(), reason });
        node.join();
    }
    assert!(nodes[..2].iter().map(round).all(|plan| plan.round == 1 && plan.members.len() == 2));
    nodes[1].leave("SIGINT".into());
    assert!(nodes[..2].iter().map(run_end).all(|end| end == RunEnd::Stopped { by: "SIGINT on n1".into() }));
}

#[test]
fn a_fixed_run_ends_with_a_node_or_waits_for_another() {
    let nodes = start(2, &of(2, 2));
    nodes.iter().map(round).for_each(drop);
    let mut nodes = nodes.into_iter();
    let host = nodes.next().unwrap();
    drop(nodes.next());
    let RunEnd::Failed { end, reason } = run_end(&host) else { panic!("did not fail") };
    assert!(matches!(end, RoundEnd::NodeLost { host, .. } if host == "n1"));
    assert!(reason.contains("no restarts are allowed"), "{reason}");

    let common = Settings { restarts_max: 1, ..of(2, 2) };
    let mut nodes = start(2, &common);
    nodes.iter().map(round).for_each(drop);
    drop(nodes.pop());
    assert!(matches!(round_end(&nodes[0]), RoundEnd::NodeLost { .. }));
    nodes[0].join();
    let reason = waiting(&nodes[0], "waiting for 1 more");
    assert!(reason.starts_with("1 of 2 nodes are here (n0); waiting for 1 more, 600 s left"), "{reason}");
    nodes.push(follower(2, nodes[0].store().1, &common));
    assert!(nodes.iter().map(round).all(|plan| hosts(&plan) == ["n0", "n2"]));
}

#[test]
fn too_few_nodes_time_out_with_the_reason() {
    let common = Settings { join_timeout: Duration::from_millis(600), ..of(2, 2) };
    let RunEnd::TimedOut { reason } = run_end(&start(1, &common)[0]) else { panic!("no timeout") };
    assert_eq!(reason, "after 0.6 s 1 of 2 nodes are here (n0); waiting for 1 more, 0 s left");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let alone = follower(1, free, &common);
    let reason = waiting(&alone, "refused");
    assert!(reason.starts_with(&format!("looking for the rendezvous at 127.0.0.1:{free}: ")), "{reason}");
    let RunEnd::TimedOut { reason } = run_end(&alone) else { panic!("no timeout") };
    assert!(reason.contains(&format!("127.0.0.1:{free} for 0.6 s: connection refused")), "{reason}");
}

#[test]
fn followers_may_start_before_the_leader() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let follower = follower(1, free, &of(2, 2));
    waiting(&follower, "refused");
    let host = Rendezvous::start(Settings { location: at(free, true), ..of(2, 2) }).unwrap();
    host.join();
    assert_eq!(hosts(&round(&host)), ["n0", "n1"]);
    assert_eq!(round(&follower).node_rank, 1);
}

fn token(secret: &[u8]) -> Option<Token> {
    Some(Token { secret: secret.to_vec(), from: TokenSource::Variable })
}

#[test]
fn a_wrong_token_is_refused_and_never_shown() {
    let host = start(1, &Settings { token: token(b"right-secret"), ..of(2, 2) }).remove(0);
    let port = host.store().1;
    let refused = |token| match run_end(&follower(1, port, &Settings { token, ..of(2, 2) })) {
        RunEnd::Refused { reason } => reason,
        end => panic!("{end:?} instead of a refusal"),
    };
    let wrong = refused(token(b"wrong-secret"));
    assert!(wrong.contains("does not accept this node's token, which is from ENN_TOKEN\nhint: "), "{wrong}");
    assert!(!wrong.contains("secret"), "{wrong}");
    assert!(wrong.contains("ENN_TOKEN on all nodes") && wrong.contains("--token-file"), "{wrong}");
    let none = refused(None);
    assert!(none.contains("asks for a token and this node has none\nhint: set the same ENN_TOKEN"), "{none}");
    let right = follower(1, port, &Settings { token: token(b"right-secret"), ..of(2, 2) });
    assert_eq!(round(&right).node_rank, 1);
    // A leader without a token is not the one that a node with a token looks for.
    let open = start(1, &of(2, 2)).remove(0);
    let node = follower(1, open.store().1, &Settings { token: token(b"right-secret"), ..of(2, 2) });
    let RunEnd::Refused { reason } = run_end(&node) else { panic!("not refused") };
    assert!(reason.contains("does not know this node's token"), "{reason}");
}

#[test]
fn the_leader_dies_and_another_node_takes_over() {
    let common = Settings { restarts_max: 3, ..of(2, 4) };
    let nodes = start(4, &common);
    nodes.iter().map(round).for_each(drop);
    let failure = Failure { host: "n1".into(), ..Failure::default() };
    end_round(&nodes[0], 0, &failure);
    nodes.iter().map(round_end).for_each(drop);
    nodes.iter().for_each(Rendezvous::join);
    nodes.iter().map(round).for_each(drop);
    let mut nodes = nodes.into_iter();
    let began = Instant::now();
    drop(nodes.next());
    let left: Vec<Rendezvous> = nodes.collect();
    for node in &left {
        assert!(matches!(round_end(node), RoundEnd::NodeLost { host, .. } if host == "n0"));
    }
    left.iter().for_each(Rendezvous::join);
    let plans: Vec<RendezvousInfo> = left.iter().map(round).collect();
    eprintln!("the next round came {:?} after the host's death", began.elapsed());
    for plan in &plans {
        assert_eq!((plan.round, plan.members.len()), (2, 3), "they go on where they were");
        assert_eq!(plan.master, plans[0].master);
    }
    TcpStream::connect((&*plans[0].master.0, plans[0].master.1)).expect("the new host serves a store");
    // And once more.
    let first = plans.iter().position(|plan| plan.node_rank == 0).unwrap();
    let mut left = left;
    drop(left.remove(first));
    left.iter().map(round_end).for_each(drop);
    left.iter().for_each(Rendezvous::join);
    let plans: Vec<RendezvousInfo> = left.iter().map(round).collect();
    assert!(plans.iter().all(|plan| (plan.round, plan.members.len()) == (3, 2)));
    // Of two, neither can know.
    drop(left.remove(plans.iter().position(|plan| plan.node_rank == 0).unwrap()));
    assert!(matches!(round_end(&left[0]), RoundEnd::NodeLost { .. }));
    let RunEnd::LeaderLost { reason } = run_end(&left[0]) else { panic!("the host is not lost") };
    assert!(reason.ends_with("of two nodes neither can know which one is cut off"), "{reason}");
}

#[test]
fn a_fixed_run_ends_quickly_with_its_leader() {
    let mut nodes = start(3, &Settings { restarts_max: 3, ..of(3, 3) });
    nodes.iter().map(round).for_each(drop);
    let port = nodes[0].store().1;
    let began = Instant::now();
    drop(nodes.remove(0));
    for node in &nodes {
        assert!(matches!(round_end(node), RoundEnd::NodeLost { .. }));
        let RunEnd::LeaderLost { reason } = run_end(node) else { panic!("the host is not lost") };
        assert!(reason.starts_with(&format!("the rendezvous at 127.0.0.1:{port} is gone (")), "{reason}");
        assert!(
            reason.ends_with("the run needs all its nodes (with --nnodes MIN:MAX others may take over)"),
            "{reason}"
        );
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// A node made by hand, which sends what a test wants.
struct Fake {
    stream: TcpStream,
    buffer: FrameBuffer,
}

impl Fake {
    fn send<T: serde::Serialize>(&mut self, message: &T) {
        let mut out = Vec::new();
        frame::encode(message, &mut out).unwrap();
        self.stream.write_all(&out).unwrap();
    }

    fn recv<T: serde::de::DeserializeOwned>(&mut self) -> T {
        let mut chunk = [0; 4096];
        loop {
            if let Some(message) = self.buffer.decode().unwrap() {
                return message;
            }
            let read = self.stream.read(&mut chunk).unwrap();
            assert_ne!(read, 0, "closed");
            self.buffer.extend(&chunk[..read]);
        }
    }

    /// A follower that was accepted.
    fn follower(port: u16, n: u64, common: &Settings) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&PREFIX).unwrap();
        let mut fake = Self { stream, buffer: FrameBuffer::new() };
        fake.send(&ToLeader::Hello { protocol: PROTOCOL, nonce: [1; 32] });
        assert!(matches!(fake.recv(), FromLeader::Challenge { token: false, .. }));
        fake.send(&ToLeader::Proof { proof: [0; 32] });
        assert!(matches!(fake.recv(), FromLeader::Welcome { .. }));
        let description = NodeDescription {
            node: NodeId(n),
            host: format!("fake{n}"),
            local_world: 1,
            role: "default".into(),
            node_rank: None,
            standby: None,
            terms: common.terms(),
            last: None,
        };
        fake.send(&ToLeader::Join(Box::new(description)));
        fake
    }

    /// A leader that accepts the next node and reads its description.
    fn host(listener: &TcpListener) -> (Self, NodeDescription) {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.read_exact(&mut [0; 3]).unwrap();
        let mut fake = Self { stream, buffer: FrameBuffer::new() };
        assert!(matches!(fake.recv(), ToLeader::Hello { .. }));
        fake.send(&FromLeader::Challenge { nonce: [0; 32], token: false });
        assert!(matches!(fake.recv(), ToLeader::Proof { .. }));
        fake.send(&FromLeader::Welcome { proof: [0; 32] });
        let ToLeader::Join(description) = fake.recv() else { panic!("no card") };
        (fake, *description)
    }

    fn begin(&mut self, members: u32, node_rank: u32, successors: Vec<Successor>) {
        let names: Vec<String> = (0..members).map(|n| format!("n{n}")).collect();
        let members = Members::pack(names.iter().map(|name| (name.as_str(), 1, "default")));
        self.send(&FromLeader::Roster(Box::new(Roster {
            round: 4,
            members,
            leader_rank: 0,
            leader: NodeId(0),
            successors,
        })));
        self.send(&FromLeader::Begin { node_rank });
    }
}

/// Silences of a test.
fn quick(common: Settings) -> Settings {
    Settings { silence_max: Duration::from_millis(600), restarts_max: 3, ..common }
}

#[test]
fn a_silent_node_is_lost_and_told_so() {
    let common = quick(of(2, 3));
    let nodes = start(2, &common);
    let mut fake = Fake::follower(nodes[0].store().1, 7, &common);
    fake.send(&ToLeader::Ready);
    for node in &nodes {
        assert_eq!(round(node).members.len(), 3);
    }
    let began = Instant::now();
    for node in &nodes {
        let RoundEnd::NodeLost { host, reason } = round_end(node) else { panic!("not lost") };
        assert!(host == "fake7" && reason.starts_with("nothing was heard of it for 0."), "{host}: {reason}");
        node.join();
    }
    assert!(began.elapsed() < Duration::from_millis(1200), "{:?}", began.elapsed());
    assert!(nodes.iter().map(round).all(|plan| plan.members.len() == 2));
    let word = loop {
        match fake.recv() {
            FromLeader::Dismissed { reason } => break reason,
            FromLeader::RunEnded(end) => panic!("{end:?}"),
            _ => {}
        }
    };
    assert!(word.starts_with("nothing was heard of it"), "{word}");
}

#[test]
fn a_silent_leader_is_given_up_and_told_so() {
    let common = quick(of(2, 3));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = follower(1, listener.local_addr().unwrap().port(), &common);
    let (mut fake, description) = Fake::host(&listener);
    let standby = StandbyEndpoint { host: "127.0.0.1".into(), port: description.standby.unwrap().port };
    // A successor before it, which is silent, too.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = StandbyEndpoint { host: "127.0.0.1".into(), port: silent.local_addr().unwrap().port() };
    let successors = vec![Successor { node_rank: 1, at: silent_at }, Successor { node_rank: 2, at: standby }];
    fake.begin(3, 2, successors);
    assert_eq!(round(&node).round, 4);
    let began = Instant::now();
    let RoundEnd::NodeLost { host, reason } = round_end(&node) else { panic!("not lost") };
    assert!(host == "n0" && reason.starts_with("nothing was heard of it for 0.6"), "{host}: {reason}");
    node.join();
    let RunEnd::LeaderLost { reason } = run_end(&node) else { panic!("the host is not lost") };
    assert!(reason.contains("only 1 of 3 nodes of the last round are on this side (0 known dead)"), "{reason}");
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    let word = loop {
        match fake.recv::<ToLeader>() {
            ToLeader::Abandon => break true,
            ToLeader::Ready | ToLeader::Alive { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(word, "a host that wakes up can tell this from death");
}

#[test]
fn the_clients_of_the_store_are_counted_for_the_supervisor() {
    let rendezvous = Rendezvous::start(settings()).unwrap();
    rendezvous.join();
    round(&rendezvous);
    rendezvous.count_clients();
    assert_eq!(next(&rendezvous), Notification::StoreClients(0));
}

#[test]
fn foreign_programs_are_closed() {
    let nodes = start(2, &of(2, 2));
    let port = nodes[0].store().1;
    nodes.iter().map(round).for_each(drop);
    let hello = {
        let mut out = PREFIX.to_vec();
        frame::encode(&ToLeader::Ready, &mut out).unwrap();
        out
    };
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"ENN\xff\xff\xff\x03 huge", &hello] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(bytes).unwrap();
        stream.write_all(&[0; 8192]).ok();
        // Closed or reset, not answered.
        assert!(!matches!(stream.read(&mut [0; 16]), Ok(1..)), "{bytes:?}");
    }
    let key = Key::of(&Token { secret: vec![1], from: TokenSource::Variable });
    let mut nonces = Nonces::open().unwrap();
    let proof = key.proof(Prover::Node, &nonces.next().unwrap(), &nonces.next().unwrap());
    assert_ne!(proof, [0; 32]);
    nodes.iter().for_each(|node| node.finished(0));
    assert!(nodes.iter().map(run_end).all(|end| end == RunEnd::Finished));
}

fn message(rendezvous: &Rendezvous) -> (NodeId, Vec<u8>) {
    match next(rendezvous) {
        Notification::Message { from, bytes } => (from, bytes),
        notification => panic!("{notification:?} instead of a letter"),
    }
}

#[test]
fn messages_arrive_in_order_with_their_senders() {
    let nodes = start(3, &of(3, 3));
    let plans: Vec<RendezvousInfo> = nodes.iter().map(round).collect();
    assert!(plans[0].nodes.len() == 3 && plans[1].nodes.is_empty(), "only the host knows who is who");
    for node in &nodes[1..] {
        (0..50u8).for_each(|number| node.send_message(None, vec![number]));
    }
    let mut read: Vec<(NodeId, Vec<u8>)> = (0..100).map(|_| message(&nodes[0])).collect();
    read.sort_by_key(|(from, _)| *from);
    let numbers: Vec<u8> = read.iter().map(|(_, bytes)| bytes[0]).collect();
    assert_eq!(numbers, (0..50).chain(0..50).collect::<Vec<u8>>());
    assert!(read.iter().all(|(from, _)| plans[0].nodes[1..].contains(from)));
    nodes[0].send_message(Some(plans[0].nodes[2]), b"for the third".to_vec());
    // One to a node that is not there is lost.
    nodes[0].send_message(Some(NodeId(1)), b"for nobody".to_vec());
    nodes[0].send_message(Some(plans[0].nodes[1]), b"for the second".to_vec());
    let third = usize::from(plans[1].node_rank == 1) + 1;
    assert_eq!(message(&nodes[third]).1, b"for the third");
    assert_eq!(message(&nodes[3 - third]).1, b"for the second");
}

#[test]
fn a_node_that_was_out_of_reach_comes_back() {
    let nodes = start(2, &Settings { store_kept: true, ..quick(of(1, 2)) });
    nodes.iter().for_each(|node| assert_eq!(round(node).members.len(), 2));
    nodes[1].cut_link(Duration::from_millis(1500));
    for node in &nodes {
        assert!(matches!(round_end(node), RoundEnd::NodeLost { .. }));
        node.join();
    }
    assert_eq!(until_round_of(2, &nodes[0]).members.len(), 2);
    assert_eq!(until_round_of(2, &nodes[1]).leader, nodes[0].node());
}

#[test]
fn a_short_cut_loses_nothing_and_a_long_one_the_node() {
    let nodes = start(2, &quick(of(1, 2)));
    let other = round(&nodes[0]).nodes[1];
    round(&nodes[1]);
    nodes[1].cut_link(Duration::from_millis(250));
    nodes[1].send_message(None, b"said meanwhile".to_vec());
    nodes[0].send_message(Some(other), b"heard later".to_vec());
    assert_eq!(message(&nodes[0]).1, b"said meanwhile");
    assert_eq!(message(&nodes[1]).1, b"heard later");
    nodes[1].cut_link(Duration::from_secs(30));
    let RoundEnd::NodeLost { reason, .. } = round_end(&nodes[0]) else { panic!("not lost") };
    assert!(reason.starts_with("nothing was heard of it"), "{reason}");
    assert!(matches!(round_end(&nodes[1]), RoundEnd::NodeLost { .. }));
    assert!(matches!(run_end(&nodes[1]), RunEnd::LeaderLost { .. }));
}

#[test]
fn a_node_that_the_leader_removes_comes_back() {
    let nodes = start(2, &quick(of(1, 2)));
    let other = round(&nodes[0]).nodes[1];
    round(&nodes[1]);
    nodes[1].send_message(None, b"before".to_vec());
    assert_eq!(message(&nodes[0]).1, b"before");
    nodes[0].dismiss(other, "it does nothing".into());
    let RoundEnd::NodeLost { reason, .. } = round_end(&nodes[0]) else { panic!("not lost") };
    assert_eq!(reason, "it does nothing");
    assert!(matches!(round_end(&nodes[1]), RoundEnd::NodeLost { .. }));
    nodes.iter().for_each(Rendezvous::join);
    let plan = until_round_of(2, &nodes[0]);
    assert!(plan.nodes.contains(&other), "{plan:?}");
}

/// The first round with so many nodes; this one asks again for every smaller one.
fn until_round_of(count: usize, rendezvous: &Rendezvous) -> RendezvousInfo {
    loop {
        match next(rendezvous) {
            Notification::Round(plan) if plan.members.len() == count => return plan,
            Notification::RoundEnded(_) => rendezvous.join(),
            _ => {}
        }
    }
}

#[test]
fn a_node_whose_messages_nobody_reads_is_lost() {
    let nodes = start(2, &quick(of(1, 2)));
    round(&nodes[0]);
    round(&nodes[1]);
    let large = 64 << 10;
    let messages = super::unread_messages::UNREAD_BYTES_MAX / large + 2;
    for _ in 0..messages {
        nodes[1].send_message(None, vec![0; large]);
    }
    // The node learns of its loss; the leader reads nothing before that.
    assert!(matches!(round_end(&nodes[1]), RoundEnd::NodeLost { .. }));
    let lost = loop {
        match any(&nodes[0]) {
            Notification::NodeLost { reason, .. } => break reason,
            Notification::Message { .. } => {}
            notification => panic!("{notification:?} instead of letters and a loss"),
        }
    };
    assert!(lost.contains("wait to be read"), "{lost}");
}

/// The limit is this process's: run each test in a process of its own.
#[test]
fn nodes_without_descriptors_keep_their_round_and_let_another_in() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    let common = of(2, 3);
    let nodes = start(2, &common);
    let port = nodes[0].store().1;
    let other = round(&nodes[0]).nodes[1];
    round(&nodes[1]);
    // Strangers that say nothing, until neither side has a descriptor left.
    let mut crowd = Vec::new();
    while let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
        crowd.push(stream);
    }
    assert!(crowd.len() > 20, "{}", crowd.len());
    nodes[0].send_message(Some(other), b"to whom is there".to_vec());
    assert_eq!(message(&nodes[1]).1, b"to whom is there");
    // Test and nodes share one table of descriptors: the leader may take those that the test gives back for connections
    // that still wait.
    let late = loop {
        let node = Settings { location: at(port, false), host: "late".into(), ..common.clone() };
        match Rendezvous::start(node) {
            Ok(rendezvous) => break rendezvous,
            Err(_) => drop(crowd.pop().expect("room before the last of the crowd has gone")),
        }
        std::thread::park_timeout(Duration::from_millis(20));
    };
    late.join();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for one in crowd {
                std::thread::park_timeout(Duration::from_millis(50));
                drop(one);
            }
        });
        for node in &nodes {
            assert_eq!(round_end(node), RoundEnd::NodeWaiting { host: "late".into() });
            node.join();
        }
        for node in nodes.iter().chain([&late]) {
            assert_eq!(round(node).members.len(), 3);
        }
    });
}
