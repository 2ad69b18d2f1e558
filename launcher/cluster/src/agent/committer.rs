//! Checkpoints are committed in a thread of their own: hashing and fsync must not delay the notice of a death.

use super::{
    error::AgentError,
    shards::ShardSet,
    spec::Chunk,
    staged::{self, Staged},
};
use crossbeam_channel::{Receiver, Sender, bounded};
use enn_common::fs::space::is_full;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

/// Commits waiting at one time; the broker has no more steps open.
const COMMITS_MAX: usize = 8;
/// Requests of all kinds waiting at one time.
const REQUESTS_MAX: usize = 1024;

/// A committed checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    pub step: u64,
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Validation metric.
    pub metric: Option<f64>,
}

/// The run's checkpoints as the agent sees them.
pub trait Checkpoints: Send {
    /// Before a round: removes what dead attempts left behind (never a committed checkpoint) and finds the newest
    /// committed one.
    fn prepare(&mut self) -> Result<Option<Committed>, Box<dyn std::error::Error + Send + Sync>>;

    /// Takes a checkpoint that a worker could not read, because of `file`, from those that are found, if it is damaged: what is
    /// wrong with it.
    fn set_aside(
        &mut self,
        _path: &Path,
        _file: Option<&Path>,
    ) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(None)
    }

    /// Makes the shards a checkpoint, whole or not at all, and lets old ones go.
    fn commit(&mut self, shards: &ShardSet) -> Result<Committed, Box<dyn std::error::Error + Send + Sync>>;

    /// Lets go now what need not stay when this checkpoint is there: there was no room for it. Whether anything went.
    fn make_room(&mut self, _coming: &ShardSet) -> bool {
        false
    }

    /// Removes what the workers of `attempt` wrote of steps before `below` and nobody will commit; other workers live and may
    /// write elsewhere.
    fn abandon(&mut self, _attempt: &str, _below: u64) {}

    /// Notes durably that rows are predicted, so that they need not be predicted again whatever happens.
    fn predicted(&mut self, _chunk: &Chunk) {}
}

type CommitResult = Result<Committed, Box<dyn std::error::Error + Send + Sync>>;

/// What came of a commit.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) step: u64,
    pub(super) result: CommitResult,
    pub(super) seconds: f64,
    pub(super) blocked: f64,
}

/// An answer that is waited for.
type Answer<T> = Sender<Result<T, Box<dyn std::error::Error + Send + Sync>>>;

enum Request {
    Prepare(Answer<Option<Committed>>),
    SetAside(PathBuf, Option<PathBuf>, Answer<Option<String>>),
    Commit(ShardSet, Vec<Staged>),
    Abandon(String, u64),
    Predicted(Chunk),
    Write(PathBuf, Vec<u8>),
}

/// The thread's handle. Dropping it waits for commits under way.
pub(super) struct Committer {
    requests: Option<Sender<Request>>,
    verdicts: Receiver<Verdict>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// Commits asked for and not answered.
    pub(super) pending: usize,
    /// Their steps.
    under_way: BTreeSet<u64>,
    /// Shares of steps that are under way already, from a later round: what counts if those fail.
    held: BTreeMap<u64, (ShardSet, Vec<Staged>)>,
}

