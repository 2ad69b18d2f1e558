//! Uploads checkpoints of a run in a separate thread while it trains, the newest first.
//!
//! **Invariant:** at most one checkpoint waits; a newer one replaces it. Hard links are uploaded, so that the run may remove the checkpoint
//! meanwhile.

use super::{
    RemoteError,
    pull::{CHECKPOINTS, complete_manifest, steps},
    push::{push, push_records},
    remote_runs::{check_not_superseded, record_upload},
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

const LINKS: &str = ".mirror-";

pub struct UploadTarget {
    pub address: String,
    /// The rule for removing old checkpoints where the run is kept; `None` for a mirror, which keeps all.
    pub retention: Option<Rule>,
}

#[derive(Default)]
struct UploadQueue {
    next: Option<PathBuf>,
    over: bool,
}

/// The upload thread. Dropping it waits until the newest checkpoint is uploaded or has failed.
pub struct Mirror {
    waiting: Arc<(Mutex<UploadQueue>, Condvar)>,
    warn: Arc<dyn Fn(String) + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    /// Starts the thread; nothing is opened before the first checkpoint of `run`. The run's configuration is uploaded too, so that the run
    /// can be fetched. `warn` is called for failed uploads, which are tried again with the next checkpoint.
    pub fn start(
        run: &Path,
        targets: Vec<UploadTarget>,
        warn: impl Fn(String) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        remove_leftovers(&listing::checkpoints_dir(run));
        let waiting: Arc<(Mutex<UploadQueue>, Condvar)> = Arc::default();
        let warn: Arc<dyn Fn(String) + Send + Sync> = Arc::new(warn);
        let theirs = waiting.clone();
        let warn_in_thread = warn.clone();
        let run = run.to_path_buf();
        let thread = std::thread::Builder::new().name("enn-mirror".into());
        let thread = thread.spawn(move || upload_loop(&targets, &run, &theirs, &*warn_in_thread))?;
        Ok(Self { waiting, warn, thread: Some(thread) })
    }

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

/// Makes a directory of hard links to the files of a checkpoint, replacing one that an earlier process left.
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

/// Removes the links. A leftover uses no disk space while its checkpoint exists; the next upload tries again.
fn remove(links: &Path) {
    if links.exists() {
        let _ = Disk.remove_dir(links);
    }
}

fn upload_loop(targets: &[UploadTarget], run: &Path, waiting: &(Mutex<UploadQueue>, Condvar), warn: &dyn Fn(String)) {
    loop {
        let mut state = waiting.0.lock().unwrap_or_else(PoisonError::into_inner);
        while state.next.is_none() && !state.over {
            state = waiting.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(links) = state.next.take() else { return };
        drop(state);
        for target in targets {
            if let Err(error) = upload(target, run, &links) {
                let step = links.file_name().unwrap_or_default().to_string_lossy().replace(LINKS, "");
                warn(format!("{step} is not uploaded: {error}"));
            }
        }
        remove(&links);
    }
}

fn upload(target: &UploadTarget, run: &Path, links: &Path) -> Result<(), RemoteError> {
    let store = Store::open(&target.address)?;
    let below = store.below(CHECKPOINTS);
    if target.retention.is_some() {
        check_not_superseded(&store, run)?;
    }
    // A run that was resumed from an older step writes a step again; the newer one replaces it.
    push(links, &below, true, &mut |_, _| {})?;
    if let Some(rule) = target.retention {
        record_upload(&store, run, links)?;
        prune(&below, rule)?;
    }
    push_records(run, &store)
}

/// Removes checkpoints by the rule, and incomplete ones that are older than the newest. Damaged checkpoints are kept and not counted.
fn prune(checkpoints: &Store, rule: Rule) -> Result<(), RemoteError> {
    let mut candidates = Vec::new();
    for step in steps(checkpoints)?.1 {
        let place = checkpoints.below(&name::committed(step));
        if place.length(name::MANIFEST)?.is_none() {
            if !candidates.is_empty() {
                place.remove_checkpoint()?;
            }
            continue;
        }
        match complete_manifest(&place) {
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

fn remove_leftovers(checkpoints: &Path) {
    for entry in fs::read_dir(checkpoints).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(LINKS)).and_then(name::step_of);
        if step.is_some() {
            remove(&entry.path());
        }
    }
}
