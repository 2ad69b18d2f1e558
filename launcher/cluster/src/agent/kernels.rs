//! The run's kernels.json as the agent keeps it: it alone enters what workers tell, and what a dead one left behind.
//!
//! **Invariant:** a file that cannot be read costs its entries, never the run.

use super::cause::Evidence;
use enn_common::kernels::{self, Fault, KernelBook, KernelFault, OpKernels, Quarantine, Quarantined};
use enn_process::Exit;
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// The book and where it is kept.
#[derive(Debug)]
pub(super) struct Kernels {
    path: PathBuf,
    program: PathBuf,
    /// Digest of the worker program, once it was needed.
    build: Option<String>,
    book: KernelBook,
}

impl Kernels {
    /// What earlier launches of the run left, as far as it was seen with this worker program.
    pub(super) fn open(run_dir: &Path, program: &Path) -> Self {
        let path = run_dir.join(kernels::FILE);
        let mut kept = Self { book: read(&path), path, program: program.to_owned(), build: None };
        if !kept.book.quarantine.is_empty() {
            let build = kept.build();
            kept.book.keep_build(&build);
        }
        kept
    }

    /// For a round's assignments and for workers under way.
    pub(super) fn told(&self) -> Quarantined {
        self.book.quarantined()
    }

    /// Enters a fault; the entry when it is news.
    pub(super) fn faulted(&mut self, fault: KernelFault) -> Option<Quarantine> {
        let build = self.build();
        self.book.enter(fault, &build).cloned()
    }

    /// Notes that a kernel works again; the entry when it is news.
    pub(super) fn recovered(&mut self, op: &str, kernel: &str, sig: u64, step: u64) -> Option<Quarantine> {
        self.book.recover(op, kernel, sig, step).cloned()
    }

    /// Adds what ran.
    pub(super) fn ran(&mut self, ops: Vec<OpKernels>) {
        self.book.ran(ops);
    }

    /// The file's path and what it is to hold.
    pub(super) fn file(&self) -> (PathBuf, Vec<u8>) {
        (self.path.clone(), serde_json::to_vec_pretty(&self.book).unwrap_or_default())
    }

    fn build(&mut self) -> String {
        self.build.get_or_insert_with(|| digest(&self.program)).clone()
    }
}

/// The kernel that a worker ended with, when it died in its first launch on such operands: by a crash, or with words of
/// its own, which then are a device's that does not answer any more. A worker that others ended accuses no kernel.
pub(super) fn accused(evidence: &Evidence) -> Option<KernelFault> {
    let intent = evidence.intent.clone()?;
    let how = match (&evidence.words, evidence.exit) {
        (_, Some(Exit::Signal(number))) => kernels::crash(number)?.to_owned(),
        (Some(words), _) => words.lines().next().unwrap_or_default().to_owned(),
        _ => return None,
    };
    let enn_common::wire::control::Intent { op, kernel, sig, operands } = intent;
    Some(KernelFault { op, kernel, sig, operands, fault: Fault::Crash { how }, step: evidence.step })
}

fn read(path: &Path) -> KernelBook {
    let Ok(text) = std::fs::read(path) else { return KernelBook::default() };
    match serde_json::from_slice::<KernelBook>(&text) {
        Ok(book) if book.version == kernels::VERSION => book,
        Ok(book) => {
            let found = book.version;
            let expected = kernels::VERSION;
            tracing::warn!("{}: version {found}, expected {expected}; it is begun anew", path.display());
            KernelBook::default()
        }
        Err(error) => {
            tracing::warn!("{}: {error}; it is begun anew", path.display());
            KernelBook::default()
        }
    }
}

/// Digest of a program. One that cannot be read has none, and is then taken for the same.
fn digest(program: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    match File::open(program).and_then(|file| hasher.update_reader(file).map(|_| ())) {
        Ok(()) => hasher.finalize().to_hex().to_string(),
        Err(error) => {
            tracing::warn!("{}: {error}", program.display());
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::{
        id::Rank,
        wire::control::{Intent, Phase},
    };

    fn evidence(exit: Option<Exit>, words: Option<&str>) -> Evidence {
        let intent = Intent { op: "sdpa".into(), kernel: "flash".into(), sig: 7, operands: "f32".into() };
        Evidence {
            rank: Rank(1),
            words: words.map(str::to_owned),
            exit,
            done: false,
            phase: Phase::Compute,
            step: 3,
            intent: Some(intent),
            stderr: String::new(),
        }
    }

    #[test]
    fn a_crash_accuses_the_open_intent_and_a_kill_does_not() {
        let crash = accused(&evidence(Some(Exit::Signal(11)), None)).unwrap();
        assert_eq!((crash.kernel.as_str(), crash.sig, crash.step), ("flash", 7, 3));
        assert_eq!(crash.fault, Fault::Crash { how: "SIGSEGV".into() });
        assert!(accused(&evidence(Some(Exit::Signal(9)), None)).is_none());
        assert!(accused(&evidence(Some(Exit::Code(1)), None)).is_none(), "it lost its launcher");
        assert!(accused(&evidence(Some(Exit::Code(1)), Some("CUDA error: illegal address"))).is_some());
        assert!(accused(&Evidence { intent: None, ..evidence(Some(Exit::Signal(11)), None) }).is_none());
    }

    #[test]
    fn the_book_outlives_the_agent_but_not_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("worker");
        std::fs::write(&program, "one").unwrap();
        let mut kernels = Kernels::open(dir.path(), &program);
        let fault = accused(&evidence(Some(Exit::Signal(6)), None)).unwrap();
        assert_eq!(kernels.faulted(fault.clone()).map(|entry| entry.epoch), Some(1));
        assert_eq!(kernels.faulted(fault), None);
        let (path, bytes) = kernels.file();
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Kernels::open(dir.path(), &program).told(), kernels.told());
        std::fs::write(&program, "another").unwrap();
        let later = Kernels::open(dir.path(), &program).told();
        assert!(later.entries.is_empty());
        std::fs::write(&path, "not JSON").unwrap();
        assert_eq!(Kernels::open(dir.path(), &program).told(), Quarantined::default());
    }
}
