//! Warm servers: fork servers that continue between the runs of one user, each in a folder of its own with its socket.
//!
//! ```text
//! enn-warm-UID/
//!   DIGEST-RANDOM/   socket   a run requests workers of its command here, and gets a run server, or a reason
//!                    ready    exists when the imports are done; its modification time is the last use by a run
//!                    log      the server's output; besides, the hook's files
//! ```
//! DIGEST is a digest of the hook's files: a server of another version of ENN is never queried. The server removes its folder when it
//! ends; the folder of a killed server is removed by the next run.
//!
//! **Invariant:** the folder is this user's and no other user may enter it; a socket of another user's process is not used.

use super::{
    frame::{self, FrameReader},
    hook,
    link::Link,
    request::JoinRequest,
};
use enn_common::fs::private;
use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};
use serde::Deserialize;
use serde_json::Value;
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind, Write},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

const SOCKET: &str = "socket";
const READY: &str = "ready";
const LOG: &str = "log";

/// Default time without a run after which a server ends.
pub const WARM_IDLE: Duration = Duration::from_secs(30 * 60);
/// Age up to which a folder without a socket counts as being made.
const MAKING_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a server's status.
const SILENCE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Status {
    pub pid: u32,
    pub version: String,
    pub executable: String,
    /// Version of PyTorch, if it is among the modules.
    #[serde(default)]
    pub torch: Option<String>,
    /// Requested modules that were imported.
    pub modules: Vec<String>,
    /// Duration of the imports in seconds.
    pub seconds: f64,
    /// Start time in seconds since 1970.
    pub started: f64,
    /// Last use by a run in seconds since 1970.
    #[serde(default)]
    pub used: Option<f64>,
    /// Number of runs that have used the server.
    pub runs: u64,
    /// Number of runs that use it now.
    pub running: u64,
    /// Time without a run after which the server ends, in seconds.
    pub idle: f64,
}

#[derive(Debug, Clone)]
pub struct WarmServer {
    folder: PathBuf,
    used: SystemTime,
}

/// Returns the warm servers of this user below `parent`, most recently used first, and removes the folders of killed ones.
///
/// # Errors
/// The folder is accessible to other users, or any error of the system.
pub fn warm_servers(parent: &Path) -> io::Result<Vec<WarmServer>> {
    list(&place(parent)?)
}

/// Returns the folder of this user's servers, which is made when it does not exist.
pub(super) fn place(parent: &Path) -> io::Result<PathBuf> {
    let place = parent.join(format!("enn-warm-{}", geteuid()));
    private::own_dir(&place).map_err(io::Error::other)?;
    Ok(place)
}

pub(super) fn list(place: &Path) -> io::Result<Vec<WarmServer>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(place)? {
        let folder = entry?.path();
        let written = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        // The folder has just been removed.
        let Some(made) = written(&folder) else { continue };
        let server = WarmServer { used: written(&folder.join(READY)).unwrap_or(made), folder };
        let is_left = match server.connect() {
            Ok(_) => false,
            Err(error) if error.kind() == ErrorKind::NotFound => made.elapsed().is_ok_and(|age| age > MAKING_MAX),
            Err(error) => error.kind() == ErrorKind::ConnectionRefused,
        };
        if is_left {
            let _gone = fs::remove_dir_all(&server.folder);
        } else {
            found.push(server);
        }
    }
    found.sort_by_key(|server| std::cmp::Reverse(server.used));
    Ok(found)
}

#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    #[error("the warm servers of this user, in a folder of {}: {source}", parent.display())]
    Place { parent: PathBuf, source: io::Error },
    #[error("no python3 or python is on PATH\nhint: activate an environment, or name an interpreter with --python")]
    NoPython,
    #[error("the warm server cannot be started: {0}")]
    Start(io::Error),
    /// The server cannot serve.
    #[error("{0}\nhint: `enn doctor` says whether workers can be forked with the active Python")]
    Refused(String),
    #[error("the warm server in {} does not answer: {source}\nhint: `ls -l {}` shows its owner", folder.display(), folder.display())]
    Silent { folder: PathBuf, source: io::Error },
    #[error("no warm server of this user has pid {0}\nhint: `enn warm status` shows them")]
    Unknown(u32),
}

impl WarmServer {
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn is_importing(&self) -> bool {
        !self.folder.join(READY).exists()
    }

    pub fn status(&self) -> io::Result<Status> {
        Ok(serde_json::from_value(self.document()?)?)
    }

    /// Queries the server's status as a JSON document.
    pub fn document(&self) -> io::Result<Value> {
        let mut answer: Value = serde_json::from_slice(&self.ask(b"status")?)?;
        Ok(answer["status"].take())
    }

