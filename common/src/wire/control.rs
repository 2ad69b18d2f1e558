//! The control page: 4096 bytes shared by launcher and worker, read and written with atomics, no system call.
//!
//! ```text
//! offset  field            writer     meaning
//!      0  magic      u64   launcher   `MAGIC`
//!      8  requests   u32   launcher   bit 0 (1): finish the step, checkpoint and end; bit 1 (2): finish the step, leave the round,
//!                                  say `Halted`; both: the end
//!     12  phase      u32   worker     `Phase`
//!     16  step       u64   worker     optimizer steps done
//!     24  heartbeat  u64   worker     CLOCK_MONOTONIC nanoseconds of the last step, phase change or part of a step
//!     32  rest             reserved
//!     40  intent     u64   worker     0 none, else the bytes of the intent's text: a kernel runs on such operands for the
//!                                  first time
//!     48  signature  u64   worker     the operands' signature
//!     56  text       424 B worker     operation, kernel and operands, separated by line feeds, UTF-8
//!    480  waited     u64   worker     nanoseconds this rank has waited for others since the round began
//!    488  staging    u64   launcher   not 0: it writes the shares of checkpoints that are left in the memory behind the page
//!    496  snapshots  16 B  both       a ticket each: 0 while the snapshot is the worker's
//!    512  rest             reserved
//! ```
//! A worker that dies with an open intent leaves it to be read: that kernel is not tried again on such operands.
//!
//! The launcher makes it as a memfd and the worker inherits the descriptor named by `ENN_CONTROL_FD`. Whoever maps it
//! (launcher/cluster/src/node_agent/unix.rs, the worker's boot) hands the mapping over as a slice of atomics; this file has no unsafe.

use std::sync::atomic::{AtomicU64, Ordering};

pub const PAGE_BYTES: usize = 4096;

/// First eight bytes, little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ENNctl01");

/// Activity of a worker; shown when a round fails ("what the others were doing").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Process started, libtorch loading.
    Boot = 0,
    /// Meeting the others in the store.
    Rendezvous = 1,
    Load = 2,
    Compute = 3,
    /// Waiting in a collective.
    Collective = 4,
    Validate = 5,
    Save = 6,
    Predict = 7,
    Done = 8,
}

impl Phase {
    /// All phases, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Boot,
        Self::Rendezvous,
        Self::Load,
        Self::Compute,
        Self::Collective,
        Self::Validate,
        Self::Save,
        Self::Predict,
        Self::Done,
    ];

    /// Describes the activity in words that follow "was".
    pub fn words(self) -> &'static str {
        match self {
            Self::Boot => "starting",
            Self::Rendezvous => "meeting the others",
            Self::Load => "reading a checkpoint",
            Self::Compute => "computing",
            Self::Collective => "waiting in a collective",
            Self::Validate => "validating",
            Self::Save => "writing a checkpoint",
            Self::Predict => "predicting",
            Self::Done => "ending",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("control page has {0} bytes, expected {PAGE_BYTES}")]
    Short(usize),
    /// Something else, or a launcher of another version.
    #[error("control page begins with {0:#018x}, expected {MAGIC:#018x} (are enn and enn-worker of one version?)")]
    Magic(u64),
}

const WORD_BYTES: usize = size_of::<AtomicU64>();
const WORD_MAGIC: usize = 0;
/// The requests are the low half, `phase` the high half.
const WORD_REQUESTS_PHASE: usize = 1;
const WORD_STEP: usize = 2;
const WORD_HEARTBEAT: usize = 3;
const WORD_INTENT: usize = 5;
const WORD_SIGNATURE: usize = 6;
const WORD_TEXT: usize = 7;
/// Words of the intent's text.
const TEXT_WORDS: usize = 53;
const WORD_WAITED: usize = WORD_TEXT + TEXT_WORDS;
const WORD_STAGING: usize = WORD_WAITED + 1;
const WORD_SNAPSHOT: usize = WORD_STAGING + 1;
/// Shares of checkpoints that a worker may have left with the launcher at one time.
pub const SNAPSHOTS_MAX: usize = 2;
/// Bytes of the intent's text; a longer one is cut.
pub const INTENT_BYTES_MAX: usize = TEXT_WORDS * WORD_BYTES;
const REQUESTS_MASK: u64 = 0xffff_ffff;
const REQUEST_STOP: u64 = 1;
const REQUEST_REGROUP: u64 = 2;

