use super::*;
use crate::checkpoint::{
    pickle::{Pickler, Protocol},
    value::Value,
};
use proptest::prelude::*;

const ALLOW: AllowList = &[("collections", &["OrderedDict"]), ("torch", &["Size"]), ("_codecs", &["encode"])];

fn pickled(value: &Value, protocol: Protocol) -> Vec<u8> {
    let mut pickler = Pickler::new(protocol);
    pickler.value(value);
    pickler.finish()
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-70000i64..70000).prop_map(Value::Int),
        any::<f64>().prop_filter("NaN is not equal to itself", |x| !x.is_nan()).prop_map(Value::Float),
        ".{0,300}".prop_map(Value::Str),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::Tuple),
            proptest::collection::vec((".{0,8}".prop_map(Value::Str), inner), 0..8).prop_map(Value::Dict),
        ]
    })
}

proptest! {
    #[test]
    fn values_round_trip(value in values()) {
        for protocol in [Protocol::Two, Protocol::Four] {
            let bytes = pickled(&value, protocol);
            let tree = unpickle(&bytes, ALLOW).unwrap();
            prop_assert_eq!(tree.value(tree.root).unwrap(), value.clone());
        }
    }

    #[test]
    fn mutated_pickles_never_panic(value in values(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = pickled(&value, Protocol::Four);
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if let Ok(tree) = unpickle(&bytes, ALLOW) {
            let _ = tree.value(tree.root);
            let _ = tree.size(tree.root);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(tree) = unpickle(&bytes, ALLOW) {
            let _ = tree.value(tree.root);
        }
    }

    #[test]
    fn cut_pickles_are_errors(value in values(), place in any::<prop::sample::Index>()) {
        let bytes = pickled(&value, Protocol::Two);
        prop_assert!(unpickle(&bytes[..place.index(bytes.len())], ALLOW).is_err());
    }
}

#[test]
fn a_global_that_is_not_listed_is_refused_by_name() {
    let error = unpickle(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", ALLOW).unwrap_err();
    assert_eq!(error, UnpickleError::Global { module: "os".into(), name: "system".into(), at: 2 });
    let error = unpickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93.", ALLOW).unwrap_err();
    assert!(error.to_string().contains("os.system"), "{error}");
}

#[test]
fn shared_nodes_do_not_explode() {
    // Forty tuples, each holding the previous one twice: 2⁴⁰ leaves when written out.
    let mut bytes = b"\x80\x02N".to_vec();
    for index in 0..40u8 {
        bytes.extend([b'q', index, b'h', index, 0x86]);
    }
    bytes.push(b'.');
    let tree = unpickle(&bytes, ALLOW).unwrap();
    assert!(tree.value(tree.root).is_err());
}

#[test]
fn a_list_that_holds_itself_is_refused() {
    let tree = unpickle(b"]q\x00h\x00a.", ALLOW).unwrap();
    assert!(tree.value(tree.root).is_err());
}

#[test]
fn long_integers_have_their_sign() {
    for (bytes, expected) in
        [(&b"\x8a\x00."[..], 0), (b"\x8a\x01\xff.", -1), (b"\x8a\x05\x00\x00\x00\x00\x01.", 1 << 32)]
    {
        let tree = unpickle(bytes, ALLOW).unwrap();
        assert_eq!(tree.int(tree.root), Some(expected));
    }
}

#[test]
fn what_cpython_writes_is_read() {
    // pickle.dumps({"a": (1, -2, 2**40), "b": [None, True, 1.5, b"\x00\xff"]}, protocol=4)
    let bytes = b"\x80\x04\x952\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94K\x01J\xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01\x87\x94\x8c\x01b\x94]\x94(N\x88G?\xf8\x00\x00\x00\x00\x00\x00C\x02\x00\xff\x94eu.";
    let tree = unpickle(bytes, ALLOW).unwrap();
    let value = tree.value(tree.root).unwrap();
    assert_eq!(value.get("a"), Some(&Value::Tuple(vec![1.into(), (-2).into(), (1 << 40).into()])));
    let list = vec![Value::None, true.into(), 1.5.into(), Value::Bytes(vec![0, 255])];
    assert_eq!(value.get("b"), Some(&Value::List(list)));
}

/// A tuple of `length` numbers, and `times` mentions of it in a list.
fn mentioned(length: usize, times: usize) -> Vec<u8> {
    let mut bytes = vec![0x80, 4, b']', b'(', b'('];
    (0..length).for_each(|_| bytes.extend([b'K', 1]));
    bytes.extend([b't', 0x94]);
    (1..times).for_each(|_| bytes.extend([b'h', 0]));
    bytes.extend(*b"e.");
    bytes
}

#[test]
fn what_is_mentioned_often_is_not_copied_without_bound() {
    let bytes = mentioned(AXES_MAX_SEEN, 4);
    let tree = unpickle(&bytes, ALLOW).unwrap();
    let items = tree.sequence(tree.root).unwrap();
    assert_eq!(tree.size(items[0]).map(|size| size.len()), Some(AXES_MAX_SEEN));
    let bytes = mentioned(AXES_MAX_SEEN + 1, 4);
    let tree = unpickle(&bytes, ALLOW).unwrap();
    assert_eq!(tree.size(tree.sequence(tree.root).unwrap()[0]), None, "no tensor has so many axes");

    let mut bytes = vec![0x80, 4, b']', b'(', b'X'];
    bytes.extend(100_000u32.to_le_bytes());
    bytes.extend([b'a'; 100_000]);
    bytes.push(0x94);
    (0..20_000).for_each(|_| bytes.extend([b'h', 0]));
    bytes.extend(*b"e.");
    let tree = unpickle(&bytes, ALLOW).unwrap();
    let items = tree.sequence(tree.root).unwrap();
    assert_eq!(items.len(), 20_001);
    let copied = items.iter().filter(|&&id| tree.owned(id).is_some()).count();
    assert!((64..200).contains(&copied), "{copied} of 100 kB, from {} kB", bytes.len() / 1000);
    let refused = unpickle(&bytes, ALLOW).unwrap();
    assert!(matches!(refused.value(refused.root), Err(UnpickleError::Unexpected { .. })));
}

/// Axes that PyTorch's tensors may have.
const AXES_MAX_SEEN: usize = 64;
