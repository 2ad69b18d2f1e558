//! Frames between launcher and fork server: a length of four bytes, little-endian, then the body.

use std::{
    io::{self, ErrorKind, Read},
    os::unix::net::UnixStream,
};

/// Limit on a frame's body; a request holds the environment, which Linux bounds by the stack's limit.
const BYTES_MAX: usize = 16 << 20;
const CHUNK_BYTES: usize = 64 << 10;
const LENGTH_BYTES: usize = size_of::<u32>();

/// Encodes a frame.
///
/// # Errors
/// The body is longer than a frame may be.
pub(super) fn encode(body: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= BYTES_MAX).ok_or_else(too_long)?;
    Ok([&length.to_le_bytes()[..], body].concat())
}

/// A reader that collects the bytes of a stream until a frame is whole.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// Reads the available bytes and returns a whole frame; `None`: it is not whole yet, and the stream does not block.
    ///
    /// # Errors
    /// The stream ended, the frame is too long, or any error of the system; `TimedOut` when a blocking stream stayed silent.
    pub(super) fn read(&mut self, stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            match stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.bytes.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn take(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let end = LENGTH_BYTES + usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX).min(BYTES_MAX + 1);
        if end > LENGTH_BYTES + BYTES_MAX {
            return Err(too_long());
        }
        if self.bytes.len() < end {
            return Ok(None);
        }
        let rest = self.bytes.split_off(end);
        let frame = std::mem::replace(&mut self.bytes, rest);
        Ok(Some(frame[LENGTH_BYTES..].to_vec()))
    }
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("a frame is longer than {BYTES_MAX} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn frames_arrive_whole_however_they_are_cut() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.set_nonblocking(true).unwrap();
        let sent = [encode(b"one").unwrap(), encode(b"").unwrap(), encode(&[7; 100]).unwrap()].concat();
        let mut reader = FrameReader::default();
        let mut received = Vec::new();
        for byte in sent {
            here.write_all(&[byte]).unwrap();
            received.extend(reader.read(&mut there).unwrap());
        }
        assert_eq!(received, [b"one".to_vec(), Vec::new(), vec![7; 100]]);
        drop(here);
        assert_eq!(reader.read(&mut there).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_memory_is_taken() {
        assert!(encode(&vec![0; BYTES_MAX + 1]).is_err());
        for length in [u32::MAX, 16 * 1024 * 1024 + 1] {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            here.write_all(&length.to_le_bytes()).unwrap();
            assert_eq!(FrameReader::default().read(&mut there).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }
}
