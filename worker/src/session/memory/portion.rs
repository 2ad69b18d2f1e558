//! How many rows are computed at once where no gradient is wanted: no more than memory is known to hold, and half as many from where it
//! was short.
//!
//! **Invariant:** a portion that found no room leaves nothing behind, so that every row counts once.

use super::{autobatch::Fit, host_memory};
use crate::session::{SessionError, report::Reporter};
use enn_common::{fs::memory, wire::message::FromWorker};
use std::{cell::Cell, ops::Range};

/// A portion that needs fewer bytes is computed without a look at what there is.
const LOOKED_AT_MIN: u64 = 64 << 20;

/// Rows computed at once, at least 1.
#[derive(Debug)]
pub struct Portion {
    rows: Cell<u64>,
    need: Option<Need>,
}

/// Memory of a host that rows take. A host gives more than it has, and ends a process that takes it without a warning.
#[derive(Debug)]
struct Need {
    each: u64,
    /// Bytes that this process held before the first.
    held: u64,
    /// Bytes that are free, and that this process holds.
    look: fn() -> Option<(u64, u64)>,
}

impl Portion {
    /// A portion of at most so many rows.
    pub fn of(rows: u64) -> Self {
        Self { rows: Cell::new(rows.max(1)), need: None }
    }

    /// As many rows as were found to fit on a host where this process held so much before, and fewer where others have taken that
    /// memory.
    pub(crate) fn fitting(fit: &Fit, held: u64) -> Self {
        let look = || memory::available_bytes().zip(host_memory::held());
        Self { need: Some(Need { each: fit.needed / fit.rows.max(1), held, look }), ..Self::of(fit.rows) }
    }

    pub fn rows(&self) -> u64 {
        self.rows.get()
    }

    /// Does `work` with `rows`, a portion at a time. Where memory is short it is reported and halved; `work` must leave nothing of a portion
    /// with which it fails.
    ///
    /// # Errors
    /// Those of `work`, [`SessionError::NoRoom`] when there is none for one row, and when nobody listens any more.
    pub fn each(
        &self,
        rows: Range<u64>,
        reporter: &dyn Reporter,
        mut work: impl FnMut(Range<u64>) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let mut at = rows.start;
        while at < rows.end {
            let next = (at + self.rows()).min(rows.end);
            let tried = next - at;
            let reason = match self.need.as_ref().and_then(|need| need.shortage(tried)) {
                Some(reason) if tried > 1 => reason,
                _ => match work(at..next) {
                    Ok(()) => {
                        at = next;
                        continue;
                    }
                    Err(error) if error.is_out_of_memory() && tried > 1 => error.sentence(),
                    Err(error) => return Err(error.without_room("one row")),
                },
            };
            let fewer = tried / 2;
            let reason = reason.lines().next().unwrap_or_default();
            self.rows.set(fewer);
            let message = format!("no room for {tried} rows at once without gradients, {fewer} from now on: {reason}");
            reporter.send(FromWorker::Warned { message })?;
        }
        Ok(())
    }
}

impl Need {
    /// Why so many rows have no room just now.
    fn shortage(&self, rows: u64) -> Option<String> {
        let bytes = self.each.saturating_mul(rows);
        let (free, held) = (bytes >= LOOKED_AT_MIN).then(self.look).flatten()?;
        // What is kept of earlier portions is there for the next one.
        let room = free.saturating_add(held.saturating_sub(self.held));
        let [needed, left] = [bytes, room].map(|bytes| bytes as f64 / f64::from(1 << 20));
        (bytes > room).then(|| format!("they need {needed:.1} MiB, and {left:.1} MiB are left"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Recorder;
    use tch::TchError;

    /// Does what needs no more than so many rows at once; the rows that were done.
    fn done(portion: &Portion, room: u64, rows: Range<u64>, recorder: &Recorder) -> Result<Vec<u64>, SessionError> {
        let mut done = Vec::new();
        portion.each(rows, recorder, |rows| {
            if rows.end - rows.start > room {
                return Err(TchError::Torch("CUDA out of memory. Tried to allocate 3 GiB\nstack".to_owned()).into());
            }
            done.extend(rows);
            Ok(())
        })?;
        Ok(done)
    }

    #[test]
    fn short_memory_halves_the_rows_for_good_and_each_is_done_once() {
        let portion = Portion::of(256);
        let recorder = Recorder::default();
        assert_eq!(done(&portion, 70, 3..1000, &recorder).unwrap(), (3..1000).collect::<Vec<_>>());
        assert_eq!(portion.rows(), 64);
        let told = recorder.take();
        let [FromWorker::Warned { message }, FromWorker::Warned { .. }] = &told[..] else { panic!("{told:?}") };
        assert!(message.starts_with("no room for 256 rows at once without gradients, 128 from now on: "), "{message}");
        assert!(!message.contains("stack"), "{message}");
        assert_eq!(done(&portion, 70, 0..65, &recorder).unwrap().len(), 65);
        assert!(recorder.take().is_empty());
        assert_eq!(done(&Portion::of(0), 1, 0..3, &recorder).unwrap(), [0, 1, 2]);
    }

    thread_local! {
        /// Bytes that are free, and that this process holds.
        static MEMORY: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }

    #[test]
    fn fewer_rows_are_tried_where_others_have_taken_the_memory_and_what_is_kept_counts() {
        let mib = 1 << 20;
        let need = Need { each: 10 * mib, held: 500 * mib, look: || Some(MEMORY.get()) };
        let portion = Portion { need: Some(need), ..Portion::of(64) };
        let recorder = Recorder::default();
        // 640 MiB: what is free, or what is kept beside it.
        for memory in [(640 * mib, 0), (40 * mib, 1100 * mib)] {
            MEMORY.set(memory);
            assert_eq!(done(&portion, 64, 0..128, &recorder).unwrap().len(), 128);
        }
        assert!(recorder.take().is_empty());
        MEMORY.set((170 * mib, 400 * mib));
        assert_eq!(done(&portion, 64, 0..128, &recorder).unwrap(), (0..128).collect::<Vec<_>>());
        assert_eq!(portion.rows(), 16);
        let told = recorder.take();
        let [FromWorker::Warned { message }, FromWorker::Warned { .. }] = &told[..] else { panic!("{told:?}") };
        assert!(message.ends_with("32 from now on: they need 640.0 MiB, and 170.0 MiB are left"), "{message}");
        // The last rows are tried whatever there is, and small portions without a look.
        MEMORY.set((0, 0));
        assert_eq!(done(&portion, 64, 0..7, &recorder).unwrap().len(), 7);
        assert_eq!(portion.rows(), 3);
    }

    #[test]
    fn one_row_without_room_and_other_failures_end_it() {
        let portion = Portion::of(4);
        let recorder = Recorder::default();
        let error = done(&portion, 0, 0..9, &recorder).unwrap_err();
        let told = error.sentence();
        assert!(
            told.starts_with("no room for one row without gradients: ") && told.contains("CUDA out of memory"),
            "{told}"
        );
        // Nobody is to cut the batch of training because of it, or to try again.
        assert!(!error.is_out_of_memory() && error.is_lasting());
        assert_eq!(portion.rows(), 1);
        let other = portion.each(0..9, &recorder, |_| Err(TchError::Torch("shapes differ".to_owned()).into()));
        assert!(matches!(other, Err(SessionError::Torch(_))));
    }
}
