//! What each request answers, who is woken, and that the byte count is exact.

use super::*;
use crate::tcpstore::protocol::{
    Parser,
    tests::{Said as Request, encode, handshake},
};
use proptest::prelude::*;

fn k(name: &str) -> Key {
    name.as_bytes().into()
}

/// Replies as bytes, per client, in order.
fn ask(table: &mut Table, client: ClientId, request: Request) -> Vec<(ClientId, Vec<u8>)> {
    try_ask(table, client, &request).unwrap()
}

fn try_ask(table: &mut Table, client: ClientId, request: &Request) -> Result<Vec<(ClientId, Vec<u8>)>, Violation> {
    let mut bytes = handshake();
    encode(request, &mut bytes);
    let mut input = bytes.as_slice();
    let request = Parser::new(Limits::default()).next_request(&mut input).unwrap().unwrap();
    let mut told = Vec::new();
    table.apply(client, request, &mut |client, reply| {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        told.push((client, bytes));
    })?;
    Ok(told)
}

fn blob(bytes: &[u8]) -> Vec<u8> {
    [(bytes.len() as u64).to_le_bytes().as_slice(), bytes].concat()
}

fn table() -> Table {
    Table::new(Limits::default())
}

#[test]
fn compare_set_follows_the_reference() {
    let mut table = table();
    let mut cas = |expected: &[u8], wanted: &[u8]| {
        let request = Request::CompareSet { key: k("a"), expected: expected.into(), wanted: wanted.into() };
        ask(&mut table, 1, request)
    };
    assert_eq!(cas(b"old", b"new"), [(1, blob(b"old"))], "absent and something expected: told what it expected");
    assert_eq!(cas(b"", b"1"), [(1, blob(b"1"))], "absent and nothing expected: set");
    assert_eq!(cas(b"", b"2"), [(1, blob(b"1"))], "present and nothing expected: kept");
    assert_eq!(cas(b"1", b"3"), [(1, blob(b"3"))], "present and expected: set");
    assert_eq!(ask(&mut table, 1, Request::NumKeys), [(1, 1i64.to_le_bytes().to_vec())]);
}

#[test]
fn add_counts_in_decimal_text_and_refuses_the_rest() {
    let mut table = table();
    assert_eq!(ask(&mut table, 1, Request::Add(k("n"), 5)), [(1, 5i64.to_le_bytes().to_vec())]);
    assert_eq!(ask(&mut table, 1, Request::Add(k("n"), -7)), [(1, (-2i64).to_le_bytes().to_vec())]);
    assert_eq!(ask(&mut table, 1, Request::Get(k("n"))), [(1, blob(b"-2"))]);
    for (held, amount) in [("x", 1), ("9223372036854775807", 1)] {
        ask(&mut table, 1, Request::Set(k("n"), held.into()));
        let refused = try_ask(&mut table, 1, &Request::Add(k("n"), amount)).unwrap_err();
        assert!(matches!(refused, Violation::Add { .. }), "{refused}");
        assert_eq!(ask(&mut table, 1, Request::Get(k("n"))), [(1, blob(held.as_bytes()))], "unchanged");
    }
}

#[test]
fn a_waiter_is_told_once_when_the_last_key_appears() {
    let mut table = table();
    assert!(ask(&mut table, 1, Request::Wait(vec![k("a"), k("b"), k("a")])).is_empty());
    assert!(ask(&mut table, 2, Request::Set(k("a"), vec![])).is_empty());
    assert!(ask(&mut table, 2, Request::Append(k("a"), vec![1])).is_empty());
    assert_eq!(ask(&mut table, 2, Request::Delete(k("a"))), [(2, 1i64.to_le_bytes().to_vec())]);
    assert_eq!(
        ask(&mut table, 2, Request::Add(k("b"), 1)),
        [(2, 1i64.to_le_bytes().to_vec()), (1, vec![0])],
        "a appeared although it is gone again"
    );
    assert!(ask(&mut table, 2, Request::Set(k("b"), vec![])).is_empty(), "told once");
}

#[test]
fn cancelled_and_gone_waiters_are_forgotten() {
    let mut table = table();
    for client in [1, 2, 3] {
        assert!(ask(&mut table, client, Request::Wait(vec![k("a")])).is_empty());
    }
    assert_eq!(ask(&mut table, 1, Request::CancelWait), [(1, vec![1])]);
    table.forget(2);
    assert_eq!(ask(&mut table, 9, Request::Set(k("a"), vec![])), [(3, vec![0])]);
    assert!(table.waiting.is_empty() && table.awaited.is_empty());
}

