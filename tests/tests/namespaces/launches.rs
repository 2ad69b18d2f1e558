//! Nodes as network namespaces: three hosts on one machine, with a switch between them whose cables can be pulled.
//!
//! Needs root and iproute2; elsewhere the tests say so and pass. What is made here is removed at the end.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests: what goes wrong panics, what is skipped is said, and a slow network takes its time"
)]

use enn_tests::{
    launch::{Place, end, kill, until},
    network::{Network, ip},
};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

/// A node that is silent is lost after 5 s; a round is formed in a moment.
const NOTICED_MAX: Duration = Duration::from_secs(12);

/// Starts `enn run` on a node; it meets the others at node 1.
fn start(network: &Network, place: &Place, node: u32, nnodes: &str, more: &[&str]) -> Child {
    let endpoint = format!("--rdzv-endpoint={}:29400", network.address(1));
    let nnodes = format!("--nnodes={nnodes}");
    let mut flags = vec!["--rdzv-backend=c10d", "--rdzv-id=net", &endpoint, &nnodes, "--rdzv-conf=last_call_timeout=1"];
    flags.extend(more);
    let mut command = network.inside(node, &place.command(&flags));
    command.env("XDG_STATE_HOME", place.path(&format!("state{node}"))).env("NODE", node.to_string());
    command.spawn().unwrap()
}

/// Each worker notes the world it sees in `seen/<node>` and works until `done` exists.
fn worker() -> Place {
    let place = Place::new(
        r#"echo "$ENN_ROUND $WORLD_SIZE $GROUP_RANK" > seen/$NODE.new && mv seen/$NODE.new seen/$NODE
while [ ! -e done ]; do sleep 0.05; done"#,
    );
    fs::create_dir(place.path("seen")).unwrap();
    place
}

/// Node → (round, world) as its worker saw them last.
fn seen(place: &Place) -> BTreeMap<u32, (u64, u32)> {
    let read = |path: &Path| -> Option<(u64, u32)> {
        let text = fs::read_to_string(path).ok()?;
        let mut words = text.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    (1..=3).filter_map(|node| Some((node, read(&place.path(&format!("seen/{node}")))?))).collect()
}

fn all_see(place: &Place, nodes: &[u32], world: u32, after: Option<u64>) -> bool {
    let seen = seen(place);
    nodes.iter().all(|node| {
        seen.get(node).is_some_and(|(round, size)| *size == world && after.is_none_or(|last| *round > last))
    })
}

#[test]
fn a_node_that_is_cut_off_is_left_behind_and_ends_by_itself() {
    let Some(network) = Network::here() else { return };
    let place = worker();
    let mut nodes: Vec<Child> = (1..=3).map(|node| start(&network, &place, node, "2:3", &[])).collect();
    until("three nodes meet", || all_see(&place, &[1, 2, 3], 3, None));
    let (round, _) = seen(&place)[&1];
    network.pull(3);
    let pulled = Instant::now();
    until("two nodes go on", || all_see(&place, &[1, 2], 2, Some(round)));
    assert!(pulled.elapsed() < NOTICED_MAX, "it took {:?}", pulled.elapsed());
    let lost = end(nodes.pop().unwrap());
    assert!(pulled.elapsed() < NOTICED_MAX + Duration::from_secs(10), "the lost node took {:?}", pulled.elapsed());
    assert_ne!(lost.code, Some(0));
    assert!(lost.stderr.contains(&network.address(1)), "it names the endpoint: {}", lost.stderr);
    fs::write(place.path("done"), "").unwrap();
    for node in nodes {
        let ended = end(node);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

#[test]
fn a_node_that_dies_is_noticed_at_once_and_a_new_one_takes_its_place() {
    let Some(network) = Network::here() else { return };
    let place = worker();
    let mut nodes: Vec<Child> = (1..=3).map(|node| start(&network, &place, node, "2:3", &[])).collect();
    until("three nodes meet", || all_see(&place, &[1, 2, 3], 3, None));
    let (round, _) = seen(&place)[&1];
    let mut victim = nodes.remove(1);
    let died = Instant::now();
    kill(victim.id().cast_signed(), Signal::SIGKILL);
    victim.wait().unwrap();
    until("two nodes go on", || all_see(&place, &[1, 3], 2, Some(round)));
    assert!(died.elapsed() < Duration::from_secs(4), "it took {:?}", died.elapsed());
    let (round, _) = seen(&place)[&1];
    nodes.push(start(&network, &place, 2, "2:3", &[]));
    until("three nodes again", || all_see(&place, &[1, 2, 3], 3, Some(round)));
    fs::write(place.path("done"), "").unwrap();
    for node in nodes {
        let ended = end(node);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

#[test]
fn the_others_go_on_without_the_host_of_the_store() {
    let Some(network) = Network::here() else { return };
    let place = worker();
    let mut nodes: Vec<Child> = (1..=3).map(|node| start(&network, &place, node, "2:3", &[])).collect();
    until("three nodes meet", || all_see(&place, &[1, 2, 3], 3, None));
    let (round, _) = seen(&place)[&2];
    network.pull(1);
    let pulled = Instant::now();
    until("the other two go on", || all_see(&place, &[2, 3], 2, Some(round)));
    assert!(pulled.elapsed() < NOTICED_MAX, "it took {:?}", pulled.elapsed());
    // The old host sees two silent nodes: it may not go on alone, and says so.
    let host = end(nodes.remove(0));
    assert_ne!(host.code, Some(0));
    assert!(pulled.elapsed() < Duration::from_secs(30), "the host took {:?}", pulled.elapsed());
    fs::write(place.path("done"), "").unwrap();
    for node in nodes {
        let ended = end(node);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}

#[test]
fn a_pair_ends_quickly_when_the_host_of_the_store_is_gone() {
    let Some(network) = Network::here() else { return };
    let place = worker();
    let mut nodes: Vec<Child> = (1..=2).map(|node| start(&network, &place, node, "2", &[])).collect();
    until("two nodes meet", || all_see(&place, &[1, 2], 2, None));
    network.pull(1);
    let pulled = Instant::now();
    let second = end(nodes.remove(1));
    assert_ne!(second.code, Some(0));
    assert!(second.stderr.contains(&network.address(1)), "it names the endpoint: {}", second.stderr);
    assert!(pulled.elapsed() < Duration::from_secs(10), "it took {:?}", pulled.elapsed());
    let first = end(nodes.remove(0));
    assert_ne!(first.code, Some(0));
    assert!(pulled.elapsed() < Duration::from_secs(20), "the host took {:?}", pulled.elapsed());
}

#[test]
fn a_slow_link_is_no_dead_node() {
    let Some(network) = Network::here() else { return };
    let slow = format!("netns exec {} tc qdisc add dev eth0 root netem delay 300ms 50ms", network.node(2));
    if let Err(error) = ip(&slow) {
        println!("skipped: no netem here ({error})");
        return;
    }
    let place = worker();
    let nodes: Vec<Child> = (1..=3).map(|node| start(&network, &place, node, "3", &[])).collect();
    until("three nodes meet", || all_see(&place, &[1, 2, 3], 3, None));
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(seen(&place)[&1].0, 0, "the first round lasts");
    fs::write(place.path("done"), "").unwrap();
    for node in nodes {
        let ended = end(node);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}
