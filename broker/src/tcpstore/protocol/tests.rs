//! Any split gives the same requests; what breaks a limit is refused before its bytes are waited for.

use super::*;
use proptest::prelude::*;

/// A request that owns what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::tcpstore) enum Said {
    Set(Key, Value),
    CompareSet { key: Key, expected: Value, wanted: Value },
    Get(Key),
    Add(Key, i64),
    Check(Vec<Key>),
    Wait(Vec<Key>),
    NumKeys,
    Delete(Key),
    Append(Key, Value),
    MultiGet(Vec<Key>),
    MultiSet(Vec<(Key, Value)>),
    CancelWait,
    Ping(u32),
    QueuePush(Key, Value),
    QueuePop(Key),
    QueueLen(Key),
    ListKeys,
}

impl From<Request<'_>> for Said {
    fn from(request: Request<'_>) -> Self {
        let all = |keys: Keys<'_>| keys.iter().map(Key::from).collect();
        match request {
            Request::Set(key, value) => Self::Set(key.into(), value.into()),
            Request::CompareSet { key, expected, wanted } => {
                Self::CompareSet { key: key.into(), expected: expected.into(), wanted: wanted.into() }
            }
            Request::Get(key) => Self::Get(key.into()),
            Request::Add(key, amount) => Self::Add(key.into(), amount),
            Request::Check(keys) => Self::Check(all(keys)),
            Request::Wait(keys) => Self::Wait(all(keys)),
            Request::NumKeys => Self::NumKeys,
            Request::Delete(key) => Self::Delete(key.into()),
            Request::Append(key, value) => Self::Append(key.into(), value.into()),
            Request::MultiGet(keys) => Self::MultiGet(all(keys)),
            Request::MultiSet(pairs) => {
                Self::MultiSet(pairs.iter().map(|(key, value)| (key.into(), value.into())).collect())
            }
            Request::CancelWait => Self::CancelWait,
            Request::Ping(nonce) => Self::Ping(nonce),
            Request::QueuePush(key, value) => Self::QueuePush(key.into(), value.into()),
            Request::QueuePop(key) => Self::QueuePop(key.into()),
            Request::QueueLen(key) => Self::QueueLen(key.into()),
            Request::ListKeys => Self::ListKeys,
        }
    }
}

/// Writes `request` as a client does.
pub(in crate::tcpstore) fn encode(request: &Said, out: &mut Vec<u8>) {
    fn blob(bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    fn keys(keys: &[Key], out: &mut Vec<u8>) {
        out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
        keys.iter().for_each(|key| blob(key, out));
    }
    let (code, fields): (u8, Vec<&[u8]>) = match request {
        Said::Set(key, value) => (1, vec![key, value]),
        Said::CompareSet { key, expected, wanted } => (2, vec![key, expected, wanted]),
        Said::Get(key) => (3, vec![key]),
        Said::Add(key, _) => (4, vec![key]),
        Said::Check(_) => (5, vec![]),
        Said::Wait(_) => (6, vec![]),
        Said::NumKeys => (7, vec![]),
        Said::Delete(key) => (8, vec![key]),
        Said::Append(key, value) => (9, vec![key, value]),
        Said::MultiGet(_) => (10, vec![]),
        Said::MultiSet(_) => (11, vec![]),
        Said::CancelWait => (12, vec![]),
        Said::Ping(_) => (13, vec![]),
        Said::QueuePush(key, value) => (14, vec![key, value]),
        Said::QueuePop(key) => (15, vec![key]),
        Said::QueueLen(key) => (16, vec![key]),
        Said::ListKeys => (17, vec![]),
    };
    out.push(code);
    fields.into_iter().for_each(|field| blob(field, out));
    match request {
        Said::Add(_, amount) => out.extend_from_slice(&amount.to_le_bytes()),
        Said::Ping(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        Said::Check(list) | Said::Wait(list) | Said::MultiGet(list) => keys(list, out),
        Said::MultiSet(pairs) => {
            out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
            for (key, value) in pairs {
                blob(key, out);
                blob(value, out);
            }
        }
        _ => {}
    }
}

pub(in crate::tcpstore) fn handshake() -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes
}

fn key() -> impl Strategy<Value = Key> {
    proptest::collection::vec(any::<u8>(), 0..20).prop_map(Into::into)
}

fn value() -> impl Strategy<Value = Value> {
    proptest::collection::vec(any::<u8>(), 0..40)
}

pub(in crate::tcpstore) fn request() -> impl Strategy<Value = Said> {
    let many = || proptest::collection::vec(key(), 0..5);
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Said::Set(key, value)),
        (key(), value(), value()).prop_map(|(key, expected, wanted)| Said::CompareSet { key, expected, wanted }),
        key().prop_map(Said::Get),
        (key(), any::<i64>()).prop_map(|(key, amount)| Said::Add(key, amount)),
        many().prop_map(Said::Check),
        many().prop_map(Said::Wait),
        Just(Said::NumKeys),
        key().prop_map(Said::Delete),
        (key(), value()).prop_map(|(key, value)| Said::Append(key, value)),
        many().prop_map(Said::MultiGet),
        proptest::collection::vec((key(), value()), 0..5).prop_map(Said::MultiSet),
        Just(Said::CancelWait),
        any::<u32>().prop_map(Said::Ping),
        (key(), value()).prop_map(|(key, value)| Said::QueuePush(key, value)),
        key().prop_map(Said::QueuePop),
        key().prop_map(Said::QueueLen),
        Just(Said::ListKeys),
    ]
}