#[test]
fn many_waiters_of_one_key_are_forgotten_quickly() {
    let mut table = table();
    let clients = 100_000;
    for client in 0..clients {
        assert!(ask(&mut table, client, Request::Wait(vec![k("a")])).is_empty());
    }
    let begun = std::time::Instant::now();
    (0..clients - 1).for_each(|client| table.forget(client));
    assert!(begun.elapsed().as_secs() < 8, "{:?}: the time grows with the square of their number", begun.elapsed());
    assert_eq!(ask(&mut table, 1, Request::Set(k("a"), vec![])), [(clients - 1, vec![0])]);
    assert_eq!(table.bytes(), 1 + VALUE_BYTES);
}

#[test]
fn queues_are_first_in_first_out_and_wake_one() {
    let mut table = table();
    for client in [1, 2] {
        assert!(ask(&mut table, client, Request::Wait(vec![k("q")])).is_empty());
    }
    assert_eq!(ask(&mut table, 9, Request::QueuePush(k("q"), b"x".to_vec())), [(1, vec![0])]);
    assert_eq!(ask(&mut table, 9, Request::QueuePush(k("q"), b"y".to_vec())), [(2, vec![0])]);
    let popped = |length: i64, value: &[u8]| [length.to_le_bytes().to_vec(), blob(value)].concat();
    assert_eq!(ask(&mut table, 1, Request::QueuePop(k("q"))), [(1, popped(2, b"x"))]);
    assert_eq!(ask(&mut table, 2, Request::Check(vec![k("q")])), [(2, vec![0])], "a queue with values is ready");
    assert_eq!(ask(&mut table, 2, Request::QueuePop(k("q"))), [(2, popped(1, b"y"))]);
    assert_eq!(ask(&mut table, 2, Request::QueuePop(k("q"))), [(2, 0i64.to_le_bytes().to_vec())]);
    assert_eq!(ask(&mut table, 2, Request::Check(vec![k("q")])), [(2, vec![1])]);
    assert_eq!(table.bytes(), 0);
}

#[test]
fn a_full_store_refuses_and_stays_as_it_was() {
    let mut table = Table::new(Limits { store_bytes_max: 350, ..Limits::default() });
    ask(&mut table, 1, Request::Set(k("a"), vec![0; 100]));
    for request in [
        Request::Set(k("b"), vec![0; 100]),
        Request::Set(k("a"), vec![0; 200]),
        Request::Append(k("a"), vec![0; 100]),
        Request::QueuePush(k("q"), vec![0; 100]),
        Request::Wait(vec![k("x"), k("y")]),
    ] {
        let refused = try_ask(&mut table, 1, &request).unwrap_err();
        assert!(matches!(refused, Violation::Full { max: 350, .. }), "{refused}");
        assert_eq!(table.bytes(), 101 + VALUE_BYTES);
    }
}

fn small_request() -> impl Strategy<Value = Request> {
    let key = || prop_oneof![Just(k("a")), Just(k("b")), Just(k("c"))];
    let value = || proptest::collection::vec(Just(b'7'), 0..4);
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Request::Set(key, value)),
        (key(), value(), value()).prop_map(|(key, expected, wanted)| Request::CompareSet { key, expected, wanted }),
        proptest::collection::vec(key(), 0..4).prop_map(Request::Wait),
        key().prop_map(Request::Delete),
        (key(), value()).prop_map(|(key, value)| Request::Append(key, value)),
        (key(), value()).prop_map(|(key, value)| Request::QueuePush(key, value)),
        key().prop_map(Request::QueuePop),
        Just(Request::CancelWait),
    ]
}

