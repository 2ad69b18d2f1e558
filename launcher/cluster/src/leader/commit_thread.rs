//! The thread that commits checkpoints: hashing and fsync must not delay the notice of a death.
//!
//! **Invariant:** requests are carried out in the order in which they came, and each that has an answer gets one.

use super::{
    checkpoints::{CheckpointFailure, Checkpoints},
    fence::Fence,
};
use crate::{
    node_agent::background::{AnswerSender, JobThread},
    node_agent::error::AgentError,
    supervisor::{
        CompleteCheckpoint,
        effect::{EffectKind, PredictedChunk},
        input::{CommitFailure, CommittedCheckpoint, FindFailure, Input},
    },
};
use crossbeam_channel::Receiver;
use enn_common::{
    checkpoint::listing::FindError,
    fs::{atomic, space},
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Longest wait at the end for what is under way. The supervisor has waited for commits before; this one is for a disk that hangs.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest wait of a commit for the events before it to be in the journal.
const JOURNAL_WAIT_MAX: Duration = Duration::from_secs(10);

/// The store, which the jobs of one thread share.
type SharedStore = Arc<Mutex<Box<dyn Checkpoints>>>;

pub(crate) struct CommitThread {
    store: SharedStore,
    fence: Fence,
    thread: JobThread,
    answers: AnswerSender<Input>,
}

impl CommitThread {
    /// Starts the thread; it answers by inputs of the supervisor.
    pub(crate) fn start(
        mut store: Box<dyn Checkpoints>,
        fence: Fence,
        answers: AnswerSender<Input>,
    ) -> Result<Self, AgentError> {
        store.set_fence(fence.clone());
        let thread = JobThread::start("enn-committer", END_WAIT_MAX)?;
        Ok(Self { store: Arc::new(Mutex::new(store)), fence, thread, answers })
    }

    /// Does `job` with the store and sends its answer. When too many jobs wait, `refused` is the answer.
    fn submit(
        &self,
        refused: Option<Input>,
        job: impl FnOnce(&mut dyn Checkpoints, &Fence) -> Option<Input> + Send + 'static,
    ) {
        let store = Arc::clone(&self.store);
        let fence = self.fence.clone();
        let answers = self.answers.clone();
        let work = move || {
            let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(answer) = job(store.as_mut(), &fence) {
                answers.send(answer);
            }
        };
        if !self.thread.submit(work) {
            refused.into_iter().for_each(|answer| self.answers.send(answer));
        }
    }

    /// Finds the newest checkpoint, behind the commits under way.
    pub(crate) fn find(&self) {
        let found = |result| Some(Input::CheckpointFound(result));
        self.submit(found(Err(FindFailure { error: TOO_SLOW.into(), none_whole: false })), move |store, _| {
            let failure = |error: CheckpointFailure| FindFailure {
                none_whole: error.is::<FindError>(),
                error: error.to_string(),
            };
            found(store.prepare().map_err(failure))
        });
    }

    /// Takes a damaged checkpoint from those that are found.
    pub(crate) fn set_aside(&self, path: PathBuf, file: Option<PathBuf>) {
        self.submit(Some(Input::CheckpointSetAside(Err(TOO_SLOW.into()))), move |store, _| {
            let result = store.set_aside(&path, file.as_deref());
            Some(Input::CheckpointSetAside(result.map_err(|error| error.to_string())))
        });
    }

    /// Makes the shards a checkpoint, once the events before it are in the journal, which `journaled` tells: the manifest says what they
    /// say of the model.
    pub(crate) fn commit(&self, shards: CompleteCheckpoint, journaled: Option<Receiver<()>>) {
        let step = shards.step;
        let ended = move |result| Some(Input::CommitEnded { step, result });
        let failure = CommitFailure { error: TOO_SLOW.into(), disk_full: false, fenced: false };
        self.submit(ended(Err(failure)), move |store, fence| {
            // Without the events the manifest says less of the model, and the checkpoint is as good.
            let _late = journaled.map(|journaled| journaled.recv_timeout(JOURNAL_WAIT_MAX));
            ended(commit_fenced(store, fence, &shards))
        });
    }

    /// Removes old checkpoints for one that does not fit.
    pub(crate) fn make_room(&self, coming: CompleteCheckpoint) {
        let made = |removed| Some(Input::RoomMade { removed });
        self.submit(made(false), move |store, fence| made(fence.holds() && store.make_room(&coming)));
    }

    /// Removes what `attempt` left unfinished of steps before `below`, behind the commits under way. A full queue leaves it to the next
    /// launch.
    pub(crate) fn discard(&self, attempt: String, below: u64) {
        self.submit(None, move |store, fence| {
            if fence.holds() {
                store.discard(&attempt, below);
            }
            None
        });
    }

    /// Notes durably that rows are predicted.
    pub(crate) fn note_chunk(&self, chunk: PredictedChunk) {
        let refused = Input::EffectFailed { effect: EffectKind::NoteChunk, error: TOO_SLOW.into() };
        self.submit(Some(refused), move |store, _| {
            store.predicted(&chunk);
            None
        });
    }

    /// Replaces a file of the run directory whole.
    pub(crate) fn write_file(&self, path: PathBuf, bytes: Vec<u8>) {
        let failed = |error: String| Some(Input::EffectFailed { effect: EffectKind::WriteRunFile, error });
        self.submit(failed(TOO_SLOW.into()), move |_, fence| {
            if !fence.holds() {
                return None;
            }
            let error = atomic::write(&path, &bytes).err()?;
            tracing::warn!("{error}");
            failed(error.to_string())
        });
    }
}

const TOO_SLOW: &str = "too many commits are under way: the disk is too slow";

fn commit_fenced(
    store: &mut dyn Checkpoints,
    fence: &Fence,
    shards: &CompleteCheckpoint,
) -> Result<CommittedCheckpoint, CommitFailure> {
    let result = match fence.check() {
        Ok(()) => store.commit(shards),
        Err(error) => Err(CheckpointFailure::from(error)),
    };
    result.map_err(|error| CommitFailure {
        disk_full: space::is_full(error.as_ref()),
        error: error.to_string(),
        fenced: !fence.holds(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node_agent::background::Inbox, supervisor::input::FoundCheckpoint};
    use crossbeam_channel::{bounded, unbounded};
    use enn_common::fs::FileError;
    use enn_process::run_dir::RunDir;

    /// A disk that says what it was asked for, and commits when it is told to.
    struct Asked {
        go: Receiver<bool>,
        asked: crossbeam_channel::Sender<String>,
    }

    impl Checkpoints for Asked {
        fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, CheckpointFailure> {
            let _sent = self.asked.send("prepare".into());
            Ok(None)
        }

        fn commit(&mut self, shards: &CompleteCheckpoint) -> Result<CommittedCheckpoint, CheckpointFailure> {
            let _sent = self.asked.send(format!("commit {}", shards.step));
            if self.go.recv() == Ok(true) {
                return Ok(CommittedCheckpoint { path: shards.dir.clone(), bytes: 1, metric: None });
            }
            let full = std::io::Error::from_raw_os_error(nix::libc::ENOSPC);
            Err(Box::new(FileError::of("write", &shards.dir)(full)))
        }

        fn discard(&mut self, attempt: &str, below: u64) {
            let _sent = self.asked.send(format!("discard {attempt} below {below}"));
        }
    }

    fn shards(step: u64) -> CompleteCheckpoint {
        let dir = format!("/c/.step-{step:08}.tmp-1-a").into();
        let attempt = "1-a".to_owned();
        CompleteCheckpoint { step, epoch: 1, attempt, dir, metric: None, blocked: 0.0, tables: Vec::new() }
    }

    #[test]
    fn requests_are_done_in_order_behind_a_slow_commit() {
        let (go, go_in) = unbounded();
        let (asked_in, asked) = unbounded();
        let inbox = Inbox::new().unwrap();
        let store = Box::new(Asked { go: go_in, asked: asked_in });
        let thread = CommitThread::start(store, Fence::default(), inbox.sender()).unwrap();
        let (journal, journaled) = bounded(1);
        thread.commit(shards(5), Some(journaled));
        thread.discard("1-a".into(), 5);
        thread.commit(shards(6), None);
        thread.find();
        assert!(asked.is_empty());
        journal.send(()).unwrap();
        go.send(true).unwrap();
        go.send(false).unwrap();
        drop(thread);
        assert_eq!(asked.try_iter().collect::<Vec<_>>(), ["commit 5", "discard 1-a below 5", "commit 6", "prepare"]);
        let answers = inbox.take();
        let [
            Input::CommitEnded { step: 5, result: Ok(_) },
            Input::CommitEnded { step: 6, result: Err(failure) },
            Input::CheckpointFound(Ok(None)),
        ] = &answers[..]
        else {
            panic!("{answers:?}")
        };
        assert!(failure.disk_full && !failure.fenced, "{failure:?}");
    }

    #[test]
    fn a_leader_that_lost_its_directory_asks_the_store_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create_at(&dir.path().join("run")).unwrap();
        let fence = Fence::begin(run.path(), run.witness().unwrap()).unwrap();
        let _successor = RunDir::take_over(run.path(), Duration::from_millis(10)).unwrap();
        let (asked_in, asked) = unbounded();
        let inbox = Inbox::new().unwrap();
        let store = Box::new(Asked { go: crossbeam_channel::never(), asked: asked_in });
        let thread = CommitThread::start(store, fence, inbox.sender()).unwrap();
        thread.commit(shards(5), None);
        thread.discard("1-a".into(), 5);
        thread.make_room(shards(5));
        let file = run.path().join("kernels.json");
        thread.write_file(file.clone(), b"{}".to_vec());
        drop(thread);
        let answers = inbox.take();
        let [Input::CommitEnded { result: Err(failure), .. }, Input::RoomMade { removed: false }] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(failure.fenced && asked.is_empty() && !file.exists(), "{failure:?}");
    }
}
