//! `enn top`.

use super::{flags::RunArgs, output};
use crate::{Error, facts::Facts};
use enn_process::{STOP_SIGNALS, Signals, run_dir};
use enn_ui::{
    TopError, message,
    runs::Need,
    top::{self, TopOptions, WebOptions, WebPage},
};

/// The reference that means the newest run.
const LATEST: &str = "latest";

/// Watch a run on the whole screen: nodes, workers, load, throughput, reasons, logs
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: RunArgs,
    /// Serve a page for a browser instead: curves, figures, workers, events, logs
    ///
    /// Prints the page's address, with a token that is new each time, and serves it on 127.0.0.1 until Ctrl-C. Without RUN the page goes
    /// on with a newer run when the one it shows is over.
    #[arg(long, help_heading = "Output")]
    web: bool,
    /// Port of the page [default: 7007, or a free one if that is taken]; 0: a free one
    #[arg(long, value_name = "PORT", requires = "web", help_heading = "Output")]
    port: Option<u16>,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let signals =
        Signals::install(&STOP_SIGNALS).map_err(|source| TopError::System { what: "handle signals", source })?;
    if args.web {
        return serve(args, facts, signals.as_ref());
    }
    let run = args.which.find(Need::Any, facts)?;
    let options = TopOptions {
        run_dir: &run,
        held: &run_dir::lock_path(&run),
        living: &|| run_dir::is_living(&run),
        logs: run_dir::logs(&run),
        host: &facts.host,
        stop: signals.as_ref().map(Signals::fd),
    };
    top::run(&options)?;
    Ok(())
}

fn serve(args: &Args, facts: &Facts, signals: Option<&Signals>) -> Result<(), Error> {
    let is_newest = args.which.run == LATEST;
    let run_dir = match args.which.find(Need::Any, facts) {
        // The page waits for the first run.
        Err(Error::RunDir(run_dir::RunDirError::Unknown { .. })) if is_newest => None,
        found => Some(found?),
    };
    let newest = || args.which.find(Need::Any, facts).ok();
    let page = WebPage::start(args.port, &facts.host)?;
    output::text_line(page.url())?;
    message::print(&notes(page.port(), facts));
    page.show(&WebOptions {
        run_dir,
        newest: if is_newest { Some(&newest) } else { None },
        stop: signals.map(Signals::fd),
    })?;
    Ok(())
}

/// Says how to reach the page from another machine, where this one is probably reached over the network, and how it ends.
fn notes(port: u16, facts: &Facts) -> String {
    let end = "Ctrl-C ends the page; the run goes on.";
    if !facts.is_remote() {
        return end.to_owned();
    }
    let host = &facts.host;
    format!("On your own machine, first: ssh -N -L {port}:127.0.0.1:{port} {host}\n{end}")
}
