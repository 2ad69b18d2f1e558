//! The files of the fork server, in a folder of the run at the front of Python's path, and the socket to which workers send notes.
//!
//! **Invariant:** the folder is accessible to this user only, and is removed with its run.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, socket};
use std::{
    fs::{self, DirBuilder, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{fs::DirBuilderExt, net::UnixDatagram},
    },
    path::{Path, PathBuf},
};

/// Name of the folder in the run's directory.
const FOLDER: &str = "fork-server";
/// Name of the notes' socket in the folder.
const NOTES: &str = "notes";
/// Log file beside the folder with the server's output, for finding out why it failed.
const LOG: &str = "fork-server.log";
const NOTE_BYTES_MAX: usize = 8 << 10;
/// Limit on the notes read at a time.
const NOTES_MAX: usize = 256;

/// Expands to a file's path in the folder and its text.
macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("python/", $name)))
    };
}

const FILES: [(&str, &str); 34] = [
    file!("sitecustomize.py"),
    file!("check/dump.py"),
    file!("enn_forkserver/__init__.py"),
    file!("enn_forkserver/adopted.py"),
    file!("enn_forkserver/become.py"),
    file!("enn_forkserver/birth.py"),
    file!("enn_forkserver/command.py"),
    file!("enn_forkserver/config.py"),
    file!("enn_forkserver/early.py"),
    file!("enn_forkserver/files.py"),
    file!("enn_forkserver/folder.py"),
    file!("enn_forkserver/frames.py"),
    file!("enn_forkserver/guard.py"),
    file!("enn_forkserver/health.py"),
    file!("enn_forkserver/joining.py"),
    file!("enn_forkserver/ledger.py"),
    file!("enn_forkserver/memory.py"),
    file!("enn_forkserver/own.py"),
    file!("enn_forkserver/pending.py"),
    file!("enn_forkserver/preload.py"),
    file!("enn_forkserver/preloaded.py"),
    file!("enn_forkserver/procfs.py"),
    file!("enn_forkserver/refresh.py"),
    file!("enn_forkserver/restart.py"),
    file!("enn_forkserver/run_server.py"),
    file!("enn_forkserver/selfcheck.py"),
    file!("enn_forkserver/serve.py"),
    file!("enn_forkserver/service.py"),
    file!("enn_forkserver/shadow.py"),
    file!("enn_forkserver/start.py"),
    file!("enn_forkserver/stash.py"),
    file!("enn_forkserver/streams.py"),
    file!("enn_forkserver/surroundings.py"),
    file!("enn_forkserver/warm.py"),
];

/// The hook's folder. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Hook {
    path: PathBuf,
    /// Descriptor of the folder, by which the socket has a short path, however long the folder's path is.
    folder: File,
    notes: Option<UnixDatagram>,
}

impl Hook {
    /// Writes the files into the run's directory.
    pub(super) fn create(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join(FOLDER);
        write_files(&path)?;
        let folder = File::open(&path)?;
        // On a file system without sockets only the notes are lost.
        let notes = listen(&folder).inspect_err(|error| tracing::debug!(%error, "no socket for notes")).ok();
        Ok(Self { path, folder, notes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.path.with_file_name(LOG)
    }

    /// Returns the path of the socket for workers, which run as the same user; empty without a socket.
    pub(super) fn notes_path(&self) -> PathBuf {
        if self.notes.is_none() {
            return PathBuf::new();
        }
        PathBuf::from(format!("/proc/{}/fd/{}/{NOTES}", std::process::id(), self.folder.as_raw_fd()))
    }

    /// Returns a descriptor that is readable when a note came.
    pub(super) fn notes_fd(&self) -> Option<BorrowedFd<'_>> {
        self.notes.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn take_notes(&self) -> Vec<Vec<u8>> {
        let Some(socket) = &self.notes else { return Vec::new() };
        let mut note = vec![0; NOTE_BYTES_MAX];
        let mut next = || socket.recv(&mut note).ok().map(|length| note[..length].to_vec());
        std::iter::from_fn(&mut next).take(NOTES_MAX).collect()
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        // A folder that cannot be removed is removed with the run.
        let _left = fs::remove_dir_all(&self.path);
        let log = self.log_path();
        if fs::metadata(&log).is_ok_and(|found| found.len() == 0) {
            let _left = fs::remove_file(&log);
        }
    }
}

/// Makes the folder and writes the files into it.
///
/// # Errors
/// The folder exists already, or any error of the system.
pub(super) fn write_files(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    for (name, text) in FILES {
        let file = path.join(name);
        if let Some(folder) = file.parent().filter(|folder| !folder.exists()) {
            DirBuilder::new().mode(0o700).create(folder)?;
        }
        fs::write(file, text)?;
    }
    Ok(())
}

pub(super) fn digest() -> u64 {
    let mut hasher = DefaultHasher::new();
    FILES.hash(&mut hasher);
    hasher.finish()
}

/// Makes a datagram socket in the folder. Its path by the folder's descriptor is short: Unix allows 107 bytes.
fn listen(folder: &File) -> io::Result<UnixDatagram> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    let path = format!("/proc/self/fd/{}/{NOTES}", folder.as_raw_fd());
    bind(socket.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn no_file_is_forgotten() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/preload/python/enn_forkserver");
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut there: Vec<String> =
            names.filter(|name| name.ends_with(".py")).map(|name| format!("enn_forkserver/{name}")).collect();
        there.extend(["sitecustomize.py".to_owned(), "check/dump.py".to_owned()]);
        there.sort();
        let mut written = FILES.map(|(name, _)| name);
        written.sort_unstable();
        assert_eq!(there, written);
    }

    #[test]
    fn notes_arrive_however_long_the_runs_path_is() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("r".repeat(120)).join("s".repeat(120));
        fs::create_dir_all(&run).unwrap();
        let hook = Hook::create(&run).unwrap();
        assert_eq!(fs::metadata(hook.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(hook.path().join("sitecustomize.py").is_file());
        let sender = UnixDatagram::unbound().unwrap();
        for note in ["one", "two"] {
            sender.send_to(note.as_bytes(), hook.notes_path()).unwrap();
        }
        assert_eq!(hook.take_notes(), [b"one", b"two"]);
        assert!(hook.take_notes().is_empty());
        let path = hook.path().to_owned();
        drop(hook);
        assert!(!path.exists());
    }
}
