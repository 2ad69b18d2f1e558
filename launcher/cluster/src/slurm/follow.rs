//! Several tasks of `srun` on one node: the first runs the workers, the others wait for it and end with its code.
//!
//! They share a path. The first task makes it a named pipe, keeps it open with a byte in it, and at its end replaces the pipe by a
//! file with its exit code. A task that starts while the pipe exists waits until it is hung up, which
//! the kernel does however the first task ends; a later one finds the file.
//!
//! **Invariant:** nothing here polls, and nothing waits without a limit for a task that never starts.

use super::{Allocation, SlurmError};
use enn_process::wait_ready;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags},
    sys::signal::{SigSet, Signal},
    sys::stat::Mode,
    unistd::{geteuid, mkfifo},
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest wait for the first task of the node.
const AGENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Age from which files of ended steps are removed.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Signals that end a run: Slurm sends them to every task, and the first one decides.
const SIGNALS: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The first task of a node, seen from the others.
#[derive(Debug)]
pub struct NodeLeader {
    path: PathBuf,
    /// The pipe hangs up when this process ends, however it ends.
    _pipe: File,
}

impl NodeLeader {
    /// Tells the other tasks of the node that this task runs the workers; `None`: there are no others.
    ///
    /// Call it before anything can fail, and `end` with the exit code of this process.
    pub fn announce(parent: &Path, allocation: &Allocation) -> Result<Option<Self>, SlurmError> {
        if allocation.local_tasks() < 2 || !allocation.in_step {
            return Ok(None);
        }
        let path = shared_path(parent, allocation)?;
        let failed = |source| SlurmError::Wait { path: path.clone(), source };
        path.parent().into_iter().for_each(forget_old);
        // Only the first task of a step writes files: an existing one belongs to a step that had the same ids.
        if code(&path).map_err(failed)?.is_some() {
            fs::remove_file(&path).map_err(failed)?;
        }
        make_pipe(&path).map_err(failed)?;
        // The pipe is opened for reading and writing, so that opening does not wait for the others.
        let mut pipe = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        pipe.write_all(b"1").map_err(failed)?;
        Ok(Some(Self { path, _pipe: pipe }))
    }

    /// Publishes the exit code for the others.
    pub fn end(self, code: u8) -> Result<(), SlurmError> {
        let written = self.path.with_extension("code");
        let failed = |source| SlurmError::Wait { path: written.clone(), source };
        fs::write(&written, code.to_string()).map_err(failed)?;
        fs::rename(&written, &self.path).map_err(failed)
    }
}

/// Waits until the first task of this node has ended; returns its exit code.
pub fn follow(parent: &Path, allocation: &Allocation) -> Result<u8, SlurmError> {
    let path = shared_path(parent, allocation)?;
    follow_within(&path, AGENT_TIMEOUT)
}

fn follow_within(path: &Path, timeout: Duration) -> Result<u8, SlurmError> {
    let failed = |source| SlurmError::Wait { path: path.to_owned(), source };
    // Blocked signals stay pending for ever: only KILL and the end of the first task end this one.
    let blocked: SigSet = SIGNALS.into_iter().collect();
    blocked.thread_block().map_err(|errno| failed(errno.into()))?;
    if let Some(code) = code(path).map_err(failed)? {
        return Ok(code);
    }
    make_pipe(path).map_err(failed)?;
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    // A pipe that is still in place now was not replaced before it was opened here, so its hang-up will be noticed.
    if let Some(code) = code(path).map_err(failed)? {
        return Ok(code);
    }
    if !wait(&opened, PollFlags::POLLIN, Some(timeout)).map_err(failed)? {
        return Err(SlurmError::NoAgent { seconds: timeout.as_secs() });
    }
    wait(&opened, PollFlags::empty(), None).map_err(failed)?;
    code(path).map_err(failed)?.ok_or(SlurmError::AgentGone)
}

/// Waits for `events` or for a hang-up; returns false when neither came in time.
fn wait(pipe: &File, events: PollFlags, timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds = [PollFd::new(pipe.as_fd(), events)];
    wait_ready(&mut fds, timeout.map(|timeout| Instant::now() + timeout))?;
    Ok(fds[0].any().unwrap_or(true))
}

