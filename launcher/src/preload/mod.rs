//! The fork server of `enn run`: workers of a Python script are forked from a process that has imported torch, where executed ones
//! each spend seconds on the import.
//!
//! ```text
//! Starter ──start──► ForkServer ──probe──► Python with our hook, asks what is there, ends
//!                        │ ──serve──► Python with the workers' own command, held up inside `import sitecustomize`
//!                        └ ──fork───► request (variables, streams) ─► pid ─► Held ──release──► the script
//! ```
//! `starter` is how the group starts a worker (execute or fork); `server` the states of a run's server; `link` the process behind it;
//! `recipe` its command; `warm` servers that live between runs, `search` how a run comes to one, and `surroundings` what the two must have
//! in common; `request` one worker's frame; `trial` asks whether a Python can serve; `hook` the Python files and the socket for notes;
//! `frame` how bytes travel. The Python half is in `python`.
//!
//! **Invariant:** whatever goes wrong here costs a line and its time: the worker is executed as usual.

mod frame;
mod hook;
mod link;
mod recipe;
mod request;
mod search;
mod server;
mod starter;
mod surroundings;
mod trial;
#[cfg(test)]
mod unix;
mod warm;

pub(crate) use link::Ready;
pub(crate) use server::ForkServer;
pub(crate) use starter::{Held, Started, Starter, WorkerStart};
pub use trial::{Trial, try_out};
pub use warm::{Status, WARM_IDLE, WarmError, WarmServer, warm_servers};

use std::{path::PathBuf, time::Duration};

/// What is imported before the first worker is started, and how the wish came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preload {
    /// Names of modules; `torch` stands for what scripts of PyTorch use of it.
    pub modules: Vec<String>,
    /// The user asked for it: where it cannot be done, the reason is told.
    pub asked: bool,
    /// The workers of the first round are executed at once, and the import is made behind them, for restarts: where every worker has
    /// a core, all of them import in the time that one import takes.
    pub behind: bool,
    /// The server is one that lives between runs.
    pub warm: Option<Warm>,
}

/// What a run wants of a warm server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warm {
    /// Folder in which this user's folder of warm servers is.
    pub parent: PathBuf,
    /// Time without a run after which one that is started ends.
    pub idle: Duration,
    /// Whether what workers started and left behind lives on when the run ends.
    pub leave: bool,
}
