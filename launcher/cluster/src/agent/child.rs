//! One of ENN's own workers: a process with a control page and log files.

use super::{
    cause,
    env::{self, Identity},
    error::AgentError,
    unix::Page,
};
use enn_common::{
    secrets,
    wire::{
        control::{Intent, Phase},
        follower::WorkerRequest,
    },
};
use enn_process::{Binding, Exit, Guard, Inlet, Outlets, Process, StartError, WorkerSpec};
use nix::sys::signal::Signal;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// Bytes of standard error looked at for its last lines.
const STDERR_TAIL_BYTES: u64 = 16 << 10;

const STDOUT: &str = "stdout.log";
const STDERR: &str = "stderr.log";

/// A worker process and what belongs to it.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    page: Arc<Page>,
    /// Directory of its log files.
    logs: PathBuf,
    stderr: PathBuf,
}

impl Child {
    /// Starts a worker; its output goes to `logs`/{stdout,stderr}.log.
    pub(super) fn spawn(
        spec: &WorkerSpec,
        identity: Identity<'_>,
        logs: &Path,
        guard: &mut Guard,
    ) -> Result<Self, AgentError> {
        let log = |path: &Path| {
            let path = path.to_owned();
            move |source| AgentError::Log { path, source }
        };
        std::fs::create_dir_all(logs).map_err(log(logs))?;
        let stdout_path = logs.join(STDOUT);
        let stderr = logs.join(STDERR);
        let stdout_file = File::create(&stdout_path).map_err(log(&stdout_path))?;
        let stderr_file = File::create(&stderr).map_err(log(&stderr))?;
        let page = Page::create().map_err(|source| AgentError::System { what: "make a control page", source })?;
        let identity = Identity { control_fd: page.fd(), ..identity };
        let mut command = secrets::command(&spec.program);
        for name in env::OF_A_SEAT {
            command.env_remove(name);
        }
        command.args(&spec.args).envs(env::variables(spec, &identity));
        let outlets = Outlets { stdin: Inlet::Empty, stdout: stdout_file.into(), stderr: stderr_file.into() };
        let binding = Binding::inheriting(page.fd());
        let process = Process::start(&command, outlets, binding, guard).map_err(|error| match error {
            StartError::Spawn(source) => AgentError::Spawn { program: spec.program.clone(), source },
            StartError::Watch(source) => AgentError::System { what: "watch a worker by pidfd", source },
        })?;
        Ok(Self { process, page: Arc::new(page), logs: logs.to_owned(), stderr })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Readable when the process has ended.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// How it ended; `None` while it lives.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.process.exit()
    }

    /// Sets a wish on the control page, or takes it back. The end is not taken back.
    pub(super) fn wish(&self, wish: WorkerRequest, wanted: bool) {
        let Some(page) = self.page.fields() else { return };
        match (wish, wanted) {
            (WorkerRequest::Stop, true) => page.set_stop(),
            (WorkerRequest::Stop, false) => {}
            (WorkerRequest::Regroup, true) => page.set_regroup(),
            (WorkerRequest::Regroup, false) => page.clear_regroup(),
        }
    }

    /// Takes what it leaves in the memory behind its page.
    pub(super) fn offer_staging(&self) {
        self.page.fields().iter().for_each(|page| page.offer_staging());
    }

    /// The page, which may outlive the worker.
    pub(super) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// What the worker was doing last.
    pub(super) fn place(&self) -> (Phase, u64) {
        self.page.fields().map_or((Phase::Boot, 0), |page| (page.phase(), page.step()))
    }

    /// Time since its last sign of progress, at `now_ns` of CLOCK_MONOTONIC.
    pub(super) fn silent(&self, now_ns: u64) -> Duration {
        let heartbeat = self.page.fields().map_or(0, |page| page.heartbeat_ns());
        Duration::from_nanos(now_ns.saturating_sub(heartbeat))
    }

    /// Nanoseconds it has waited for others since the round began.
    pub(super) fn waited_ns(&self) -> u64 {
        self.page.fields().map_or(0, |page| page.waited_ns())
    }

    /// Its logs appear below `logs` too, where those of its new round are looked for.
    pub(super) fn log_also_in(&self, logs: &Path) -> io::Result<()> {
        std::fs::create_dir_all(logs)?;
        for name in [STDOUT, STDERR] {
            std::fs::hard_link(self.logs.join(name), logs.join(name))?;
        }
        Ok(())
    }

    /// The kernel that was running for the first time on such operands, if the worker said so last.
    pub(super) fn intent(&self) -> Option<Intent> {
        self.page.fields().and_then(|page| page.intent())
    }

    /// Signals the group, if the process has not been reaped.
    pub(super) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Reaps the process if it has ended, after killing what it left in its group.
    pub(super) fn reap(&mut self, guard: &mut Guard) -> Option<Exit> {
        self.process.reap(guard)
    }

    /// The end of its standard error.
    pub(super) fn stderr_tail(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&self.stderr)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(STDERR_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(STDERR_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        // A log that cannot be read leaves the failure without it.
        let bytes = read().unwrap_or_default();
        cause::tail(&String::from_utf8_lossy(&bytes), cause::STDERR_LINES)
    }
}
