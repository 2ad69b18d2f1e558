//! A pool of threads that work on pieces in parallel and order the results.
//!
//! ```text
//! next (one at a time) → work (parallel) → order (one at a time, in the order of next) → after (parallel)
//! ```
//! **Invariant:** the result does not depend on the number of threads, and the reported error is that of the first piece that
//! failed in `work` or `order`. At most one piece per thread is in flight; since pieces are taken in order, the thread with the next
//! piece in order never waits. A save point is written when its piece and all earlier pieces have gone through `after`.

use super::StageError;
use std::{
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

/// Maximum reports of `order` that wait for the calling thread.
const REPORTS_MAX: usize = 64;

/// Writes a resume point; called once all that the point counts is written.
pub(crate) type SavePoint<'a> = Box<dyn FnOnce() -> Result<(), StageError> + Send + 'a>;

pub(crate) trait PoolSteps: Sync {
    type Item;
    type Work;
    /// State that `order` updates.
    type State: Send;
    /// Result of `order`, which knows its position in the output.
    type Placed;
    type Report: Send;

    /// Does the bulk of the work on a piece, in parallel. A failure is part of the result, which `order` sees in order.
    fn work(&self, item: Self::Item) -> Self::Work;

    fn order(&self, state: &mut Self::State, work: Self::Work) -> Result<(Self::Placed, Self::Report), StageError>;

    /// Does the work that only needs the order to be known, such as writing, in parallel.
    fn after(&self, _placed: Self::Placed) -> Result<(), StageError> {
        Ok(())
    }

    /// Makes a save point after a piece was ordered; `None` while none is due. The pool calls it once this piece and all earlier pieces
    /// have gone through `after`, and makes no other until then.
    fn save_point(&self, _state: &mut Self::State) -> Result<Option<SavePoint<'_>>, StageError> {
        Ok(None)
    }
}

struct PoolState<S> {
    state: S,
    next_index: u64,
    /// Number of leading pieces that have gone through `after`.
    all_through: u64,
    /// Indices of further pieces that have gone through `after`.
    through: BTreeSet<u64>,
    is_saving: bool,
    failed: Option<StageError>,
    stopped: bool,
}

impl<S> PoolState<S> {
    fn new(state: S) -> Self {
        let through = BTreeSet::new();
        Self { state, next_index: 0, all_through: 0, through, is_saving: false, failed: None, stopped: false }
    }

    fn mark_through(&mut self, index: u64) {
        self.through.insert(index);
        while self.through.remove(&self.all_through) {
            self.all_through += 1;
        }
    }
}

struct Shared<'a, T: PoolSteps, N> {
    steps: &'a T,
    next: Mutex<(u64, N)>,
    pool: Mutex<PoolState<T::State>>,
    moved: Condvar,
}

impl<T: PoolSteps, N> Shared<'_, T, N> {
    fn stop(&self, error: Option<StageError>) {
        let mut pool = lock(&self.pool);
        pool.stopped = true;
        if pool.failed.is_none() {
            pool.failed = error;
        }
        drop(pool);
        self.moved.notify_all();
    }
}

/// Runs all pieces of `next` through `steps` on `threads` threads, and calls `report` on the calling thread with the reports of `order`.
pub(crate) fn run<T, N>(
    threads: usize,
    next: N,
    steps: &T,
    state: T::State,
    report: &mut dyn FnMut(T::Report),
) -> Result<T::State, StageError>
where
    T: PoolSteps,
    N: FnMut() -> Result<Option<T::Item>, StageError> + Send,
{
    let pool = Mutex::new(PoolState::new(state));
    let shared = Shared { steps, next: Mutex::new((0, next)), pool, moved: Condvar::new() };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(REPORTS_MAX);
        for index in 0..threads.max(1) {
            let shared = &shared;
            let sender = sender.clone();
            let name = format!("stage-{index}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, move || work(shared, &sender));
            if let Err(cause) = spawned {
                shared.stop(Some(StageError::Thread { cause }));
                break;
            }
        }
        drop(sender);
        receiver.iter().for_each(&mut *report);
    });
    let pool = shared.pool.into_inner().unwrap_or_else(PoisonError::into_inner);
    match pool.failed {
        Some(error) => Err(error),
        None => Ok(pool.state),
    }
}

/// Stops the pool when its thread panics, so that no other thread waits for a piece that never comes.
struct StopOnPanic<'s, 'a, T: PoolSteps, N>(&'s Shared<'a, T, N>);

impl<T: PoolSteps, N> Drop for StopOnPanic<'_, '_, T, N> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop(None);
        }
    }
}

/// Locks a mutex, also after a panic of another thread, which the scope propagates.
fn lock<S>(mutex: &Mutex<S>) -> MutexGuard<'_, S> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work<T, N>(shared: &Shared<'_, T, N>, reports: &mpsc::SyncSender<T::Report>)
where
    T: PoolSteps,
    N: FnMut() -> Result<Option<T::Item>, StageError>,
{
    let _stop_on_panic = StopOnPanic(shared);
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
        let Some((placed, report, save)) = order_next(shared, index, work) else { return };
        // The calling thread drains the channel until all senders are gone, so this does not fail.
        let _ = reports.send(report);
        if let Err(error) = shared.steps.after(placed).and_then(|()| finish_item(shared, index, save)) {
            return shared.stop(Some(error));
        }
    }
}

/// Notes that a piece is through, and calls its save point once all earlier pieces are through, too.
fn finish_item<T: PoolSteps, N>(
    shared: &Shared<'_, T, N>,
    index: u64,
    save: Option<SavePoint<'_>>,
) -> Result<(), StageError> {
    let mut pool = lock(&shared.pool);
    pool.mark_through(index);
    shared.moved.notify_all();
    let Some(save) = save else { return Ok(()) };
    while pool.all_through <= index && !pool.stopped {
        pool = shared.moved.wait(pool).unwrap_or_else(PoisonError::into_inner);
    }
    if pool.stopped {
        return Ok(());
    }
    drop(pool);
    save()?;
    lock(&shared.pool).is_saving = false;
    Ok(())
}

type OrderedItem<'a, T> = (<T as PoolSteps>::Placed, <T as PoolSteps>::Report, Option<SavePoint<'a>>);

/// Waits until piece `index` is next and orders it; `None` when the pool has stopped.
fn order_next<'a, T: PoolSteps, N>(
    shared: &Shared<'a, T, N>,
    index: u64,
    work: Result<T::Work, StageError>,
) -> Option<OrderedItem<'a, T>> {
    let mut pool = lock(&shared.pool);
    while pool.next_index != index && !pool.stopped {
        pool = shared.moved.wait(pool).unwrap_or_else(PoisonError::into_inner);
    }
    if pool.stopped {
        return None;
    }
    let ordered = work.and_then(|work| {
        let (placed, report) = shared.steps.order(&mut pool.state, work)?;
        let save = if pool.is_saving { None } else { shared.steps.save_point(&mut pool.state)? };
        Ok((placed, report, save))
    });
    pool.next_index += 1;
    pool.is_saving |= ordered.as_ref().is_ok_and(|(_, _, save)| save.is_some());
    drop(pool);
    match ordered {
        Ok(ordered) => {
            shared.moved.notify_all();
            Some(ordered)
        }
        Err(error) => {
            shared.stop(Some(error));
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

    impl PoolSteps for Squares {
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

        fn save_point(&self, state: &mut Vec<u64>) -> Result<Option<SavePoint<'_>>, StageError> {
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