/// A kernel that was about to run for the first time on operands of a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    pub op: String,
    pub kernel: String,
    pub sig: u64,
    /// The operands in words.
    pub operands: String,
}

/// The page through its fields. Copy it freely: it is a reference.
#[derive(Debug, Clone, Copy)]
pub struct ControlPage<'a> {
    words: &'a [AtomicU64],
}

impl<'a> ControlPage<'a> {
    /// The launcher's view of a fresh, zeroed page: writes the magic.
    pub fn create(words: &'a [AtomicU64]) -> Result<Self, ControlError> {
        let page = Self::of(words)?;
        page.words[WORD_MAGIC].store(MAGIC, Ordering::Release);
        Ok(page)
    }

    /// The worker's view: checks the magic.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, ControlError> {
        let page = Self::of(words)?;
        match page.words[WORD_MAGIC].load(Ordering::Acquire) {
            MAGIC => Ok(page),
            other => Err(ControlError::Magic(other)),
        }
    }

    fn of(words: &'a [AtomicU64]) -> Result<Self, ControlError> {
        let bytes = size_of_val(words);
        if bytes < PAGE_BYTES {
            Err(ControlError::Short(bytes))
        } else {
            Ok(Self { words: &words[..PAGE_BYTES / WORD_BYTES] })
        }
    }

    /// Whether the launcher asked to finish the step, checkpoint and end.
    pub fn stop(self) -> bool {
        self.words[WORD_REQUESTS_PHASE].load(Ordering::Relaxed) & REQUEST_STOP != 0
    }

    /// Whether the launcher asked to finish the step and leave the round, so that others can join. The end comes first.
    pub fn regroup(self) -> bool {
        let requests = self.words[WORD_REQUESTS_PHASE].load(Ordering::Relaxed);
        requests & REQUEST_REGROUP != 0 && requests & REQUEST_STOP == 0
    }

    /// Launcher: ask for the end.
    pub fn set_stop(self) {
        self.words[WORD_REQUESTS_PHASE].fetch_or(REQUEST_STOP, Ordering::Relaxed);
    }

    /// Launcher: ask to leave the round.
    pub fn set_regroup(self) {
        self.words[WORD_REQUESTS_PHASE].fetch_or(REQUEST_REGROUP, Ordering::Relaxed);
    }

    /// Launcher: a new round begins, or nobody is to leave the old one any more.
    pub fn clear_regroup(self) {
        self.words[WORD_REQUESTS_PHASE].fetch_and(!REQUEST_REGROUP, Ordering::Relaxed);
    }

    /// Returns the worker's phase; an unknown number reads as `Boot`.
    pub fn phase(self) -> Phase {
        let number = self.words[WORD_REQUESTS_PHASE].load(Ordering::Relaxed) >> 32;
        Phase::ALL.into_iter().find(|phase| *phase as u64 == number).unwrap_or(Phase::Boot)
    }

    /// Worker: say what it is doing now. `now_ns` is CLOCK_MONOTONIC.
    pub fn set_phase(self, phase: Phase, now_ns: u64) {
        // The launcher may set a request in the same word at the same time.
        let _previous = self.words[WORD_REQUESTS_PHASE].fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some((word & REQUESTS_MASK) | ((phase as u64) << 32))
        });
        self.words[WORD_HEARTBEAT].store(now_ns, Ordering::Relaxed);
    }

    pub fn step(self) -> u64 {
        self.words[WORD_STEP].load(Ordering::Relaxed)
    }

    /// Worker: `step` optimizer steps are done. `now_ns` is CLOCK_MONOTONIC.
    pub fn set_step(self, step: u64, now_ns: u64) {
        self.words[WORD_STEP].store(step, Ordering::Relaxed);
        self.words[WORD_HEARTBEAT].store(now_ns, Ordering::Relaxed);
    }

    /// Worker: it makes progress within its step. `now_ns` is CLOCK_MONOTONIC.
    pub fn beat(self, now_ns: u64) {
        self.words[WORD_HEARTBEAT].store(now_ns, Ordering::Relaxed);
    }

    /// CLOCK_MONOTONIC nanoseconds of the last step, phase change or part of a step; 0 before the first.
    pub fn heartbeat_ns(self) -> u64 {
        self.words[WORD_HEARTBEAT].load(Ordering::Relaxed)
    }

    /// Nanoseconds the worker has waited for others since the round began.
    pub fn waited_ns(self) -> u64 {
        self.words[WORD_WAITED].load(Ordering::Relaxed)
    }

    /// Worker: has waited so long for others since the round began.
    pub fn set_waited(self, ns: u64) {
        self.words[WORD_WAITED].store(ns, Ordering::Relaxed);
    }

    /// Launcher: takes shares of checkpoints that are left in the memory behind this page, and writes them.
    pub fn offer_staging(self) {
        self.words[WORD_STAGING].store(1, Ordering::Relaxed);
    }

    /// Whether the launcher takes them.
    pub fn takes_staged(self) -> bool {
        self.words[WORD_STAGING].load(Ordering::Relaxed) != 0
    }

    /// Whether the `index`-th snapshot is the worker's to be overwritten.
    pub fn is_free(self, index: usize) -> bool {
        index < SNAPSHOTS_MAX && self.words[WORD_SNAPSHOT + index].load(Ordering::Acquire) == 0
    }

    /// Worker: the `index`-th snapshot is the launcher's until it gives `ticket` back; a number above 0 that is used once.
    pub fn hand_over(self, index: usize, ticket: u64) {
        if index < SNAPSHOTS_MAX {
            self.words[WORD_SNAPSHOT + index].store(ticket, Ordering::Release);
        }
    }

    /// Launcher: the snapshot with this ticket is the worker's again.
    pub fn give_back(self, ticket: u64) {
        for word in &self.words[WORD_SNAPSHOT..WORD_SNAPSHOT + SNAPSHOTS_MAX] {
            // Another one's stays.
            let _other = word.compare_exchange(ticket, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Worker: a kernel is about to run for the first time on such operands.
    pub fn open_intent(self, intent: &Intent) {
        let text = format!("{}\n{}\n{}", intent.op, intent.kernel, intent.operands);
        let mut bytes = text.as_bytes();
        bytes = &bytes[..bytes.len().min(INTENT_BYTES_MAX)];
        for (word, chunk) in self.words[WORD_TEXT..].iter().zip(bytes.chunks(WORD_BYTES)) {
            let mut padded = [0; WORD_BYTES];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        self.words[WORD_SIGNATURE].store(intent.sig, Ordering::Relaxed);
        // Last: a page with an open intent holds all of it.
        self.words[WORD_INTENT].store(bytes.len() as u64, Ordering::Release);
    }

    /// Worker: the kernel ran and the device has said so.
    pub fn close_intent(self) {
        self.words[WORD_INTENT].store(0, Ordering::Release);
    }

    /// Launcher: the intent that a dead worker left open.
    pub fn intent(self) -> Option<Intent> {
        let length = usize::try_from(self.words[WORD_INTENT].load(Ordering::Acquire)).ok()?;
        if length == 0 || length > INTENT_BYTES_MAX {
            return None;
        }
        let words = &self.words[WORD_TEXT..WORD_TEXT + TEXT_WORDS];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(length);
        let text = String::from_utf8_lossy(&bytes);
        let mut parts = text.splitn(3, '\n').map(str::to_owned);
        let op = parts.next()?;
        let kernel = parts.next()?;
        let sig = self.words[WORD_SIGNATURE].load(Ordering::Relaxed);
        Some(Intent { op, kernel, sig, operands: parts.next().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_disturb_each_other() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(ControlPage::open(&words).unwrap_err(), ControlError::Magic(0));
        let launcher = ControlPage::create(&words).unwrap();
        let worker = ControlPage::open(&words).unwrap();
        for phase in Phase::ALL {
            worker.set_phase(phase, 5);
            assert_eq!((launcher.phase(), launcher.stop()), (phase, false));
        }
        launcher.set_stop();
        assert!(worker.stop());
        worker.set_phase(Phase::Save, 9);
        worker.set_step(42, 10);
        assert!(worker.stop());
        assert_eq!((launcher.phase(), launcher.step(), launcher.heartbeat_ns()), (Phase::Save, 42, 10));
        worker.beat(12);
        assert_eq!((launcher.phase(), launcher.step(), launcher.heartbeat_ns()), (Phase::Save, 42, 12));
        // The layout promised at the head of the file, seen as bytes.
        let word = words[1].load(Ordering::Relaxed).to_le_bytes();
        assert_eq!(word, [1, 0, 0, 0, 6, 0, 0, 0]);
    }

    #[test]
    fn leaving_a_round_is_no_end_and_the_end_comes_first() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        let page = ControlPage::create(&words).unwrap();
        page.set_phase(Phase::Compute, 1);
        page.set_regroup();
        assert_eq!((page.regroup(), page.stop(), page.phase()), (true, false, Phase::Compute));
        assert_eq!(words[1].load(Ordering::Relaxed).to_le_bytes(), [2, 0, 0, 0, 3, 0, 0, 0]);
        page.set_stop();
        assert_eq!((page.regroup(), page.stop()), (false, true));
        page.clear_regroup();
        assert_eq!((page.regroup(), page.stop(), page.phase()), (false, true, Phase::Compute));
    }

    #[test]
    fn an_intent_is_there_until_it_is_closed_and_long_words_are_cut() {
        let words: Vec<AtomicU64> = (0..512).map(|_| AtomicU64::new(0)).collect();
        let page = ControlPage::create(&words).unwrap();
        assert_eq!(page.intent(), None);
        let sig = u64::MAX;
        let intent =
            |operands: &str| Intent { op: "sdpa".into(), kernel: "flash".into(), sig, operands: operands.into() };
        page.open_intent(&intent("f32 2×3"));
        assert_eq!(page.intent(), Some(intent("f32 2×3")));
        // The layout promised at the head of the file.
        assert_eq!(words[5].load(Ordering::Relaxed), "sdpa\nflash\nf32 2×3".len() as u64);
        assert_eq!(&words[7].load(Ordering::Relaxed).to_le_bytes(), b"sdpa\nfla");
        page.close_intent();
        assert_eq!(page.intent(), None);
        page.open_intent(&intent(&"x".repeat(4096)));
        assert_eq!(page.intent().unwrap().operands.len(), INTENT_BYTES_MAX - "sdpa\nflash\n".len());
        assert_eq!(words[7 + TEXT_WORDS].load(Ordering::Relaxed), 0);
        assert_eq!((page.step(), page.stop()), (0, false));
    }

    #[test]
    fn a_snapshot_belongs_to_one_side_at_a_time() {
        let words: Vec<AtomicU64> = (0..PAGE_BYTES / WORD_BYTES).map(|_| AtomicU64::new(0)).collect();
        let page = ControlPage::create(&words).unwrap();
        assert!(!page.takes_staged());
        page.offer_staging();
        assert!(page.takes_staged() && page.is_free(0) && page.is_free(1) && !page.is_free(SNAPSHOTS_MAX));
        page.hand_over(0, 3);
        page.hand_over(1, 4);
        assert!(!page.is_free(0) && !page.is_free(1));
        page.give_back(3);
        page.give_back(9);
        assert!(page.is_free(0) && !page.is_free(1));
    }

    #[test]
    fn a_short_mapping_is_refused() {
        let words: Vec<AtomicU64> = (0..511).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(ControlPage::create(&words).unwrap_err(), ControlError::Short(4088));
    }
}