    /// Ends the server. Runs that use it continue. Returns its process id.
    pub fn stop(&self) -> io::Result<u32> {
        #[derive(Deserialize)]
        struct Answer {
            stopped: u32,
        }
        Ok(serde_json::from_slice::<Answer>(&self.ask(b"stop")?)?.stopped)
    }

    fn ask(&self, word: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = self.connect()?;
        stream.write_all(&frame::encode(word)?)?;
        FrameReader::default().read(&mut stream)?.ok_or_else(|| ErrorKind::TimedOut.into())
    }

    /// Makes a connection on which no call waits longer than [`SILENCE_MAX`].
    fn connect(&self) -> io::Result<UnixStream> {
        let folder = File::open(&self.folder)?;
        let stream = UnixStream::connect(short_path(&folder))?;
        let user = getsockopt(&stream, PeerCredentials)?.uid();
        if user != geteuid().as_raw() {
            return Err(io::Error::new(ErrorKind::PermissionDenied, format!("its user is {user}")));
        }
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(stream)
    }

    /// Makes the folder of a new server, with its socket, which is to be inherited.
    pub(super) fn create(place: &Path) -> io::Result<(Self, UnixListener)> {
        let number = RandomState::new().build_hasher().finish();
        let folder = place.join(format!("{:016x}-{number:016x}", hook::digest()));
        hook::write_files(&folder)?;
        let socket = UnixListener::bind(short_path(&File::open(&folder)?))?;
        Ok((Self { folder, used: SystemTime::now() }, socket))
    }

    pub(super) fn log_path(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// Records that a run uses the server now.
    pub(super) fn use_now(&self) {
        // A server that is just being stopped has no such file any more.
        let ready = File::options().write(true).open(self.folder.join(READY));
        let _gone = ready.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Removes the folder of a server that could not be started.
    pub(super) fn remove(&self) {
        let _gone = fs::remove_dir_all(&self.folder);
    }

    /// Opens a connection and sends a run's request for workers.
    pub(super) fn join(&self, request: &JoinRequest) -> io::Result<Link> {
        let mut stream = self.connect()?;
        request.send(&mut stream)?;
        Link::to(stream)
    }

    /// Returns whether the server belongs to this version of ENN.
    pub(super) fn has_our_files(&self) -> bool {
        let prefix = format!("{:016x}-", hook::digest());
        self.folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    }
}

/// Returns a path of the socket by the folder's descriptor: Unix allows 107 bytes.
fn short_path(folder: &File) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::{os::unix::fs::PermissionsExt, thread};

    /// Plays a server that answers each request in turn, and returns the requests.
    pub(in crate::preload) fn play(
        place: &Path,
        name: &str,
        answers: &'static [&'static str],
    ) -> thread::JoinHandle<Vec<String>> {
        let folder = place.join(name);
        fs::create_dir(&folder).unwrap();
        let socket = UnixListener::bind(folder.join(SOCKET)).unwrap();
        fs::write(folder.join(READY), "").unwrap();
        thread::spawn(move || {
            let mut asked = Vec::new();
            let mut answers = answers.iter();
            while answers.len() > 0 {
                let (mut stream, _) = socket.accept().unwrap();
                // A connection that only looks whether somebody is there.
                let Ok(Some(request)) = FrameReader::default().read(&mut stream) else { continue };
                asked.push(String::from_utf8(request).unwrap());
                // Who has asked may be gone.
                let answer = frame::encode(answers.next().unwrap().as_bytes()).unwrap();
                let _gone = stream.write_all(&answer);
            }
            asked
        })
    }

    #[test]
    fn servers_say_what_they_are_and_are_stopped() {
        let parent = tempfile::tempdir().unwrap();
        let place = place(parent.path()).unwrap();
        assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(warm_servers(parent.path()).unwrap().is_empty());
        let status = r#"{"status": {"pid": 7, "version": "3.11.7", "executable": "/p", "torch": "2.11.0", "modules": ["torch"],
                          "seconds": 1.5, "started": 1.0, "used": null, "runs": 0, "running": 0, "idle": 60.0}}"#;
        let server = play(&place, "a-b", Box::leak(Box::new([status, r#"{"stopped": 7}"#])));
        let servers = warm_servers(parent.path()).unwrap();
        assert_eq!(servers.len(), 1);
        let said = servers[0].status().unwrap();
        assert_eq!((said.pid, said.torch.as_deref(), said.used), (7, Some("2.11.0"), None));
        assert_eq!(servers[0].stop().unwrap(), 7);
        assert_eq!(server.join().unwrap(), ["status", "stop"]);
        // Its socket is closed now: as if it had been killed.
        assert!(warm_servers(parent.path()).unwrap().is_empty());
        assert!(!place.join("a-b").exists());
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let place = place(parent.path()).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(warm_servers(parent.path()).unwrap_err().to_string().contains("other users may write"));
    }
}