proptest! {
    #[test]
    fn the_byte_count_and_the_waiting_lists_stay_exact(
        requests in proptest::collection::vec((1u64..4, small_request()), 0..60)
    ) {
        let mut table = table();
        for (client, request) in requests {
            ask(&mut table, client, request);
            let value = |(key, value): (&Key, &Value)| key.len() + value.capacity() + VALUE_BYTES;
            let values: usize = table.values.iter().map(value).sum();
            let queue_bytes = |queue: &VecDeque<Value>| queue.iter().map(|value| value.len() + QUEUED_BYTES).sum::<usize>();
            let queue = |(key, queue): (&Key, &VecDeque<Value>)| key.len() + QUEUE_BYTES + queue_bytes(queue);
            let queued: usize = table.queues.iter().map(queue).sum();
            let wait = |keys: &HashSet<AwaitedKey>| {
                WAIT_BYTES + keys.iter().map(|key| key.len() + AWAITED_BYTES).sum::<usize>()
            };
            let awaited: usize = table.awaited.values().map(wait).sum();
            prop_assert_eq!(table.bytes, values + queued + awaited);
            prop_assert!(table.queues.values().all(|queue| !queue.is_empty()));
            for (ticket, keys) in &table.awaited {
                prop_assert!(!keys.is_empty(), "a ticket with nothing to wait for was told");
                for key in keys {
                    let listed = table.waiting.get(key).map_or(0, |waiters| tickets(waiters).iter().filter(|t| *t == ticket).count());
                    prop_assert_eq!(listed, 1);
                }
            }
            for (client, keys) in &table.awaited_keys {
                let theirs = table.awaited.iter().filter(|(ticket, _)| ticket.client == *client);
                prop_assert_eq!(*keys, theirs.map(|(_, keys)| keys.len()).sum::<usize>());
            }
            let listed: usize = table.waiting.values().map(|waiters| tickets(waiters).len()).sum();
            prop_assert_eq!(listed, table.awaited.values().map(HashSet::len).sum::<usize>());
        }
        for client in 1..4 {
            table.forget(client);
        }
        prop_assert!(table.waiting.is_empty() && table.awaited.is_empty() && table.awaited_keys.is_empty());
    }
}

fn tickets(waiters: &Waiters) -> Vec<Ticket> {
    match waiters {
        Waiters::One(ticket) => vec![*ticket],
        Waiters::Many(tickets) => tickets.values().copied().collect(),
    }
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages: usize = std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Memory is this process's: run each test in a process of its own.
#[test]
fn what_is_counted_is_what_is_taken() {
    // Just above the sizes at which tables double: they are as empty as they get.
    let count: u64 = 118_000;
    let key = |at: u64| k(&format!("{at:08}"));
    type Fill = fn(u64, Key) -> (ClientId, Request);
    let fill: [(&str, Fill); 5] = [
        ("values", |_, key| (1, Request::Set(key, vec![1]))),
        ("queues", |_, key| (1, Request::QueuePush(key, vec![1]))),
        ("a queue", |_, _| (1, Request::QueuePush(k("q"), vec![1]))),
        ("waits of a client each", |at, key| (at, Request::Wait(vec![key]))),
        ("waits of a client", |_, key| (1, Request::Wait(vec![key]))),
    ];
    for (what, request) in fill {
        let mut table = table();
        let before = resident();
        for at in 0..count {
            let (client, request) = request(at, key(at));
            ask(&mut table, client, request);
        }
        let taken = resident().saturating_sub(before);
        assert!(taken <= table.bytes() + table.bytes() / 10, "{what}: {taken} bytes taken, {} counted", table.bytes());
        assert!(table.bytes() > count as usize);
    }
    // One wait for many keys.
    let mut table = table();
    let before = resident();
    ask(&mut table, 1, Request::Wait((0..count).map(key).collect()));
    let taken = resident().saturating_sub(before);
    assert!(taken <= table.bytes() + table.bytes() / 10, "one wait: {taken} bytes taken, {} counted", table.bytes());
}

#[test]
fn a_client_waits_for_a_bounded_number_of_keys() {
    let mut table = Table::new(Limits { keys_per_request_max: 3, ..Limits::default() });
    ask(&mut table, 1, Request::Wait(vec![k("a"), k("b")]));
    let refused = try_ask(&mut table, 1, &Request::Wait(vec![k("a"), k("c")])).unwrap_err();
    assert!(refused.to_string().contains("waited for of 4, expected at most 3"), "{refused}");
    ask(&mut table, 2, Request::Set(k("a"), vec![]));
    ask(&mut table, 1, Request::Wait(vec![k("c"), k("d")]));
}

#[test]
fn a_value_that_gets_shorter_gives_its_room_back() {
    let mut table = table();
    ask(&mut table, 1, Request::Set(k("a"), vec![0; 1 << 20]));
    for size in [600_000, 300_000, 10] {
        ask(&mut table, 1, Request::Set(k("a"), vec![0; size]));
        assert!(table.bytes() <= 2 * size + 1 + VALUE_BYTES, "{} bytes for {size}", table.bytes());
    }
}
