//! Sends a request to a named run. While no node leads the run, it waits for a node that takes over.

use super::{flags, output};
use crate::{Error, facts::Facts};
use clap::Args;
use enn_cluster::agent::{self, AskError};
use enn_common::{exit::ExitCode, wire::command::Request};
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
    /// Sends a request to the run and prints the answer.
    pub(super) fn send(&self, request: &Request, facts: &Facts) -> Result<ExitCode, Error> {
        let run = flags::find(&self.run, self.runs_dir.as_deref(), Need::UnderWay, facts)?;
        let ask = || agent::ask(&run, request, (run_dir::is_living(&run), &facts.host));
        let answer = match ask() {
            Err(error) if error.is_absence() => when_led(&run, error, ask)?,
            answer => answer?,
        };
        output::text_line(&answer)?;
        Ok(ExitCode::Success)
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
            return Err(AskError::Headless { run: run.to_owned(), waited }.into());
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