impl Committer {
    pub(super) fn start(checkpoints: Box<dyn Checkpoints>) -> Result<Self, AgentError> {
        let system = |what| move |source| AgentError::System { what, source };
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| system("make an eventfd")(error.into()))?);
        let (requests, requests_in) = bounded(REQUESTS_MAX);
        let (verdicts_out, verdicts) = bounded(COMMITS_MAX);
        let signal = wake.clone();
        let thread = std::thread::Builder::new()
            .name("enn-committer".into())
            .spawn(move || serve(checkpoints, &requests_in, &verdicts_out, &signal))
            .map_err(system("start a thread"))?;
        let under_way = BTreeSet::new();
        let held = BTreeMap::new();
        Ok(Self { requests: Some(requests), verdicts, wake, thread: Some(thread), pending: 0, under_way, held })
    }

    /// Waits until commits under way are done, then prepares the round.
    pub(super) fn prepare(&self) -> Result<Option<Committed>, AgentError> {
        self.ask(Request::Prepare)
    }

    /// Takes a damaged checkpoint from those that are found: what is wrong with it, if anything is.
    pub(super) fn set_aside(&self, path: PathBuf, file: Option<PathBuf>) -> Result<Option<String>, AgentError> {
        self.ask(|answer| Request::SetAside(path, file, answer))
    }

    fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, AgentError> {
        let (answer_out, answer) = bounded(1);
        let requests = self.requests.as_ref().ok_or(AgentError::Committer)?;
        requests.send(request(answer_out)).map_err(|_| AgentError::Committer)?;
        answer.recv().map_err(|_| AgentError::Committer)?.map_err(AgentError::Checkpoints)
    }

    /// Begins a commit, after writing the shares that were left in memory; false when too many are under way. A round that was formed
    /// while the step was being committed may have saved it again: that waits for what becomes of the first.
    pub(super) fn commit(&mut self, shards: ShardSet, staged: Vec<Staged>) -> bool {
        let step = shards.step;
        if self.under_way.contains(&step) {
            if let Some((before, _)) = self.held.insert(step, (shards, staged)) {
                self.let_go(&before);
            }
            return true;
        }
        let request = Request::Commit(shards, staged);
        let sent = self.pending < COMMITS_MAX
            && self.requests.as_ref().is_some_and(|requests| requests.try_send(request).is_ok());
        self.pending += usize::from(sent);
        if sent {
            self.under_way.insert(step);
        }
        sent
    }

    /// Shares that are not needed.
    fn let_go(&self, shards: &ShardSet) {
        self.abandon(shards.attempt(), shards.step + 1);
    }

    /// Behind the commits under way: removes what `attempt` left unfinished of steps before `below`.
    pub(super) fn abandon(&self, attempt: String, below: u64) {
        if let Some(requests) = &self.requests {
            // A full queue leaves it to the next launch.
            let _full = requests.try_send(Request::Abandon(attempt, below));
        }
    }

    /// Notes a chunk. A disk that is slower than the workers slows the agent here.
    pub(super) fn predicted(&self, chunk: Chunk) {
        if let Some(requests) = &self.requests {
            let _gone = requests.send(Request::Predicted(chunk));
        }
    }

    /// Replaces a file whole. A disk that is slower than the workers slows the agent here.
    pub(super) fn write(&self, (path, bytes): (PathBuf, Vec<u8>)) {
        if let Some(requests) = &self.requests {
            let _gone = requests.send(Request::Write(path, bytes));
        }
    }

    /// The next verdict, if one waits.
    pub(super) fn verdict(&mut self) -> Option<Verdict> {
        loop {
            let verdict = self.verdicts.try_recv().ok()?;
            self.pending -= 1;
            self.under_way.remove(&verdict.step);
            let Some((shards, staged)) = self.held.remove(&verdict.step) else { return Some(verdict) };
            match &verdict.result {
                Ok(_) => self.let_go(&shards),
                Err(error) => {
                    tracing::warn!("checkpoint of step {}: {error}; the round behind it saved it again", verdict.step);
                    if self.commit(shards, staged) {
                        continue;
                    }
                }
            }
            return Some(verdict);
        }
    }

    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(super) fn clear_wake(&self) {
        // Nothing to read means nothing to clear.
        let _empty = self.wake.read();
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.requests = None;
        // The thread must not wait for room in a queue that nobody reads.
        drop(std::mem::replace(&mut self.verdicts, crossbeam_channel::never()));
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

fn serve(
    mut checkpoints: Box<dyn Checkpoints>,
    requests: &Receiver<Request>,
    verdicts: &Sender<Verdict>,
    wake: &EventFd,
) {
    for request in requests {
        match request {
            Request::Prepare(answer) => {
                let _gone = answer.send(checkpoints.prepare());
            }
            Request::SetAside(path, file, answer) => {
                let _gone = answer.send(checkpoints.set_aside(&path, file.as_deref()));
            }
            Request::Abandon(attempt, below) => checkpoints.abandon(&attempt, below),
            Request::Predicted(chunk) => checkpoints.predicted(&chunk),
            Request::Write(path, bytes) => {
                if let Err(error) = enn_common::fs::atomic::write(&path, &bytes) {
                    tracing::warn!("{error}");
                }
            }
            Request::Commit(mut shards, staged) => {
                let began = std::time::Instant::now();
                let result = commit_in_room(checkpoints.as_mut(), &staged, &mut shards);
                drop(staged);
                let seconds = began.elapsed().as_secs_f64();
                let _gone = verdicts.send(Verdict { step: shards.step, result, seconds, blocked: shards.blocked });
                let _full = wake.write(1);
            }
        }
    }
}

/// Commits; where that fails because the disk is full, once more when old checkpoints have made room. One that no later one makes up for is
/// tried once more in any case.
fn commit_in_room(checkpoints: &mut dyn Checkpoints, staged: &[Staged], shards: &mut ShardSet) -> CommitResult {
    let error = match commit(checkpoints, staged, shards) {
        Err(error) => error,
        done => return done,
    };
    let has_room = is_full(error.as_ref()) && checkpoints.make_room(shards);
    if !has_room && !staged.iter().any(|share| share.must) {
        return Err(error);
    }
    tracing::warn!("checkpoint of step {}: {error}; it is tried once more", shards.step);
    commit(checkpoints, staged, shards)
}

/// Writes the shares that were left in memory, and commits.
fn commit(checkpoints: &mut dyn Checkpoints, staged: &[Staged], shards: &mut ShardSet) -> CommitResult {
    staged::write_all(staged, &shards.dir, &mut shards.tables)?;
    checkpoints.commit(shards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::unbounded;
    use std::time::Duration;

    /// Commits when it is told to, well or badly, and says what it was asked for.
    struct Told {
        go: Receiver<bool>,
        asked: Sender<String>,
    }

    impl Checkpoints for Told {
        fn prepare(&mut self) -> Result<Option<Committed>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(None)
        }

        fn commit(&mut self, shards: &ShardSet) -> CommitResult {
            let _sent = self.asked.send(format!("commit {}", shards.dir.display()));
            match self.go.recv() {
                Ok(true) => Ok(Committed { step: shards.step, path: shards.dir.clone(), bytes: 1, metric: None }),
                _ => Err("the disk is full".into()),
            }
        }

        fn abandon(&mut self, attempt: &str, below: u64) {
            let _sent = self.asked.send(format!("abandon {attempt} below {below}"));
        }
    }

    fn set(attempt: &str) -> ShardSet {
        let dir = format!("/c/.step-00000005.tmp-{attempt}").into();
        ShardSet { step: 5, epoch: 1, dir, metric: None, blocked: 0.0, tables: Vec::new() }
    }

    /// What is asked of the checkpoints, and the verdicts' paths, when a step is saved by two rounds and the first commit ends so.
    fn twice(first_succeeds: bool) -> (Vec<String>, Vec<Option<PathBuf>>) {
        let (go_in, go) = unbounded();
        let (asked_in, asked) = unbounded();
        let mut committer = Committer::start(Box::new(Told { go, asked: asked_in })).unwrap();
        assert!(committer.commit(set("1-a"), Vec::new()));
        let mut all = vec![asked.recv_timeout(Duration::from_secs(10)).unwrap()];
        assert!(committer.commit(set("2-a"), Vec::new()), "while the first is under way");
        assert_eq!(committer.pending, 1);
        let mut verdicts = Vec::new();
        go_in.send(first_succeeds).unwrap();
        go_in.send(true).unwrap();
        while committer.pending > 0 {
            let arrived = committer.verdicts.len();
            match committer.verdict() {
                Some(verdict) => verdicts.push(verdict.result.ok().map(|committed| committed.path)),
                None if arrived == 0 => std::thread::yield_now(),
                None => {}
            }
        }
        drop(committer);
        all.extend(asked.try_iter());
        (all, verdicts)
    }

    /// A disk that is full until something is let go.
    struct Full {
        has_old: bool,
        asked: usize,
    }

    impl Checkpoints for Full {
        fn prepare(&mut self) -> Result<Option<Committed>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(None)
        }

        fn commit(&mut self, shards: &ShardSet) -> CommitResult {
            self.asked += 1;
            if self.asked == 1 {
                let full = std::io::Error::from_raw_os_error(nix::libc::ENOSPC);
                return Err(Box::new(enn_common::fs::FileError::of("write", &shards.dir)(full)));
            }
            Ok(Committed { step: shards.step, path: shards.dir.clone(), bytes: 1, metric: None })
        }

        fn make_room(&mut self, _: &ShardSet) -> bool {
            std::mem::take(&mut self.has_old)
        }
    }

    #[test]
    fn a_full_disk_is_tried_again_when_an_old_checkpoint_went() {
        let mut disk = Full { has_old: true, asked: 0 };
        assert_eq!(commit_in_room(&mut disk, &[], &mut set("a")).unwrap().step, 5);
        let mut disk = Full { has_old: false, asked: 0 };
        assert!(commit_in_room(&mut disk, &[], &mut set("a")).is_err());
        assert_eq!(disk.asked, 1);
    }

    #[test]
    fn a_step_that_is_being_committed_is_not_committed_again() {
        let (asked, verdicts) = twice(true);
        assert_eq!(asked, ["commit /c/.step-00000005.tmp-1-a", "abandon 2-a below 6"]);
        assert_eq!(verdicts, [Some("/c/.step-00000005.tmp-1-a".into())]);
    }

    #[test]
    fn what_a_later_round_saved_counts_when_the_first_commit_fails() {
        let (asked, verdicts) = twice(false);
        assert_eq!(asked, ["commit /c/.step-00000005.tmp-1-a", "commit /c/.step-00000005.tmp-2-a"]);
        assert_eq!(verdicts, [Some("/c/.step-00000005.tmp-2-a".into())]);
    }
}
