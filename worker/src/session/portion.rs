//! How many rows are computed at once where no gradient is wanted: no more than memory is known to hold, and half as many from where it
//! was short.
//!
//! **Invariant:** a portion that found no room leaves nothing behind, so that every row counts once.

use super::{SessionError, report::Reporter};
use enn_common::wire::message::FromWorker;
use std::{cell::Cell, ops::Range};

/// Rows computed at once, at least 1.
#[derive(Debug)]
pub struct Portion(Cell<u64>);

impl Portion {
    /// So many rows at most.
    pub fn of(rows: u64) -> Self {
        Self(Cell::new(rows.max(1)))
    }

    /// Rows computed at once from now on.
    pub fn rows(&self) -> u64 {
        self.0.get()
    }

    /// Does `work` with `rows`, a portion at a time. Where memory is short it is told, and halved; `work` must leave nothing of a portion
    /// with which it fails.
    ///
    /// # Errors
    /// Those of `work`, also when there is no room for one row, and when nobody listens any more.
    pub fn each(
        &self,
        rows: Range<u64>,
        reporter: &dyn Reporter,
        mut work: impl FnMut(Range<u64>) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let mut at = rows.start;
        while at < rows.end {
            let next = (at + self.rows()).min(rows.end);
            match work(at..next) {
                Ok(()) => at = next,
                Err(error) if error.is_out_of_memory() && next - at > 1 => {
                    let (tried, fewer) = (next - at, (next - at) / 2);
                    self.0.set(fewer);
                    let words = error.sentence();
                    let reason = words.lines().next().unwrap_or_default();
                    let message =
                        format!("no room for {tried} rows at once without gradients, {fewer} from now on: {reason}");
                    reporter.send(FromWorker::Warned { message })?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
        let (portion, recorder) = (Portion::of(256), Recorder::default());
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

    #[test]
    fn one_row_without_room_and_other_failures_end_it() {
        let (portion, recorder) = (Portion::of(4), Recorder::default());
        assert!(done(&portion, 0, 0..9, &recorder).unwrap_err().is_out_of_memory());
        assert_eq!(portion.rows(), 1);
        let other = portion.each(0..9, &recorder, |_| Err(TchError::Torch("shapes differ".to_owned()).into()));
        assert!(!other.unwrap_err().is_out_of_memory());
    }
}
