//! Kernels of the run: which are quarantined and which ran. The supervisor alone enters what workers report, and what a dead one
//! left behind.
//!
//! A fault is in force at once. Its entry is journaled when the digest of the worker program is known, which it names.

use enn_common::{
    event::EventKind,
    id::Rank,
    kernels::{KernelBook, KernelFault, Quarantine},
};

/// The book, and what waits for the digest.
#[derive(Debug)]
pub(super) struct KernelRecords {
    pub(super) book: KernelBook,
    /// Digest of the worker program; `None`: not known yet.
    build: Option<String>,
    asked: bool,
    /// Entries that have no digest yet, with the ranks that reported them, in order.
    unnamed: Vec<(Rank, Quarantine)>,
}

impl KernelRecords {
    pub(super) fn new(book: KernelBook) -> Self {
        Self { book, build: None, asked: false, unnamed: Vec::new() }
    }

    /// Enters a fault; returns whether it is new.
    pub(super) fn enter(&mut self, rank: Rank, fault: KernelFault) -> bool {
        let build = self.build.clone().unwrap_or_default();
        let entry = self.book.enter(fault, &build).cloned();
        self.unnamed.extend(entry.iter().map(|entry| (rank, entry.clone())));
        entry.is_some()
    }

    /// Returns whether the digest of the worker program is needed, once.
    pub(super) fn needs_digest(&mut self) -> bool {
        let needs = self.build.is_none() && !self.unnamed.is_empty() && !self.asked;
        self.asked |= needs;
        needs
    }

    /// Notes the digest of the worker program.
    pub(super) fn digested(&mut self, digest: String) {
        for entry in self.book.quarantine.iter_mut().filter(|entry| entry.build.is_empty()) {
            entry.build.clone_from(&digest);
        }
        self.build = Some(digest);
    }

    /// Returns the events of new entries that have their digest; with `all` also those that have none.
    pub(super) fn events(&mut self, all: bool) -> Vec<EventKind> {
        let Some(build) = self.build.clone().or_else(|| all.then(String::new)) else { return Vec::new() };
        let event = |(rank, entry): (Rank, Quarantine)| {
            let entry = Box::new(Quarantine { build: build.clone(), ..entry });
            EventKind::KernelQuarantined { rank, entry }
        };
        std::mem::take(&mut self.unnamed).into_iter().map(event).collect()
    }

    /// Returns the content of the file in the run directory.
    pub(super) fn file(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(&self.book).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::kernels::Fault;

    #[test]
    fn a_fault_is_in_force_at_once_and_named_when_the_digest_is_known() {
        let mut records = KernelRecords::new(KernelBook::default());
        let fault = Fault::Crash { how: "SIGSEGV".into() };
        let fault =
            KernelFault { op: "sdpa".into(), kernel: "flash".into(), sig: 7, operands: "f32".into(), fault, step: 3 };
        assert!(records.enter(Rank(1), fault.clone()));
        assert!(!records.enter(Rank(0), fault));
        assert_eq!(records.book.quarantined().entries.len(), 1);
        assert!(records.needs_digest() && !records.needs_digest());
        assert!(records.events(false).is_empty());
        records.digested("abc".into());
        let events = records.events(false);
        let [EventKind::KernelQuarantined { rank: Rank(1), entry }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((entry.build.as_str(), records.book.quarantined().entries[0].build.as_str()), ("abc", "abc"));
        assert!(records.events(true).is_empty());
    }
}
