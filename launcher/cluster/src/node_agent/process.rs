//! A worker process of this node, with its control page and its log files.

use super::{
    environment::{self, Identity},
    error::AgentError,
    evidence,
    unix::{SharedPage, monotonic_ns},
};
use enn_common::{
    id::WorkerId,
    secrets,
    wire::{
        control::Phase,
        node_agent::{FirstLaunch, WorkerExit, WorkerFlag, WorkerProgress},
    },
};
use enn_process::{Binding, Exit, Guard, Inlet, Outlets, Process, StartError, WorkerSpec};
use nix::sys::signal::Signal;
use std::{
    fs::File,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

#[derive(Debug)]
pub(super) struct WorkerProcess {
    worker: WorkerId,
    process: Process,
    page: Arc<SharedPage>,
    /// Directory of its log files.
    logs: PathBuf,
    /// Rank in its last round; the device's index of one that had none.
    pub(super) rank: u32,
    pub(super) local_rank: u32,
}

impl WorkerProcess {
    /// Starts a worker; its output goes to `logs`/{stdout,stderr}.log. The process dies with the calling thread.
    pub(super) fn start(
        spec: &WorkerSpec,
        identity: Identity<'_>,
        local_rank: u32,
        logs: &Path,
        guard: &mut Guard,
    ) -> Result<Self, AgentError> {
        let log = |path: &Path| {
            let path = path.to_owned();
            move |source| AgentError::Log { path, source }
        };
        std::fs::create_dir_all(logs).map_err(log(logs))?;
        let file = |name: &str| {
            let path = logs.join(name);
            File::create(&path).map_err(log(&path))
        };
        let stdout = file(evidence::STDOUT)?;
        let stderr = file(evidence::STDERR)?;
        let page = SharedPage::create().map_err(|source| AgentError::System { what: "make a control page", source })?;
        // Snapshots are taken from workers of every node.
        page.fields().iter().for_each(|fields| fields.offer_staging());
        let identity = Identity { control_fd: page.fd(), ..identity };
        let mut command = secrets::command(&spec.program);
        for name in environment::OF_A_SEAT.iter().chain(&environment::OF_A_SCRIPT) {
            command.env_remove(name);
        }
        command.args(&spec.args).envs(environment::variables(spec, &identity));
        let outlets = Outlets { stdin: Inlet::Empty, stdout: stdout.into(), stderr: stderr.into() };
        let binding = Binding::inheriting(page.fd());
        let process = Process::start(&command, outlets, binding, guard).map_err(|error| match error {
            StartError::Spawn(source) => AgentError::Spawn { program: spec.program.clone(), source },
            StartError::Watch(source) => AgentError::System { what: "watch a worker by pidfd", source },
        })?;
        let rank = identity.seat.map_or(0, |seat| seat.rank);
        Ok(Self { worker: identity.worker, process, page: Arc::new(page), logs: logs.to_owned(), rank, local_rank })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns a descriptor that is readable when the process has ended.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// Returns whether the process has not been reaped.
    pub(super) fn lives(&self) -> bool {
        self.process.exit().is_none()
    }

    /// Sets a flag of the control page, or clears it. `Stop` is never cleared.
    pub(super) fn set_flag(&self, flag: WorkerFlag, on: bool) {
        let Some(page) = self.page.fields() else { return };
        match (flag, on) {
            (WorkerFlag::Stop, true) => page.set_stop(),
            (WorkerFlag::Stop, false) => {}
            (WorkerFlag::Regroup, true) => page.set_regroup(),
            (WorkerFlag::Regroup, false) => page.clear_regroup(),
        }
    }

    /// Writes what a script reports to the control page, which it does not know of.
    pub(super) fn note_progress(&self, phase: Phase, step: u64) {
        let Some(page) = self.page.fields() else { return };
        let now = monotonic_ns();
        page.set_step(step, now);
        page.set_phase(phase, now);
    }

    /// Returns the page, which may outlive the worker.
    pub(super) fn page(&self) -> &Arc<SharedPage> {
        &self.page
    }

    /// Returns the directory of the log files.
    pub(super) fn logs(&self) -> &Path {
        &self.logs
    }

    /// Returns the fields of the control page that the leader reads.
    pub(super) fn progress(&self) -> WorkerProgress {
        let worker = self.worker;
        let Some(page) = self.page.fields() else {
            return WorkerProgress { worker, phase: 0, step: 0, waited: Duration::ZERO, idle: Duration::ZERO };
        };
        WorkerProgress {
            worker,
            phase: page.phase() as u32,
            step: page.step(),
            waited: Duration::from_nanos(page.waited_ns()),
            idle: Duration::from_nanos(monotonic_ns().saturating_sub(page.heartbeat_ns())),
        }
    }

    /// Returns the kernel that was running for the first time on such operands, if the worker said so last.
    pub(super) fn first_launch(&self) -> Option<FirstLaunch> {
        let intent = self.page.fields().and_then(|page| page.intent())?;
        Some(FirstLaunch { op: intent.op, kernel: intent.kernel, signature: intent.sig, operands: intent.operands })
    }

    /// Signals the group, if the process has not been reaped.
    pub(super) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Reaps the process if it has ended, after killing what it left in its group. The end is at most `late` old.
    pub(super) fn reap(&mut self, guard: &mut Guard, late: Duration) -> Option<WorkerExit> {
        let began = Instant::now();
        let exit = self.process.reap(guard)?;
        let (code, signal) = exit.code_or_signal();
        Some(WorkerExit { code, signal, late: late + began.elapsed(), page: self.progress() })
    }

    /// Returns whether the process ended with code 0.
    pub(super) fn ended_well(&self) -> bool {
        self.process.exit() == Some(Exit::Code(0))
    }

    /// Leaves a process that survived SIGKILL to the machine: nobody waits for its end.
    pub(super) fn leave(self) {
        self.process.leave();
    }
}
