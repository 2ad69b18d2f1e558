//! Threads that work on pieces in parallel and hand them over in order.
//!
//! ```text
//! next (one at a time) → work (parallel) → order (one at a time, in the order of next) → after (parallel)
//! ```
//! **Invariant:** the result does not depend on the number of threads, and the error reported is the one of the first piece that
//! failed in `work` or `order`. At most one piece per thread is in flight; since pieces are taken in order, the thread whose turn
//! it is never waits. What is noted after a piece was ordered is kept when that piece and all before it are through.

use super::StageError;
use std::{
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

/// Reports of `order` that may wait for the calling thread.
const REPORTS_MAX: usize = 64;

/// Makes what was noted durable.
pub(crate) type Keep<'a> = Box<dyn FnOnce() -> Result<(), StageError> + Send + 'a>;

/// The steps a piece goes through after it was taken.
pub(crate) trait Steps: Sync {
    /// A piece.
    type Item;
    /// What `work` makes of it.
    type Work;
    /// What may only be touched in order.
    type State: Send;
    /// A piece that knows its place.
    type Placed;
    /// What the calling thread is told.
    type Report: Send;

    /// Does the bulk of the work on a piece. A failure is part of the result: it counts when its turn comes.
    fn work(&self, item: Self::Item) -> Self::Work;

    /// Takes the result in, in order.
    fn order(&self, state: &mut Self::State, work: Self::Work) -> Result<(Self::Placed, Self::Report), StageError>;

    /// Does what only needed the order to be known, such as writing to the right place.
    fn after(&self, placed: Self::Placed) -> Result<(), StageError>;

    /// Notes, between two pieces, what it takes to go on behind the first; `None` while it is not time to. What keeps the note is
    /// called once everything noted has gone through `after`, and no other is made until then.
    fn note(&self, _state: &mut Self::State) -> Result<Option<Keep<'_>>, StageError> {
        Ok(None)
    }
}

/// Where the crew stands.
struct Turn<S> {
    state: S,
    turn: u64,
    /// All pieces before this one are through, and those of `through`.
    all_through: u64,
    through: BTreeSet<u64>,
    /// Whether a note is being kept.
    is_keeping: bool,
    failed: Option<StageError>,
    stopped: bool,
}

impl<S> Turn<S> {
    fn new(state: S) -> Self {
        let through = BTreeSet::new();
        Self { state, turn: 0, all_through: 0, through, is_keeping: false, failed: None, stopped: false }
    }

    /// Takes down that a piece is through.
    fn pass(&mut self, index: u64) {
        self.through.insert(index);
        while self.through.remove(&self.all_through) {
            self.all_through += 1;
        }
    }
}

struct Shared<'a, T, N, S> {
    steps: &'a T,
    next: Mutex<(u64, N)>,
    turn: Mutex<Turn<S>>,
    moved: Condvar,
}

/// Runs all pieces of `next` through `steps` on `threads` threads; `report` sees what `order` returns, on the calling thread.
pub(crate) fn run<T, N>(
    threads: usize,
    next: N,
    steps: &T,
    state: T::State,
    report: &mut dyn FnMut(T::Report),
) -> Result<T::State, StageError>
where
    T: Steps,
    N: FnMut() -> Result<Option<T::Item>, StageError> + Send,
{
    let turn = Mutex::new(Turn::new(state));
    let shared = Shared { steps, next: Mutex::new((0, next)), turn, moved: Condvar::new() };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(REPORTS_MAX);
        for index in 0..threads.max(1) {
            let shared = &shared;
            let sender = sender.clone();
            let name = format!("stage-{index}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, move || work(shared, &sender));
            if let Err(cause) = spawned {
                stop(&shared.turn, &shared.moved, Some(StageError::Thread { cause }));
                break;
            }
        }
        drop(sender);
        receiver.iter().for_each(&mut *report);
    });
    let turn = shared.turn.into_inner().unwrap_or_else(PoisonError::into_inner);
    match turn.failed {
        Some(error) => Err(error),
        None => Ok(turn.state),
    }
}

/// Wakes everybody when its thread ends, also by a panic, so that no other thread waits for a turn that never comes.
struct Farewell<'a, S> {
    turn: &'a Mutex<Turn<S>>,
    moved: &'a Condvar,
}

impl<S> Drop for Farewell<'_, S> {
    fn drop(&mut self) {
        if thread::panicking() {
            stop(self.turn, self.moved, None);
        }
    }
}

fn stop<S>(turn: &Mutex<Turn<S>>, moved: &Condvar, error: Option<StageError>) {
    let mut turn = lock(turn);
    turn.stopped = true;
    if turn.failed.is_none() {
        turn.failed = error;
    }
    drop(turn);
    moved.notify_all();
}

