//! What DCP's writer may do to an item after it was made, undone: `stream.zstd/1`.
//!
//! **Invariant:** the plain item may be as large as its caller says and no larger, whatever the compressed bytes claim.

use super::{metadata::StoredPlace, stored::ItemError};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
};

/// The only transformation that PyTorch has.
const ZSTD: &str = "stream.zstd/1";
/// Bytes moved at a time.
const BLOCK_BYTES: usize = 256 << 10;

/// The plain item as a file in memory, and its place there. `bytes_max` bounds it.
pub(super) fn undo(
    file: &File,
    file_bytes: u64,
    place: &StoredPlace,
    bytes_max: u64,
) -> Result<(File, StoredPlace), ItemError> {
    if place.transforms != [ZSTD] {
        return Err(ItemError::Unsupported { what: format!("transformed by {}", place.transforms.join(", ")) });
    }
    if place.offset.checked_add(place.length).is_none_or(|end| end > file_bytes) {
        return Err(ItemError::Cut);
    }
    let packed = FileSection { file, at: place.offset, left: place.length };
    let mut plain = zstd::stream::read::Decoder::new(packed)?.take(bytes_max + 1);
    let mut memory = File::from(memfd_create("enn-item", MFdFlags::MFD_CLOEXEC).map_err(io::Error::from)?);
    let mut block = vec![0; BLOCK_BYTES];
    let mut length = 0;
    loop {
        let count = plain.read(&mut block)?;
        if count == 0 {
            break;
        }
        length += count as u64;
        if length > bytes_max {
            return Err(ItemError::Unsupported {
                what: format!("compressed, and more than {bytes_max} bytes in plain"),
            });
        }
        memory.write_all(&block[..count])?;
    }
    Ok((memory, StoredPlace { file: place.file.clone(), offset: 0, length, transforms: Vec::new() }))
}

struct FileSection<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for FileSection<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let count = self.file.read_at(&mut out[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RelPath;

    fn packed(plain: &[u8]) -> (File, StoredPlace) {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = zstd::stream::encode_all(plain, 0).unwrap();
        file.write_all(b"junk").unwrap();
        file.write_all(&bytes).unwrap();
        file.write_all(b"junk").unwrap();
        let place = StoredPlace {
            file: RelPath::own("f"),
            offset: 4,
            length: bytes.len() as u64,
            transforms: vec![ZSTD.into()],
        };
        (file, place)
    }

    #[test]
    fn comes_back_within_its_limit_and_not_beyond() {
        let plain = vec![7; 1 << 20];
        let (file, place) = packed(&plain);
        let length = file.metadata().unwrap().len();
        let (memory, found) = undo(&file, length, &place, 1 << 20).unwrap();
        let mut bytes = vec![0; 1 << 20];
        memory.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((found.length, bytes), (1 << 20, plain));
        let error = undo(&file, length, &place, (1 << 20) - 1).unwrap_err().to_string();
        assert!(error.contains("more than 1048575 bytes"), "{error}");
        assert!(undo(&file, 10, &place, 1 << 20).is_err());
        let other = StoredPlace { transforms: vec!["stream.other/1".into()], ..place };
        assert!(undo(&file, length, &other, 1 << 20).unwrap_err().to_string().contains("stream.other/1"));
    }
}
