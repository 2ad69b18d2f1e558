//! `enn resize`, `pause`, `continue`, `drain` and `stop`: requests to a named run. While no node leads the run, they wait for a node that
//! takes over.

use super::{flags, output};
use crate::{Error, facts::Facts};
use clap::{Args, Subcommand};
use enn_cluster::supervise::{self, AskError, Asker};
use enn_common::wire::command::Request;
use enn_process::run_dir;
use enn_ui::runs::Need;
use enn_ui::{
    RunView,
    follow::Follower,
    message,
    run_status::{RunStatus, TAKE_OVER_MAX},
};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Time between two attempts; there is no notification when another host opens its control server.
const ASK_PERIOD: Duration = Duration::from_millis(100);

#[derive(Debug, Subcommand)]
pub(super) enum RequestCommand {
    /// Change the number of workers of a training under way
    ///
    /// More workers are started and warmed while the others train on; then all meet in a new round. With fewer, the round ends after
    /// a step, and workers without a seat end. The result does not change: the global batch is the same for any number of workers.
    Resize {
        #[command(flatten)]
        target: TargetRun,
        /// Workers from now on
        #[arg(value_name = "N")]
        workers: u32,
    },
    /// Pause a training under way: its workers leave the round after a step and wait
    ///
    /// They keep their memory, their devices and what they have loaded, but compute nothing. `enn continue` goes on at once.
    /// Nothing is saved: to free the machine, use `enn stop` and `enn train --resume`.
    Pause(TargetRun),
    /// Go on with a training that was paused
    Continue(TargetRun),
    /// Make a run leave a node: its workers finish the step and end
    ///
    /// A run of one node writes a checkpoint and ends, with code 143, as after SIGTERM; `enn train --resume` goes on with it, here or
    /// elsewhere. One of --nnodes MIN:MAX goes on with the other nodes; where the node led, another one leads.
    Drain {
        #[command(flatten)]
        target: TargetRun,
        /// Node to leave [default: the only one]
        #[arg(long, value_name = "HOST", help_heading = "Cluster")]
        node: Option<String>,
    },
    /// Stop a run: its workers finish the step, write a checkpoint and end, as after one Ctrl-C
    ///
    /// The run ends with code 130; `enn train --resume` goes on with it.
    Stop(TargetRun),
}

pub(super) fn run(command: &RequestCommand, facts: &Facts) -> Result<(), Error> {
    let (target, request) = match command {
        RequestCommand::Resize { target, workers } => (target, Request::Resize { workers: *workers }),
        RequestCommand::Pause(target) => (target, Request::Pause {}),
        RequestCommand::Continue(target) => (target, Request::Continue {}),
        RequestCommand::Drain { target, node } => (target, Request::Drain { node: node.clone() }),
        RequestCommand::Stop(target) => (target, Request::Stop {}),
    };
    target.send(&request, facts)
}

/// The run that receives a request; it must be named.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct TargetRun {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"
    #[arg(value_name = "RUN")]
    run: String,
    /// Directory of runs [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
}

impl TargetRun {
    fn send(&self, request: &Request, facts: &Facts) -> Result<(), Error> {
        let run = flags::find(&self.run, self.runs_dir.as_deref(), Need::UnderWay, facts)?;
        let ask =
            || supervise::ask(&run, request, Asker { run_is_living: run_dir::is_living(&run), host: &facts.host });
        let answer = match ask() {
            Err(error) if error.is_absence() => when_led(&run, error, ask)?,
            answer => answer?,
        };
        output::text_line(&answer)
    }
}

/// Repeats the request as long as another node may take over.
fn when_led(run: &Path, mut error: AskError, ask: impl Fn() -> Result<String, AskError>) -> Result<String, Error> {
    let deadline = Instant::now() + TAKE_OVER_MAX;
    let mut follower = Follower::open(run, &run_dir::lock_path(run))?;
    let mut view = RunView::default();
    let mut is_reported = false;
    while error.is_absence() {
        follower.read(|event| view.apply(&event))?;
        if !RunStatus::has_successors(&view, run_dir::is_living(run)) {
            return Err(error.into());
        }
        let waited = TAKE_OVER_MAX.as_secs();
        if Instant::now() >= deadline {
            return Err(AskError::Leaderless { run: run.to_owned(), waited }.into());
        }
        if !std::mem::replace(&mut is_reported, true) {
            message::print(&format!("{error}; waiting up to {waited} s for another node to lead it"));
        }
        std::thread::park_timeout(ASK_PERIOD);
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(again) => error = again,
        }
    }
    Err(error.into())
}
