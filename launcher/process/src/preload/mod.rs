//! The fork server of `enn run`: workers of a Python script are forked from a process that has imported torch, where executed
//! workers each spend seconds on the import.
//!
//! ```text
//! Starter ──start──► ForkServer ──probe──► Python with our hook, reports its modules, ends
//!                        │ ──serve──► Python with the workers' own command, held up inside `import sitecustomize`
//!                        └ ──fork───► request (variables, streams) ─► pid ─► PausedWorker ──release──► the script
//! ```
//! `starter` starts the workers of a node (by exec or fork); `server` holds the states of a run's server; `link` the process behind it;
//! `recipe` its command; `warm` servers that continue between runs, `search` a run's search for one, and `surroundings` the
//! attributes that the two must share; `request` one worker's frame; `trial` tries whether a Python can serve; `hook` the Python files and
//! the socket for notes; `frame` the encoding of messages. The Python half is in `python`.
//!
//! **Invariant:** any failure here costs a log line and time only: the worker is executed as usual.

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

pub use link::Ready;
pub use request::PausedWorker;
pub(crate) use server::ForkServer;
pub use starter::{Started, Starter, WorkerStart};
pub use trial::{Trial, try_out};
pub use warm::{Status, WARM_IDLE, WarmError, WarmServer, warm_servers};

use std::{path::PathBuf, time::Duration};

/// Modules to import before the first worker is started, and how to do so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preload {
    /// Names of modules; `torch` stands for the parts of PyTorch that scripts use.
    pub modules: Vec<String>,
    /// Whether the user requested it: then the reason is reported when it is impossible.
    pub asked: bool,
    /// Whether the workers of the first round are executed at once, and the import runs behind them, for restarts: where every worker
    /// has a core, all of them import in the time of one import.
    pub behind: bool,
    /// Settings of a warm server; `None`: the run has a server of its own.
    pub warm: Option<WarmSettings>,
}

/// A run's settings of a warm server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmSettings {
    /// Folder that holds this user's folder of warm servers.
    pub parent: PathBuf,
    /// Time without a run after which a server that is started ends.
    pub idle: Duration,
    /// Whether background processes of workers continue when the run ends.
    pub leave: bool,
}