/// Returns the code in the file, when a file is in the pipe's place.
fn code(path: &Path) -> io::Result<Option<u8>> {
    let mut text = String::new();
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_file() => {
            File::open(path)?.take(4).read_to_string(&mut text)?;
            text.trim().parse().map(Some).map_err(|_| io::Error::other("it holds no exit code"))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes files of steps that ended long ago; a file that stays does no harm.
fn forget_old(folder: &Path) {
    let old = |entry: &fs::DirEntry| {
        let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|age| age > KEPT)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(old) {
        let _stays = fs::remove_file(entry.path());
    }
}

/// Makes a named pipe at the path, unless another task made it first.
fn make_pipe(path: &Path) -> io::Result<()> {
    match mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) => Ok(()),
        Err(Errno::EEXIST) if fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_fifo()) => Ok(()),
        // The first task has ended in this moment.
        Err(Errno::EEXIST) if code(path)?.is_some() => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the path that the tasks of this node share, in a folder that only this user can enter.
fn shared_path(parent: &Path, allocation: &Allocation) -> Result<PathBuf, SlurmError> {
    let folder = parent.join(format!("enn-slurm-{}", geteuid()));
    let failed = |source| SlurmError::Wait { path: folder.clone(), source };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let there = fs::symlink_metadata(&folder).map_err(failed)?;
    if !there.is_dir() || there.uid() != geteuid().as_raw() || there.mode() & 0o077 != 0 {
        return Err(SlurmError::Foreign { path: folder });
    }
    let step = allocation.step_id.unwrap_or(0);
    let job = allocation.job_id;
    let restart = allocation.restart_count;
    let node = allocation.node_index;
    let srun = allocation.launcher_port.unwrap_or(0);
    Ok(folder.join(format!("{job}-{step}-{restart}-{node}-{srun}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, thread};

    fn task(local_id: u32) -> Allocation {
        let text = include_str!("captured/srun-n8-N4.task3.env");
        let mut variables: BTreeMap<String, String> =
            text.lines().filter_map(|line| line.split_once('=')).map(|(n, v)| (n.into(), v.into())).collect();
        variables.insert("SLURM_LOCALID".into(), local_id.to_string());
        Allocation::from(&variables).unwrap().unwrap()
    }

    #[test]
    fn followers_end_with_the_leaders_code_whenever_they_come() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().to_owned();
        let early = thread::spawn(move || follow(&parent, &task(1)));
        let leader = NodeLeader::announce(dir.path(), &task(0)).unwrap().unwrap();
        let parent = dir.path().to_owned();
        let beside = thread::spawn(move || follow(&parent, &task(1)));
        leader.end(7).unwrap();
        assert_eq!(early.join().unwrap().unwrap(), 7);
        assert_eq!(beside.join().unwrap().unwrap(), 7);
        assert_eq!(follow(dir.path(), &task(1)).unwrap(), 7);
    }

    #[test]
    fn what_a_step_with_the_same_numbers_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        NodeLeader::announce(dir.path(), &task(0)).unwrap().unwrap().end(3).unwrap();
        let leader = NodeLeader::announce(dir.path(), &task(0)).unwrap().unwrap();
        let parent = dir.path().to_owned();
        let follower = thread::spawn(move || follow(&parent, &task(1)));
        leader.end(0).unwrap();
        assert_eq!(follower.join().unwrap().unwrap(), 0);
    }

    #[test]
    fn a_leader_that_is_killed_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().to_owned();
        let leader = NodeLeader::announce(dir.path(), &task(0)).unwrap().unwrap();
        let follower = thread::spawn(move || follow(&parent, &task(1)));
        // What a kill does to it: the pipe is closed and no file comes.
        let path = leader.path.clone();
        while path.exists() && !follower.is_finished() && !being_read(&path) {
            thread::yield_now();
        }
        drop(leader);
        assert!(matches!(follower.join().unwrap(), Err(SlurmError::AgentGone)));
    }

    /// Whether somebody else of this process has the pipe open for reading only.
    fn being_read(path: &Path) -> bool {
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.filter(|link| fs::read_link(link.path()).is_ok_and(|target| target == path)).count() > 1
    }

    #[test]
    fn a_leader_that_never_comes_is_not_waited_for_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let error = follow_within(&dir.path().join("1.0.0.0"), Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, SlurmError::NoAgent { .. }), "{error}");
    }

    #[test]
    fn one_task_needs_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let alone = Allocation { tasks_per_node: vec![1; 4], ..task(0) };
        assert!(NodeLeader::announce(dir.path(), &alone).unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        DirBuilder::new().mode(0o755).create(dir.path().join(format!("enn-slurm-{}", geteuid()))).unwrap();
        assert!(matches!(NodeLeader::announce(dir.path(), &task(0)), Err(SlurmError::Foreign { .. })));
    }
}
