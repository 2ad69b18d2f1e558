//! The bytes of one item: what `torch.save` would write for a tensor or a value, made by hand.
//!
//! **Invariant:** a tensor's payload is written from the caller's memory; only the small head and tail around it are made.

use super::{
    element::{Element, UNTYPED},
    pickle::{Pickler, Protocol},
    value::Value,
    zip::{self, Envelope, RecordPayload},
};

/// Payloads of at least this many bytes begin at a page of the file, so that they can be mapped and written directly.
const PAGE_ALIGN_BYTES_MIN: u64 = 64 * 1024;
const PAGE_BYTES: u64 = 4096;
/// Alignment of small payloads: a cache line, and torch's own.
const LINE_BYTES: u64 = 64;

/// The version of torch's zip layout that is written.
const VERSION: &[u8] = b"3\n";

/// Makes head and tail of a tensor item that begins at byte `item_offset` of its file.
pub(super) fn tensor(item_offset: u64, element: impl Into<Element>, sizes: &[u64], bytes: u64, crc32: u32) -> Envelope {
    let pickle = tensor_pickle(element.into(), sizes);
    let align = if bytes >= PAGE_ALIGN_BYTES_MIN { PAGE_BYTES } else { LINE_BYTES };
    let payload = RecordPayload { name: "archive/data/0", bytes, crc32, align };
    zip::envelope(item_offset, &records(&pickle), Some(&payload))
}

/// Makes the whole item of a plain value, and the CRC-32 of its pickle.
pub(super) fn value(item_offset: u64, value: &Value) -> (Vec<u8>, u32) {
    let mut pickler = Pickler::new(Protocol::Two);
    pickler.value(value);
    let pickle = pickler.finish();
    let Envelope { mut head, tail } = zip::envelope(item_offset, &records(&pickle), None);
    head.extend(tail);
    (head, crc32fast::hash(&pickle))
}

/// Small records of every item, in file order.
fn records(pickle: &[u8]) -> [(&'static str, &[u8]); 3] {
    [("archive/version", VERSION), ("archive/byteorder", b"little"), ("archive/data.pkl", pickle)]
}

/// `_rebuild_tensor_v2(storage 0, offset 0, sizes, contiguous strides, requires_grad False, no hooks)`.
fn tensor_pickle(element: Element, sizes: &[u64]) -> Vec<u8> {
    let mut pickler = Pickler::new(Protocol::Two);
    rebuild_tensor(&mut pickler, "0", element, sizes);
    pickler.finish()
}

/// Pushes a tensor whose storage is the record `data/{key}`.
///
/// A type without a storage class of its own has an untyped storage, which counts bytes, and is named beside it.
pub(super) fn rebuild_tensor(pickler: &mut Pickler, key: &str, element: Element, sizes: &[u64]) {
    let untyped = element.storage() == UNTYPED;
    let numel: u64 = sizes.iter().product();
    pickler.global("torch._utils", if untyped { "_rebuild_tensor_v3" } else { "_rebuild_tensor_v2" });
    pickler.tuple(|out| {
        out.tuple(|out| {
            out.text("storage");
            out.global(if untyped { "torch.storage" } else { "torch" }, element.storage());
            out.text(key);
            out.text("cpu");
            out.count(if untyped { numel * element.bytes() } else { numel });
        });
        out.persistent();
        out.count(0);
        out.counts(sizes);
        out.counts(&strides(sizes));
        out.bool(false);
        out.global("collections", "OrderedDict");
        out.empty_tuple();
        out.call();
        if untyped {
            out.global("torch", element.torch());
        }
    });
    pickler.call();
}

/// Row-major strides in elements, as torch counts them: dimensions of length 0 count as 1.
pub(super) fn strides(sizes: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis].max(1);
    }
    strides
}
