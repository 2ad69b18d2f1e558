//! Files that people name, or that lie where one of ours should: only regular ones are opened.
//!
//! To open a named pipe is to wait for whoever writes to it, and a device may never end. What is no regular file is refused before it is
//! opened, with what it is. A short text, such as a configuration, may also come through a descriptor that somebody passed
//! (`/dev/stdin`, or `/dev/fd/63` of a shell's `<(…)`).
//!
//! **Invariant:** nothing here takes more memory than its caller allows.

use super::FileError;
use nix::fcntl::OFlag;
use std::{
    fs::{self, File, FileType},
    io::{self, Read},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

/// Where descriptors of a process have names.
const DESCRIPTORS: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc/self/fd"];

/// Kind of a path that is no regular file, as a sentence says it.
pub fn other_kind(kind: FileType) -> Option<&'static str> {
    let kinds = [
        (kind.is_file(), None),
        (kind.is_dir(), Some("a directory")),
        (kind.is_fifo(), Some("a pipe")),
        (kind.is_socket(), Some("a socket")),
        (kind.is_char_device() || kind.is_block_device(), Some("a device")),
    ];
    kinds.into_iter().find(|(is, _)| *is).map_or(Some("of no kind that can be read"), |(_, what)| what)
}

/// Whether a path names a descriptor that somebody passed to this process.
pub fn is_descriptor(path: &Path) -> bool {
    DESCRIPTORS.iter().any(|place| path.starts_with(place))
}

/// Refuses what is no regular file.
pub fn check(path: &Path) -> Result<(), FileError> {
    let kind = fs::metadata(path).map_err(FileError::of("read", path))?.file_type();
    refuse(kind).map_err(FileError::of("read", path))
}

fn refuse(kind: FileType) -> io::Result<()> {
    let Some(what) = other_kind(kind) else { return Ok(()) };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, expected a regular file")))
}

/// Opens a regular file.
pub fn open(path: &Path) -> Result<File, FileError> {
    check(path)?;
    // What was a file a moment ago may be a pipe now.
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = file.map_err(FileError::of("open", path))?;
    file.metadata().and_then(|found| refuse(found.file_type())).map_err(FileError::of("read", path))?;
    Ok(file)
}

/// All bytes of a regular file, `bytes_max` at most.
///
/// # Errors
/// It is none, is larger, or cannot be read.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    bounded(open(path)?, bytes_max).map_err(FileError::of("read", path))
}

/// The text of a regular file, or of what a descriptor gives, `bytes_max` bytes at most.
///
/// # Errors
/// It is neither, is larger, is not UTF-8, or cannot be read.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    let bytes = if is_descriptor(path) {
        let file = File::open(path).map_err(FileError::of("open", path))?;
        bounded(file, bytes_max).map_err(FileError::of("read", path))?
    } else {
        read(path, bytes_max)?
    };
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(bytes).map_err(wrong).map_err(FileError::of("read", path))
}

fn bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= bytes_max {
        return Ok(bytes);
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("it is larger than {bytes_max} bytes, the most that is read of it"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{sys::stat::Mode, unistd};
    use std::{io::Write, os::unix::net::UnixListener};

    #[test]
    fn what_is_no_regular_file_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        unistd::mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(path("pipe"), path("link")).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        let device = Path::new("/dev/zero").to_owned();
        let found = [
            (path("pipe"), "a pipe"),
            (path("link"), "a pipe"),
            (path("socket"), "a socket"),
            (dir.path().to_owned(), "a directory"),
            (device, "a device"),
        ];
        for (path, what) in found {
            for told in [open(&path).err(), read(&path, 9).err(), read_text(&path, 9).err()] {
                let told = told.unwrap().to_string();
                assert!(told.contains(&format!("{}: it is {what}, expected a regular file", path.display())), "{told}");
            }
        }
        assert!(read(&path("none"), 9).unwrap_err().is_missing());
    }

    #[test]
    fn a_file_is_read_up_to_its_bound_and_a_text_also_from_a_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        fs::write(&path, "text").unwrap();
        assert_eq!((read(&path, 4).unwrap(), read_text(&path, 4).unwrap()), (b"text".to_vec(), "text".to_owned()));
        assert!(read(&path, 3).unwrap_err().to_string().contains("larger than 3 bytes"));
        fs::write(&path, [0xff]).unwrap();
        assert!(read_text(&path, 4).unwrap_err().to_string().contains("not UTF-8"));
        let (from, to) = unistd::pipe().unwrap();
        File::from(to).write_all(b"piped").unwrap();
        let named = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&from));
        assert_eq!(read_text(Path::new(&named), 9).unwrap(), "piped");
        assert!(open(Path::new(&named)).unwrap_err().to_string().contains("it is a pipe"));
    }
}
