//! `enn status`.

use super::{flags::RunArgs, output};
use crate::{Error, facts::Facts};
use enn_common::shown;
use enn_process::run_dir;
use enn_ui::runs::Need;
use enn_ui::{
    RunView,
    follow::Follower,
    openmetrics,
    run_status::RunStatus,
    status::{self, StatusContext},
    terminal,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{path::Path, time::SystemTime};

/// Columns when standard output is no terminal.
const WIDTH: u16 = 100;
/// Redraw interval while watching; milliseconds.
const REDRAW_MS: u16 = 1_000;
/// Escape sequence that moves the cursor home and clears the screen below.
const HOME: &str = "\x1b[H\x1b[J";

/// Show a run on one page: nodes, workers, what it waits for, what failed
///
/// Works on a run that is under way and on one that is over. The exit code is 0 whatever the run's own was.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: RunArgs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Print OpenMetrics, e.g. for a collector of text files
    #[arg(long, conflicts_with_all = ["json", "watch"], help_heading = "Output")]
    openmetrics: bool,
    /// Show it again on every change, until the run is over
    #[arg(long, short, help_heading = "Output")]
    watch: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let run = args.which.find(Need::Any, facts)?;
    if args.watch {
        return watch(args, &run);
    }
    let mut view = RunView::read(&run)?;
    if !run_dir::is_living(&run) {
        view.take_unrecorded(&run);
    }
    if args.openmetrics {
        return output::bytes(openmetrics::text(&view, run_dir::is_living(&run)).as_bytes());
    }
    show(args, &run, &view, "")
}

fn watch(args: &Args, run: &Path) -> Result<(), Error> {
    let mut follower = Follower::open(run, &run_dir::lock_path(run))?;
    let mut view = RunView::default();
    let terminal = terminal::draws(&std::io::stdout());
    let mut shown = None;
    loop {
        let mut has_new_events = false;
        follower.read(|event| {
            view.apply(&event);
            has_new_events = true;
        })?;
        let context = context(run);
        if !context.living {
            view.take_unrecorded(run);
        }
        // Ages are redrawn on a terminal only: in a file each page would repeat the last one.
        if has_new_events || terminal || shown != Some(context.living) {
            show(args, run, &view, if terminal && !args.json { HOME } else { "" })?;
            shown = Some(context.living);
        }
        if RunStatus::of(&view, context.living).over() && !status::may_be_taken_over(&view, &context) {
            return Ok(());
        }
        // The timeout also serves network file systems, which do not report writes of other hosts.
        let fd = follower.fd().map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(fd.into_iter().collect::<Vec<_>>().as_mut_slice(), PollTimeout::from(REDRAW_MS)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(Error::Output(error.into())),
        }
    }
}

fn show(args: &Args, run: &Path, view: &RunView, before: &str) -> Result<(), Error> {
    let context = context(run);
    if args.json && args.watch {
        return output::json_line(&status::json(view, &context));
    }
    if args.json {
        return output::json(&status::json(view, &context));
    }
    output::bytes(format!("{before}{}", shown::lines(&status::text(view, &context))).as_bytes())
}

fn context(run: &Path) -> StatusContext {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    StatusContext { living: run_dir::is_living(run), now, width: output::columns().unwrap_or(WIDTH).into() }
}
