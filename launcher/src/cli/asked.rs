//! A run that is asked for something, which must be named. While no node leads it, it is waited for the one that will.

use super::{flags, output};
use crate::{
    Error,
    agent::{self, AskError},
    facts::Facts,
    run_dir,
    runs::Need,
    ui::{
        RunView,
        follow::Follower,
        message,
        standing::{Standing, TAKE_OVER_MAX},
    },
};
use clap::Args;
use enn_common::{exit::ExitCode, wire::command::Request};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Between two attempts: a door that another host opens wakes nobody here.
const ASK_PERIOD: Duration = Duration::from_millis(100);

/// Which run is asked for something: it must be named.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct Asked {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"
    #[arg(value_name = "RUN")]
    run: String,
    /// Directory of runs [default: ENN_RUNS, else ./runs]
    #[arg(long, value_name = "DIR")]
    runs_dir: Option<PathBuf>,
}

impl Asked {
    /// Asks the run; what it accepted with goes to standard output.
    pub(super) fn ask(&self, request: &Request, facts: &Facts) -> Result<ExitCode, Error> {
        let run = flags::find(&self.run, self.runs_dir.as_deref(), Need::UnderWay, facts)?;
        let ask = || agent::ask(&run, request, (run_dir::is_living(&run), &facts.host));
        let says = match ask() {
            Err(error) if error.is_absence() => when_led(&run, error, ask)?,
            asked => asked?,
        };
        output::text_line(&says)?;
        Ok(ExitCode::Success)
    }
}

/// Asks again as long as another node may take over.
fn when_led(run: &Path, mut error: AskError, ask: impl Fn() -> Result<String, AskError>) -> Result<String, Error> {
    let deadline = Instant::now() + TAKE_OVER_MAX;
    let mut follower = Follower::open(run, &run_dir::lock_path(run))?;
    let mut view = RunView::default();
    let mut told = false;
    while error.is_absence() {
        follower.read(|event| view.apply(&event))?;
        if !Standing::has_heirs(&view, run_dir::is_living(run)) {
            return Err(error.into());
        }
        let waited = TAKE_OVER_MAX.as_secs();
        if Instant::now() >= deadline {
            return Err(AskError::Headless { run: run.to_owned(), waited }.into());
        }
        if !std::mem::replace(&mut told, true) {
            message::print(&format!("{error}; waiting up to {waited} s for another node to lead it"));
        }
        std::thread::park_timeout(ASK_PERIOD);
        match ask() {
            Ok(says) => return Ok(says),
            Err(again) => error = again,
        }
    }
    Err(error.into())
}