proptest! {
    #[test]
    fn any_split_gives_the_same_requests(
        requests in proptest::collection::vec(request(), 0..12),
        pieces in proptest::collection::vec(1usize..30, 1..60),
    ) {
        let mut bytes = handshake();
        requests.iter().for_each(|request| encode(request, &mut bytes));
        let mut parser = Parser::new(Limits::default());
        let mut parsed = Vec::new();
        let (mut taken, mut come) = (0, 0);
        for piece in pieces.iter().cycle() {
            if come == bytes.len() {
                break;
            }
            come = (come + piece).min(bytes.len());
            let mut input = &bytes[taken..come];
            while let Some(request) = parser.next_request(&mut input).unwrap() {
                parsed.push(Said::from(request));
            }
            taken = come - input.len();
        }
        prop_assert_eq!(taken, bytes.len());
        prop_assert_eq!(parsed, requests);
    }

    #[test]
    fn random_bytes_never_panic_and_keep_memory_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut parser = Parser::new(Limits::default());
        let bytes = [handshake(), bytes].concat();
        let mut input = bytes.as_slice();
        while let Ok(Some(_)) = parser.next_request(&mut input) {}
    }
}

fn refused(limits: Limits, bytes: &[u8]) -> Violation {
    let mut parser = Parser::new(limits);
    let mut input = bytes;
    loop {
        match parser.next_request(&mut input) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("waits for more although the limit is already broken"),
            Err(violation) => return violation,
        }
    }
}

#[test]
fn limits_are_checked_on_the_length_alone() {
    let limits = Limits::default();
    let after = |code: u8, fields: &[u64]| {
        let mut bytes = handshake();
        bytes.push(code);
        fields.iter().for_each(|field| bytes.extend_from_slice(&field.to_le_bytes()));
        bytes
    };
    let key = refused(limits, &after(3, &[(8 << 10) + 1]));
    assert_eq!(key, Violation::TooMuch { what: "key", found: 8193, max: 8192 });
    let value = refused(limits, &after(1, &[0, u64::MAX]));
    assert_eq!(value, Violation::TooMuch { what: "value", found: u64::MAX, max: 8 << 20 });
    for code in [5, 6, 10, 11] {
        let count = refused(limits, &after(code, &[(128 << 10) + 1]));
        assert_eq!(count, Violation::TooMuch { what: "number of keys", found: 131_073, max: 131_072 });
    }
}

#[test]
fn a_request_of_many_small_parts_is_bounded_too() {
    let limits = Limits { request_bytes_max: 100, ..Limits::default() };
    let mut bytes = handshake();
    encode(&Said::MultiSet(vec![(Key::from(*b"k"), vec![0; 20]); 4]), &mut bytes);
    assert!(matches!(refused(limits, &bytes), Violation::TooMuch { what: "request", found: 111, max: 100 }));
}

#[test]
fn strangers_are_refused_at_the_first_byte() {
    assert_eq!(refused(Limits::default(), b"GET / HTTP/1.1"), Violation::NotValidated { code: b'G' });
    assert_eq!(refused(Limits::default(), &[0, 1, 2, 3, 4]), Violation::Magic { found: 0x0403_0201 });
    let mut bytes = handshake();
    bytes.push(18);
    assert_eq!(refused(Limits::default(), &bytes), Violation::Code { code: 18 });
}