/// A poisoned lock means that a thread panicked; the panic itself is passed on by the scope.
fn lock<S>(mutex: &Mutex<S>) -> MutexGuard<'_, S> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread.
fn work<T, N>(shared: &Shared<'_, T, N, T::State>, reports: &mpsc::SyncSender<T::Report>)
where
    T: Steps,
    N: FnMut() -> Result<Option<T::Item>, StageError>,
{
    let _farewell = Farewell { turn: &shared.turn, moved: &shared.moved };
    loop {
        let (index, item) = {
            let mut next = lock(&shared.next);
            let item = (next.1)();
            next.0 += 1;
            (next.0 - 1, item)
        };
        let work = match item {
            Ok(None) => return,
            Ok(Some(item)) => Ok(shared.steps.work(item)),
            Err(error) => Err(error),
        };
        let Some((placed, report, keep)) = in_turn(shared, index, work) else { return };
        // The calling thread drains the channel until all senders are gone, so this does not fail.
        let _ = reports.send(report);
        if let Err(error) = shared.steps.after(placed).and_then(|()| settle(shared, index, keep)) {
            return stop(&shared.turn, &shared.moved, Some(error));
        }
    }
}

/// A piece is through: keeps what was noted behind it, once those before it are through, too.
fn settle<T: Steps, N>(
    shared: &Shared<'_, T, N, T::State>,
    index: u64,
    keep: Option<Keep<'_>>,
) -> Result<(), StageError> {
    let mut turn = lock(&shared.turn);
    turn.pass(index);
    shared.moved.notify_all();
    let Some(keep) = keep else { return Ok(()) };
    while turn.all_through <= index && !turn.stopped {
        turn = shared.moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
    }
    if turn.stopped {
        return Ok(());
    }
    drop(turn);
    keep()?;
    lock(&shared.turn).is_keeping = false;
    Ok(())
}

/// What becomes of a piece in its turn.
type Ordered<'a, T> = (<T as Steps>::Placed, <T as Steps>::Report, Option<Keep<'a>>);

/// Waits for the turn of piece `index` and orders it; `None` when the crew has stopped.
fn in_turn<'a, T: Steps, N>(
    shared: &Shared<'a, T, N, T::State>,
    index: u64,
    work: Result<T::Work, StageError>,
) -> Option<Ordered<'a, T>> {
    let mut turn = lock(&shared.turn);
    while turn.turn != index && !turn.stopped {
        turn = shared.moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
    }
    if turn.stopped {
        return None;
    }
    let ordered = work.and_then(|work| {
        let (placed, report) = shared.steps.order(&mut turn.state, work)?;
        let keep = if turn.is_keeping { None } else { shared.steps.note(&mut turn.state)? };
        Ok((placed, report, keep))
    });
    turn.turn += 1;
    turn.is_keeping |= ordered.as_ref().is_ok_and(|(_, _, keep)| keep.is_some());
    drop(turn);
    match ordered {
        Ok(ordered) => {
            shared.moved.notify_all();
            Some(ordered)
        }
        Err(error) => {
            stop(&shared.turn, &shared.moved, Some(error));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Squares {
        after: AtomicU64,
        fail_at: Option<u64>,
        /// How many pieces the notes kept had behind them.
        kept: Mutex<Vec<usize>>,
    }

    impl Squares {
        fn new(fail_at: Option<u64>) -> Self {
            Self { after: AtomicU64::new(0), fail_at, kept: Mutex::default() }
        }
    }

    impl Steps for Squares {
        type Item = u64;
        type Work = Result<u64, StageError>;
        type State = Vec<u64>;
        type Placed = ();
        type Report = u64;

        fn work(&self, item: u64) -> Result<u64, StageError> {
            // Later pieces are quicker, so that the order is not kept by chance.
            (0..(200 - item) * 50).for_each(|i| {
                std::hint::black_box(i);
            });
            let fails = Some(item) == self.fail_at || item == 150;
            if fails { Err(StageError::NoTraining { samples: item }) } else { Ok(item * item) }
        }

        fn order(&self, state: &mut Vec<u64>, work: Result<u64, StageError>) -> Result<((), u64), StageError> {
            let square = work?;
            state.push(square);
            Ok(((), square))
        }

        fn after(&self, (): ()) -> Result<(), StageError> {
            self.after.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn note(&self, state: &mut Vec<u64>) -> Result<Option<Keep<'_>>, StageError> {
            let count = state.len();
            Ok(Some(Box::new(move || {
                assert!(self.after.load(Ordering::Relaxed) >= count as u64, "kept before all of it was through");
                self.kept.lock().unwrap().push(count);
                Ok(())
            })))
        }
    }

    fn counter(end: u64) -> impl FnMut() -> Result<Option<u64>, StageError> {
        let mut items = 0..end;
        move || Ok(items.next())
    }

    #[test]
    fn the_order_is_kept_for_any_number_of_threads() {
        for threads in [1, 2, 7] {
            let steps = Squares::new(None);
            let mut reports = Vec::new();
            let squares = run(threads, counter(100), &steps, Vec::new(), &mut |square| reports.push(square)).unwrap();
            assert_eq!(squares, (0..100).map(|i| i * i).collect::<Vec<u64>>());
            assert_eq!(steps.after.load(Ordering::Relaxed), 100);
            let kept = steps.kept.into_inner().unwrap();
            assert!(!kept.is_empty() && kept.is_sorted_by(|a, b| a < b), "{kept:?}");
            reports.sort_unstable();
            assert_eq!(reports, squares);
        }
    }

    #[test]
    fn the_first_failure_is_the_one_reported() {
        let steps = Squares::new(Some(37));
        for _ in 0..20 {
            let error = run(3, counter(200), &steps, Vec::new(), &mut |_| {}).unwrap_err();
            assert!(matches!(error, StageError::NoTraining { samples: 37 }), "{error}");
        }
    }

    #[test]
    fn a_failing_source_ends_the_run() {
        let steps = Squares::new(None);
        let mut left = 3;
        let next = move || {
            left -= 1;
            if left > 0 { Ok(Some(1)) } else { Err(StageError::NoFiles) }
        };
        assert!(matches!(run(2, next, &steps, Vec::new(), &mut |_| {}), Err(StageError::NoFiles)));
    }
}
