//! Uploads checkpoints of a run while it goes on: a thread of its own, the newest first, never in the way of training.
//!
//! **Invariant:** at most one checkpoint waits; a newer one takes its place. What is uploaded are hard links, so that the run may
//! let the checkpoint go meanwhile.

use super::{
    RemoteError,
    pull::{CHECKPOINTS, steps, whole},
    push::{push, push_records},
    shelf::{still_ours, written},
    store::Store,
};
use enn_common::{
    checkpoint::{
        listing, name,
        retain::{Candidate, Rule, decide},
    },
    fs::{Disk, Storage, atomic},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
};

/// Beginning of the names of directories of links.
const LINKS: &str = ".mirror-";

/// Where checkpoints go.
pub struct Goal {
    /// The run's own address.
    pub address: String,
    /// By which rule old ones are let go there, where the run is kept; a mirror keeps all.
    pub home: Option<Rule>,
}

#[derive(Default)]
struct Waiting {
    next: Option<PathBuf>,
    over: bool,
}

/// The thread's handle. Dropping it waits until the newest checkpoint is up, or has failed.
pub struct Mirror {
    waiting: Arc<(Mutex<Waiting>, Condvar)>,
    warn: Arc<dyn Fn(String) + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    /// Begins; nothing is opened before the first checkpoint of `run`. Its configuration goes with it, so that what is at an address
    /// can be fetched as a run. `warn` hears of uploads that fail: the next checkpoint tries again.
    pub fn start(run: &Path, goals: Vec<Goal>, warn: impl Fn(String) + Send + Sync + 'static) -> std::io::Result<Self> {
        remove_leftovers(&listing::checkpoints_dir(run));
        let waiting: Arc<(Mutex<Waiting>, Condvar)> = Arc::default();
        let warn: Arc<dyn Fn(String) + Send + Sync> = Arc::new(warn);
        let theirs = waiting.clone();
        let tell = warn.clone();
        let run = run.to_path_buf();
        let thread = std::thread::Builder::new().name("enn-mirror".into());
        let thread = thread.spawn(move || serve((&goals, &run), &theirs, &*tell))?;
        Ok(Self { waiting, warn, thread: Some(thread) })
    }

    /// A checkpoint was committed.
    pub fn offer(&self, checkpoint: &Path) {
        match link(checkpoint) {
            Err(error) => (self.warn)(format!("{} is not uploaded: {error}", checkpoint.display())),
            Ok(links) => {
                let mut waiting = self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(older) = waiting.next.replace(links) {
                    remove(&older);
                }
                self.waiting.1.notify_one();
            }
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.waiting.0.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        self.waiting.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// A directory of hard links to the files of a checkpoint, in place of what an earlier process left under the name.
fn link(checkpoint: &Path) -> std::io::Result<PathBuf> {
    let parent = atomic::parent(checkpoint);
    let links = parent.join(format!("{LINKS}{}", checkpoint.file_name().unwrap_or_default().to_string_lossy()));
    remove(&links);
    fs::create_dir(&links)?;
    for entry in fs::read_dir(checkpoint)? {
        let entry = entry?;
        fs::hard_link(entry.path(), links.join(entry.file_name()))?;
    }
    Ok(links)
}

/// A leftover costs names, not bytes, as long as its checkpoint is there; the next run of the mirror tries again.
fn remove(links: &Path) {
    if links.exists() {
        let _ = Disk.remove_dir(links);
    }
}

fn serve((goals, run): (&[Goal], &Path), waiting: &(Mutex<Waiting>, Condvar), warn: &dyn Fn(String)) {
    loop {
        let mut state = waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.next.is_none() && !state.over {
            state = waiting.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(links) = state.next.take() else { return };
        drop(state);
        for goal in goals {
            if let Err(error) = upload(goal, run, &links) {
                let step = links.file_name().unwrap_or_default().to_string_lossy().replace(LINKS, "");
                warn(format!("{step} is not uploaded: {error}"));
            }
        }
        remove(&links);
    }
}

fn upload(goal: &Goal, run: &Path, links: &Path) -> Result<(), RemoteError> {
    let store = Store::open(&goal.address)?;
    let below = store.below(CHECKPOINTS);
    if goal.home.is_some() {
        still_ours(&store, run)?;
    }
    // A run that was resumed from an older step writes a step again; the newer one counts.
    push(links, &below, true, &mut |_, _| {})?;
    if let Some(rule) = goal.home {
        written(&store, run, links)?;
        let_go(&below, rule)?;
    }
    push_records(run, &store)
}

/// Removes what the rule lets go, and what was begun before the newest and never ended. What is damaged is left alone, and takes no one's
/// place.
fn let_go(checkpoints: &Store, rule: Rule) -> Result<(), RemoteError> {
    let mut candidates = Vec::new();
    for step in steps(checkpoints)?.1 {
        let place = checkpoints.below(&name::committed(step));
        if place.length(name::MANIFEST)?.is_none() {
            if !candidates.is_empty() {
                place.remove_checkpoint()?;
            }
            continue;
        }
        match whole(&place) {
            Ok((found, _)) => {
                let epoch = found.epoch;
                let time = found.wall_time;
                let metric = found.metric;
                candidates.push(Candidate { step, epoch, time, metric });
            }
            Err(error) if error.is_damage() => {}
            Err(error) => return Err(error),
        }
    }
    let mut goes = decide(&candidates, rule).into_iter().filter(|(_, reason)| !reason.keeps());
    goes.try_for_each(|(step, _)| checkpoints.below(&name::committed(step)).remove_checkpoint())
}

/// Removes links that a process left behind that is gone.
fn remove_leftovers(checkpoints: &Path) {
    for entry in fs::read_dir(checkpoints).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(LINKS)).and_then(name::step_of);
        if step.is_some() {
            remove(&entry.path());
        }
    }
}
