//! `enn warm`.

use super::{flags, output};
use crate::{
    Error,
    facts::{Facts, OMP_NUM_THREADS},
};
use clap::Subcommand;
use enn_common::secrets;
use enn_process::preload::{self, Preload, Status, Trial, WARM_IDLE, WarmError, WarmServer, WarmSettings};
use enn_ui::format;
use serde::Deserialize;
use serde_json::json;
use std::{ffi::OsString, fs, time::Duration};

/// The text that is printed when there is nothing to show or to stop.
const NONE: &str = "no warm server";

/// Keep PyTorch imported between runs, so that `enn run --warm` starts a script at once
///
/// A warm server is a process of yours that has imported PyTorch and waits. `enn run --warm`, or ENN_WARM=1, has workers forked by it, and
/// starts one where none fits. It ends by itself after a time without a run, and with its Slurm step.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: WarmCommand,
}

#[derive(Debug, Subcommand)]
enum WarmCommand {
    /// Start a server, and wait until it is ready
    ///
    /// It serves runs with this shell's variables, limits and control group. OMP_NUM_THREADS is 1 unless it is set, as `enn run` has it
    /// for several workers.
    Start(StartServer),
    /// Stop servers; runs that use them go on
    Stop(StopServers),
    /// Show the servers
    Status(ShowServers),
}

#[derive(Debug, clap::Args)]
struct StartServer {
    /// Interpreter, as PYTHON_EXEC names it for `enn run` [default: PYTHON_EXEC, else python3 or python on PATH]
    #[arg(long, value_name = "PROGRAM", help_heading = "Program")]
    python: Option<OsString>,
    /// Modules to import; torch stands for what scripts use of it
    #[arg(long, value_name = "MODULE,…", value_delimiter = ',', default_value = "torch", help_heading = "Program")]
    preload: Vec<String>,
    /// Time without a run after which it ends, e.g. 30m or 8h [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = flags::span, help_heading = "Program")]
    idle_timeout: Option<Duration>,
}

#[derive(Debug, clap::Args)]
struct StopServers {
    /// Processes of the servers, as `enn warm status` shows them [default: all]
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
}

#[derive(Debug, clap::Args)]
struct ShowServers {
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    match &args.command {
        WarmCommand::Start(args) => start(args, facts),
        WarmCommand::Stop(args) => stop(args, facts),
        WarmCommand::Status(args) => status(args, facts),
    }
}

fn servers(facts: &Facts) -> Result<Vec<WarmServer>, Error> {
    let parent = facts.socket_parent.clone();
    preload::warm_servers(&parent).map_err(|source| WarmError::Place { parent, source }.into())
}

fn start(args: &StartServer, facts: &Facts) -> Result<(), Error> {
    let known: Vec<u32> = servers(facts)?.iter().filter_map(|server| Some(server.status().ok()?.pid)).collect();
    let python = args.python.clone().or_else(|| facts.script_python()).ok_or(WarmError::NoPython)?;
    let mut command = secrets::command(python);
    if !facts.is_set(OMP_NUM_THREADS) {
        command.env(OMP_NUM_THREADS, "1");
    }
    let idle = args.idle_timeout.unwrap_or(WARM_IDLE);
    let warm = WarmSettings { parent: facts.socket_parent.clone(), idle, leave: false };
    let modules = args.preload.iter().map(|name| name.trim().to_owned()).collect();
    let preload = Preload { modules, asked: true, behind: false, warm: Some(warm) };
    let dir = tempfile::Builder::new().prefix("enn-warm-").tempdir_in(&facts.temporary_dir);
    let trial = dir.and_then(|dir| preload::try_out(command, preload, dir.path())).map_err(WarmError::Start)?;
    if let Trial::Executes(why) = trial {
        return Err(WarmError::Refused(why).into());
    }
    // The first server is the one that was used last.
    let server = servers(facts)?.into_iter().next().ok_or_else(|| WarmError::Refused("it has ended".to_owned()))?;
    let status = server.status().map_err(WarmError::Start)?;
    let what = if known.contains(&status.pid) { "there is one already" } else { "started" };
    output::text_line(&format!("{what}: {}", shown(&status)))
}

fn stop(args: &StopServers, facts: &Facts) -> Result<(), Error> {
    let mut stopped = Vec::new();
    for server in servers(facts)? {
        if args.pids.is_empty() || server.status().is_ok_and(|status| args.pids.contains(&status.pid)) {
            let silent = |source| WarmError::Silent { folder: server.folder().to_owned(), source };
            stopped.push(server.stop().map_err(silent)?);
        }
    }
    if let Some(pid) = args.pids.iter().find(|pid| !stopped.contains(pid)) {
        return Err(WarmError::Unknown(*pid).into());
    }
    let lines: Vec<String> = stopped.iter().map(|pid| format!("stopped: pid {pid}")).collect();
    output::text_line(&if lines.is_empty() { NONE.to_owned() } else { lines.join("\n") })
}

fn status(args: &ShowServers, facts: &Facts) -> Result<(), Error> {
    let mut lines = Vec::new();
    let mut documents = Vec::new();
    for server in servers(facts)? {
        let folder = server.folder().display().to_string();
        if server.is_importing() {
            lines.push(format!("imports: {folder}"));
            documents.push(json!({"folder": folder, "state": "imports"}));
            continue;
        }
        match server.document().and_then(|document| Ok((Status::deserialize(&document)?, document))) {
            Ok((status, document)) => {
                lines.push(shown(&status));
                let memory = memory(status.pid);
                documents.push(json!({"folder": folder, "state": "ready", "server": document, "memory_bytes": memory}));
            }
            Err(error) => {
                lines.push(format!("does not answer: {folder}: {error}"));
                documents.push(json!({"folder": folder, "state": "silent", "error": error.to_string()}));
            }
        }
    }
    let text = || if lines.is_empty() { NONE.to_owned() } else { output::lines(&lines) };
    output::print(args.json, &json!({"servers": documents}), text)
}

fn shown(status: &Status) -> String {
    let Status { pid, version, executable, torch, modules, seconds, runs, running, idle, .. } = status;
    let torch = torch.as_ref().map_or_else(String::new, |torch| format!(", torch {torch}"));
    let now = if *running > 0 { format!(", {running} now") } else { String::new() };
    let memory = memory(*pid).map_or_else(String::new, |bytes| format!(", {}", format::bytes(bytes)));
    format!(
        "pid {pid}: Python {version} ({executable}){torch}, {} imported in {}; {}{now}; ends after {} without one{memory}",
        format::plural(modules.len() as u64, "module"),
        format::seconds(*seconds),
        format::plural(*runs, "run"),
        format::seconds(*idle),
    )
}

/// Returns the proportional set size of a process in bytes.
fn memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
