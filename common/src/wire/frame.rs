//! Frames: u32 little-endian length of the payload, then the payload in bincode's standard encoding.
//!
//! **Invariant:** no I/O; bytes come in by `FrameBuffer::extend` in any split and messages come out. bincode is named in
//! this file only, so that another encoding can take its place.

use serde::{Serialize, de::DeserializeOwned};

/// Largest payload of a frame. A shard table of 10⁵ items is about 10 MiB.
pub const FRAME_BYTES_MAX: usize = 64 << 20;

const HEADER_BYTES: usize = 4;

/// A frame that cannot be written or read. After a reading error the connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is beyond the limit: a foreign program, or a message that must be split.
    #[error("frame of {bytes} bytes: at most {most} are allowed (does the other side speak another protocol?)")]
    TooLong { bytes: u64, most: usize },
    /// The message has no encoding, e.g. a path that is not UTF-8.
    #[error("message cannot be encoded: {0}")]
    Encode(#[source] bincode::error::EncodeError),
    #[error("frame of {bytes} bytes is not a message of this protocol: {source}")]
    Decode { bytes: usize, source: bincode::error::DecodeError },
    #[error("frame of {bytes} bytes has {rest} bytes after its message")]
    Trailing { bytes: usize, rest: usize },
    /// The payload of a script's frame.
    #[error("frame of {bytes} bytes is not a message of this protocol: {source}")]
    Json { bytes: usize, source: serde_json::Error },
}

/// A frame up to here is small: what it says of lengths is believed no further than such a frame can hold.
const SMALL_BYTES: usize = 64 << 10;
/// bincode counts a number by its bytes in memory, which may be one in the frame.
const BYTES_PER_BYTE: usize = size_of::<u64>();

fn encoding() -> bincode::config::Configuration {
    bincode::config::standard()
}

/// The message in a payload, and the bytes it took. Room for a text is made before its bytes are looked for, so a length that is
/// wrong costs as much as it says: half a MiB at most in a small frame, [`FRAME_BYTES_MAX`] in others.
fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<(T, usize), bincode::error::DecodeError> {
    if payload.len() <= SMALL_BYTES {
        bincode::serde::decode_from_slice(payload, encoding().with_limit::<{ BYTES_PER_BYTE * SMALL_BYTES }>())
    } else {
        bincode::serde::decode_from_slice(payload, encoding().with_limit::<FRAME_BYTES_MAX>())
    }
}

/// Appends `message` as one frame to `out`. On error `out` is as it was.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    if let Err(error) = bincode::serde::encode_into_std_write(message, out, encoding()) {
        out.truncate(start);
        return Err(FrameError::Encode(error));
    }
    let bytes = out.len() - start - HEADER_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if bytes <= FRAME_BYTES_MAX => {
            out[start..start + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
            Ok(())
        }
        _ => {
            out.truncate(start);
            Err(FrameError::TooLong { bytes: bytes as u64, most: FRAME_BYTES_MAX })
        }
    }
}

