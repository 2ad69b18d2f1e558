//! The handle on one node, over real sockets.

use super::{settings::tests::settings, *};
use enn_common::failure::Failure;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::time::Instant;

/// Longest wait for news in a test.
const NEWS_WAIT_MS: u16 = 10_000;

/// The next news but waiting and the journal's.
fn next(rendezvous: &Rendezvous) -> News {
    loop {
        let mut fds = [PollFd::new(rendezvous.fd(), PollFlags::POLLIN)];
        rendezvous.clear();
        match rendezvous.news() {
            Some(News::Waiting(_) | News::NodeJoined { .. } | News::NodeLost { .. }) => {}
            Some(news) => return news,
            None => assert_eq!(poll(&mut fds, PollTimeout::from(NEWS_WAIT_MS)).unwrap(), 1, "no news came"),
        }
    }
}

#[test]
fn one_node_begins_restarts_and_finishes_at_once() {
    let rendezvous = Rendezvous::start(Settings { restarts_max: 1, ..settings() }).unwrap();
    let began = Instant::now();
    rendezvous.join();
    let News::Round(plan) = next(&rendezvous) else { panic!("no round") };
    eprintln!("the round came {:?} after join", began.elapsed());
    assert_eq!((plan.round, plan.restarts, plan.node_rank, plan.members.len()), (0, 0, 0, 1));
    assert_eq!(plan.members[0], Member { host: "n0".into(), local_world: 2, role: "default".into() });
    assert_eq!(plan.master, rendezvous.store());
    std::net::TcpStream::connect((&*plan.master.0, plan.master.1)).unwrap();
    let failure = Failure { host: "n0".into(), code: Some(3), ..Failure::default() };
    rendezvous.failed(0, failure.clone());
    // The second failure of a round changes nothing.
    rendezvous.failed(0, Failure { code: Some(4), ..failure.clone() });
    assert_eq!(next(&rendezvous), News::RoundEnded(RoundEnd::Failed(Box::new(failure))));
    let began = Instant::now();
    rendezvous.join();
    let News::Round(plan) = next(&rendezvous) else { panic!("no round") };
    eprintln!("the next round came {:?} after join", began.elapsed());
    assert_eq!((plan.round, plan.restarts), (1, 1));
    rendezvous.finished(1);
    assert_eq!(next(&rendezvous), News::RunEnded(RunEnd::Finished));
    let began = Instant::now();
    drop(rendezvous);
    assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
}
