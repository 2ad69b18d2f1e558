//! Ending a group from any thread: before it is formed, while it forms, and while its owner waits in it.

use super::{CommError, c10d::result::RawCut};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// What ends a group from any thread.
pub trait Cut: fmt::Debug + Send + Sync {
    /// Ends the group whatever is in flight: every collective begun here, and every later one, soon fails with
    /// [`CommError::Aborted`], and ranks that wait for this one get an error, too. Returns when that is on its way: at once
    /// for shared memory, in 10 ms per peer for Gloo, and in a few hundred for NCCL.
    ///
    /// May be called any number of times, and when the group is gone.
    fn cut(&self);
}

/// Leave to form a group: until when, and as long as nobody cuts it.
///
/// It stays tied to the group that is formed with it: a cut that comes while the group forms ends the forming, and one that
/// comes later ends the group. One group is formed with it, at most.
#[derive(Debug)]
pub struct Forming {
    deadline: Instant,
    line: Arc<Line>,
}

impl Forming {
    /// Forming may take so long from now on.
    #[must_use]
    pub fn within(timeout: Duration) -> Self {
        let now = Instant::now();
        // A limit beyond what a clock can say is none that anybody will see.
        let deadline = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
        Self { deadline, line: Arc::default() }
    }

    /// What ends the forming, and afterwards the group.
    #[must_use]
    pub fn cutter(&self) -> Box<dyn Cut> {
        self.line.cutter()
    }

    /// Leave to form one more group, which ends with the first: whoever cuts that one cuts this one.
    #[must_use]
    pub fn beside(&self, timeout: Duration) -> Self {
        let other = Self::within(timeout);
        self.line.bind(&other.line);
        other
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// What is to be said when forming failed: that it was cut, if it was.
    pub(super) fn failed(&self, (rank, size): (u32, u32), backend: &'static str, message: String) -> CommError {
        if self.line.is_cut() {
            CommError::Aborted { operation: "form", rank, size }
        } else {
            CommError::Form { backend, rank, size, message }
        }
    }
}

/// What a group and its cutters share.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) raw: RawCut,
    /// Of the group itself, beside c10d's.
    tied: Mutex<Vec<Weak<dyn Cut>>>,
    /// Of the groups that end with this one.
    others: Mutex<Vec<Arc<Self>>>,
}

impl Line {
    pub(super) fn is_cut(&self) -> bool {
        self.raw.is_cut()
    }

    pub(super) fn cutter(self: &Arc<Self>) -> Box<dyn Cut> {
        Box::new(Cutter(Arc::clone(self)))
    }

    /// A cut ends the waits of `tied` from now on; one that came before does so now.
    pub(super) fn tie<C: Cut + 'static>(&self, tied: &Arc<C>) {
        let weak: Weak<C> = Arc::downgrade(tied);
        self.tied.lock().unwrap_or_else(PoisonError::into_inner).push(weak);
        if self.is_cut() {
            tied.cut();
        }
    }

    /// A cut ends `other`, too; one that came before does so now.
    fn bind(&self, other: &Arc<Self>) {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(other));
        if self.is_cut() {
            other.cut();
        }
    }

    /// What is tied to this line and to those that end with it.
    fn cut_tied(&self) {
        let tied = self.tied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tied.iter().filter_map(Weak::upgrade).for_each(|tied| tied.cut());
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().for_each(|other| other.cut_tied());
    }

    fn cut(&self) {
        // NCCL's abort waits for the device, which may wait for what is tied. Once more behind the word: whoever ties something in between
        // has not seen it.
        self.cut_tied();
        self.raw.cut();
        self.cut_tied();
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().for_each(|other| other.cut());
    }
}

#[derive(Debug)]
struct Cutter(Arc<Line>);

impl Cut for Cutter {
    fn cut(&self) {
        self.0.cut();
    }
}

/// Of a group without others, in which nothing waits.
#[derive(Debug)]
pub(super) struct Nothing;

impl Cut for Nothing {
    fn cut(&self) {}
}