/// Bytes received and not yet read as messages.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they came from the socket.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes waiting; at end of stream more than 0 means a frame was cut off.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The next whole message, or `None` until more bytes come.
    pub fn decode<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        self.next_message(FRAME_BYTES_MAX, |payload| {
            let bytes = payload.len();
            let (message, read) = read(payload).map_err(|source| FrameError::Decode { bytes, source })?;
            if read != bytes {
                return Err(FrameError::Trailing { bytes, rest: bytes - read });
            }
            Ok(message)
        })
    }

    /// Reads the next whole payload, of at most `most` bytes.
    pub(super) fn next_message<T>(
        &mut self,
        most: usize,
        read: impl FnOnce(&[u8]) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        let waiting = &self.bytes[self.start..];
        let Some((header, rest)) = waiting.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > most {
            return Err(FrameError::TooLong { bytes: length as u64, most });
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let message = read(payload)?;
        self.start += HEADER_BYTES + length;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checkpoint::table::{ItemKind, ShardItem, ShardTable, TensorDType},
        wire::message::{FromWorker, PROTOCOL, ToWorker},
    };
    use proptest::prelude::*;

    fn shard_written() -> FromWorker {
        let kind = ItemKind::Tensor {
            dtype: TensorDType::F32,
            global: vec![4, 300],
            offsets: vec![0, 0],
            sizes: vec![4, 300],
            crc32: 0xdead_beef,
        };
        let item = ShardItem { fqn: "model.β".into(), offset: 0, length: 4864, kind };
        let table = ShardTable {
            file: "__0_0.distcp".into(),
            bytes: 4864,
            blake3: "ab".into(),
            crc32: Some(7),
            items: vec![item],
        };
        FromWorker::ShardWritten { step: 7, epoch: 1, dir: "/run/x".into(), metric: Some(2.5), table, blocked: 0.5 }
    }

    /// Bytes of protocol 8. A change here is a change of protocol: bump `PROTOCOL` and keep the old bytes as old.
    #[test]
    fn golden_bytes_of_protocol_8() {
        assert_eq!(PROTOCOL, 8);
        let hello = FromWorker::Hello { protocol: 8, worker: 300, pid: 70_000 };
        let golden: [(FromWorker, &[u8]); 4] = [
            (hello, &[10, 0, 0, 0, 0, 8, 251, 44, 1, 252, 112, 17, 1, 0]),
            (FromWorker::Halted { round: 1, step: 9, kept: true }, &[4, 0, 0, 0, 18, 1, 9, 1]),
            (FromWorker::Done { stopped: true }, &[2, 0, 0, 0, 11, 1]),
            (FromWorker::Failed { error: "x".into() }, &[3, 0, 0, 0, 10, 1, b'x']),
        ];
        for (message, bytes) in golden {
            let mut out = Vec::new();
            encode(&message, &mut out).unwrap();
            assert_eq!(out, bytes, "{message:?}");
            let mut buffer = FrameBuffer::new();
            buffer.extend(bytes);
            assert_eq!(buffer.decode::<FromWorker>().unwrap(), Some(message));
        }
        let mut out = Vec::new();
        encode(&ToWorker::Committed { step: 5, path: "/c".into() }, &mut out).unwrap();
        assert_eq!(out, [5, 0, 0, 0, 1, 5, 2, b'/', b'c']);
    }

    #[test]
    fn foreign_bytes_are_errors_and_never_panics() {
        let mut buffer = FrameBuffer::new();
        buffer.extend(b"GET / HTTP/1.1\r\n\r\n");
        assert!(matches!(buffer.decode::<FromWorker>(), Err(FrameError::TooLong { .. })));
        let mut buffer = FrameBuffer::new();
        buffer.extend(&[1, 0, 0, 0, 200]);
        assert!(matches!(buffer.decode::<FromWorker>(), Err(FrameError::Decode { .. })));
        let mut buffer = FrameBuffer::new();
        buffer.extend(&[3, 0, 0, 0, 11, 1, 9]);
        assert!(matches!(buffer.decode::<FromWorker>(), Err(FrameError::Trailing { rest: 1, .. })));
        // A string that claims to be huge is refused before memory is taken.
        let mut buffer = FrameBuffer::new();
        buffer.extend(&[10, 0, 0, 0, 10, 253, 255, 255, 255, 255, 255, 255, 255, 127]);
        assert!(matches!(buffer.decode::<FromWorker>(), Err(FrameError::Decode { .. })));
        // So is one of 8 MiB, in a frame that cannot hold it.
        let mut buffer = FrameBuffer::new();
        buffer.extend(&[6, 0, 0, 0, 10, 252, 0, 0, 128, 0]);
        let refused = buffer.decode::<FromWorker>();
        let limit = bincode::error::DecodeError::LimitExceeded;
        assert!(matches!(refused, Err(FrameError::Decode { source, .. }) if source.to_string() == limit.to_string()));
    }

    #[test]
    fn a_small_frame_may_be_full_of_small_numbers() {
        let numbers = vec![7_u64; SMALL_BYTES - 3];
        let mut out = Vec::new();
        encode(&numbers, &mut out).unwrap();
        assert_eq!(out.len(), HEADER_BYTES + SMALL_BYTES);
        let mut buffer = FrameBuffer::new();
        buffer.extend(&out);
        assert_eq!(buffer.decode::<Vec<u64>>().unwrap(), Some(numbers));
    }

    proptest! {
        #[test]
        fn any_split_of_the_stream_gives_the_same_messages(cuts in proptest::collection::vec(1usize..40, 0..60)) {
            let messages =
                [shard_written(), FromWorker::Done { stopped: false }, FromWorker::Warned { message: "w".repeat(300) }];
            let mut stream = Vec::new();
            for message in &messages {
                encode(message, &mut stream).unwrap();
            }
            let mut buffer = FrameBuffer::new();
            let mut read = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts.into_iter().chain([usize::MAX]) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                buffer.extend(now);
                rest = later;
                while let Some(message) = buffer.decode::<FromWorker>().unwrap() {
                    read.push(message);
                }
            }
            prop_assert_eq!(&read[..], &messages[..]);
            prop_assert_eq!(buffer.pending(), 0);
        }

        #[test]
        fn random_payloads_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = FrameBuffer::new();
            buffer.extend(&u32::try_from(payload.len()).unwrap().to_le_bytes());
            buffer.extend(&payload);
            let _outcome = buffer.decode::<FromWorker>();
        }
    }
}
