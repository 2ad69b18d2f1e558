//! What a file is, by what it holds: the name of a file does not tell.

use super::{sequence, zip};
use crate::fs::FileError;
use std::{fs::File, os::unix::fs::FileExt, path::Path};

/// Bytes that are looked at from the beginning.
const HEAD_BYTES: usize = 512;
/// Where a tar archive says that it is one.
const TAR_MAGIC: (usize, &[u8]) = (257, b"ustar");
/// Largest header of a safetensors file.
const HEADER_BYTES_MAX: u64 = 100 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileForm {
    /// An archive as `torch.save` writes it.
    Zip,
    /// Pickles and storages, as `torch.save` wrote before PyTorch 1.6.
    Sequence,
    Pickle,
    /// A header and tensors.
    Safetensors,
    /// An archive as `torch.save` wrote before PyTorch 0.1.10.
    Tar,
    Empty,
    /// Zeros where a file of any form begins otherwise.
    Blank,
    /// None of these; what it is, if it is known.
    Foreign(Option<&'static str>),
}

/// Formats of others, by their beginnings.
const FOREIGN: [(&[u8], &str); 8] = [
    (b"\x89HDF", "an HDF5 file"),
    (b"GGUF", "a GGUF file"),
    (b"\x93NUMPY", "an array of numpy"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"BZh", "compressed by bzip2"),
    (b"\xfd7zXZ", "compressed by xz"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself"),
];

impl FileForm {
    pub fn of(path: &Path) -> Result<Self, FileError> {
        let file = File::open(path).map_err(FileError::of("open", path))?;
        Self::of_file(&file).map_err(FileError::of("read", path))
    }

    /// Looks at an open file.
    pub(super) fn of_file(file: &File) -> std::io::Result<Self> {
        let length = file.metadata()?.len();
        let mut head = vec![0; HEAD_BYTES.min(usize::try_from(length).unwrap_or(HEAD_BYTES))];
        file.read_exact_at(&mut head, 0)?;
        let form = Self::of_head(&head, length);
        // The directory of an archive is at its end: its beginning may be damaged.
        let is_archive = || -> std::io::Result<bool> {
            let tail_bytes = length.min(zip::END_SEARCH_BYTES_MAX as u64);
            let mut tail = vec![0; usize::try_from(tail_bytes).unwrap_or(0)];
            file.read_exact_at(&mut tail, length - tail_bytes)?;
            Ok(zip::parse_end(&tail, length - tail_bytes).is_ok())
        };
        let is_unclear = matches!(form, Self::Foreign(None) | Self::Blank);
        Ok(if is_unclear && is_archive()? { Self::Zip } else { form })
    }

    fn of_head(head: &[u8], length: u64) -> Self {
        let known = FOREIGN.iter().find(|(magic, _)| head.starts_with(magic));
        let tar = head.get(TAR_MAGIC.0..).is_some_and(|rest| rest.starts_with(TAR_MAGIC.1));
        let header = head.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let is_header = |bytes: u64| bytes <= HEADER_BYTES_MAX.min(length) && head.get(8) == Some(&b'{');
        match head {
            [] => Self::Empty,
            _ if head.iter().all(|byte| *byte == 0) => Self::Blank,
            [b'P', b'K', 3, 4, ..] => Self::Zip,
            _ if sequence::begins(head) => Self::Sequence,
            _ if known.is_some() => Self::Foreign(known.map(|(_, what)| *what)),
            _ if tar => Self::Tar,
            _ if header.is_some_and(is_header) => Self::Safetensors,
            [0x80, 0..=5, ..] => Self::Pickle,
            // Protocols 0 and 1 have no magic number: a mark, an empty container or a class comes first.
            [b'(', b'd' | b'l' | b't' | b'i' | b'c' | b'S' | b'V' | b'I', ..]
            | [b'}' | b']', b'q' | b'(' | b'.', ..] => Self::Pickle,
            [b'c', rest @ ..] if is_global(rest) => Self::Pickle,
            _ => Self::Foreign(None),
        }
    }
}

/// Whether bytes go on as a class does: module, line's end, name, line's end.
fn is_global(bytes: &[u8]) -> bool {
    let is_name =
        |line: &[u8]| !line.is_empty() && line.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(byte));
    let mut lines = bytes.split(|byte| *byte == b'\n');
    lines.next().is_some_and(is_name) && lines.next().is_some_and(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_by_their_beginnings() {
        let mut tar = vec![b'a'; 600];
        tar[257..262].copy_from_slice(b"ustar");
        let mut safetensors = 20u64.to_le_bytes().to_vec();
        safetensors.extend(b"{\"a\":{}}            ");
        for (bytes, form) in [
            (&b"PK\x03\x04abc"[..], FileForm::Zip),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", FileForm::Sequence),
            (b"\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", FileForm::Sequence),
            (b"\x80\x04}.", FileForm::Pickle),
            (b"(dp0\n.", FileForm::Pickle),
            (b"cos\nsystem\n(S'x'\ntR.", FileForm::Pickle),
            (b"columns\n1,2", FileForm::Foreign(None)),
            (&tar, FileForm::Tar),
            (&safetensors, FileForm::Safetensors),
            (b"", FileForm::Empty),
            (b"\x89HDF\r\n", FileForm::Foreign(Some("an HDF5 file"))),
            (b"no checkpoint", FileForm::Foreign(None)),
            (&[0; 100], FileForm::Blank),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            assert_eq!(FileForm::of(file.path()).unwrap(), form, "{bytes:?}");
        }
    }
}
