//! Any split gives the same requests; what breaks a limit is refused before its bytes are waited for.

use super::*;
use proptest::prelude::*;

/// Writes `request` as a client does.
pub(in crate::store) fn encode(request: &Request, out: &mut Vec<u8>) {
    fn blob(bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    fn keys(keys: &[Key], out: &mut Vec<u8>) {
        out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
        keys.iter().for_each(|key| blob(key, out));
    }
    let (code, fields): (u8, Vec<&[u8]>) = match request {
        Request::Set(key, value) => (1, vec![key, value]),
        Request::CompareSet { key, expected, wanted } => (2, vec![key, expected, wanted]),
        Request::Get(key) => (3, vec![key]),
        Request::Add(key, _) => (4, vec![key]),
        Request::Check(_) => (5, vec![]),
        Request::Wait(_) => (6, vec![]),
        Request::NumKeys => (7, vec![]),
        Request::Delete(key) => (8, vec![key]),
        Request::Append(key, value) => (9, vec![key, value]),
        Request::MultiGet(_) => (10, vec![]),
        Request::MultiSet(_) => (11, vec![]),
        Request::CancelWait => (12, vec![]),
        Request::Ping(_) => (13, vec![]),
        Request::QueuePush(key, value) => (14, vec![key, value]),
        Request::QueuePop(key) => (15, vec![key]),
        Request::QueueLen(key) => (16, vec![key]),
        Request::ListKeys => (17, vec![]),
    };
    out.push(code);
    fields.into_iter().for_each(|field| blob(field, out));
    match request {
        Request::Add(_, amount) => out.extend_from_slice(&amount.to_le_bytes()),
        Request::Ping(nonce) => out.extend_from_slice(&nonce.to_le_bytes()),
        Request::Check(list) | Request::Wait(list) | Request::MultiGet(list) => keys(list, out),
        Request::MultiSet(pairs) => {
            out.extend_from_slice(&(pairs.len() as u64).to_le_bytes());
            for (key, value) in pairs {
                blob(key, out);
                blob(value, out);
            }
        }
        _ => {}
    }
}

pub(in crate::store) fn handshake() -> Vec<u8> {
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

fn request() -> impl Strategy<Value = Request> {
    let many = || proptest::collection::vec(key(), 0..5);
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Request::Set(key, value)),
        (key(), value(), value()).prop_map(|(key, expected, wanted)| Request::CompareSet { key, expected, wanted }),
        key().prop_map(Request::Get),
        (key(), any::<i64>()).prop_map(|(key, amount)| Request::Add(key, amount)),
        many().prop_map(Request::Check),
        many().prop_map(Request::Wait),
        Just(Request::NumKeys),
        key().prop_map(Request::Delete),
        (key(), value()).prop_map(|(key, value)| Request::Append(key, value)),
        many().prop_map(Request::MultiGet),
        proptest::collection::vec((key(), value()), 0..5).prop_map(Request::MultiSet),
        Just(Request::CancelWait),
        any::<u32>().prop_map(Request::Ping),
        (key(), value()).prop_map(|(key, value)| Request::QueuePush(key, value)),
        key().prop_map(Request::QueuePop),
        key().prop_map(Request::QueueLen),
        Just(Request::ListKeys),
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
        let mut rest = bytes.as_slice();
        for piece in pieces.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            rest = later;
            parser.push(now);
            while let Some(request) = parser.next_request().unwrap() {
                parsed.push(request);
            }
        }
        prop_assert_eq!(parsed, requests);
    }

    #[test]
    fn random_bytes_never_panic_and_keep_memory_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut parser = Parser::new(Limits::default());
        parser.push(&handshake());
        parser.push(&bytes);
        while let Ok(Some(_)) = parser.next_request() {}
    }
}

fn refused(limits: Limits, bytes: &[u8]) -> Violation {
    let mut parser = Parser::new(limits);
    parser.push(bytes);
    loop {
        match parser.next_request() {
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
    encode(&Request::MultiSet(vec![(Key::from(*b"k"), vec![0; 20]); 4]), &mut bytes);
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
