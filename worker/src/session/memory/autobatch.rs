//! How many rows are computed at once, of a rank's share of a batch or of those to predict: as many as memory has room for. Pure but for
//! what the meter does.
//!
//! ```text
//! two probes ─► a line, bytes by rows ─► the most rows below the limit ─► where that is near the limit: a probe of just so many
//! ```
//! **Invariant:** time plays no part, and the global batch is not touched: memory decides how it is cut, never what it holds.

const PROBES: [u64; 2] = [1, 8];
/// Share of the free memory that a step may take: the rest is for workspaces, fragments and collectives.
const SHARE: f64 = 0.9;
/// A line is trusted up to this share of the limit, and up to so many times the rows of the larger probe; beyond, it is checked.
const TRUSTED: (f64, u64) = (0.5, 32);
/// Probes that check a line, at most; each that goes wrong halves the rows at least.
const CHECKS_MAX: usize = 8;

/// Measures steps on real rows.
pub(crate) trait MemoryMeter {
    /// Failure other than a lack of memory.
    type Error;

    /// Bytes that are free for a step.
    fn free(&mut self) -> Result<u64, Self::Error>;

    /// Most bytes that forward and backward over so many rows hold at once; `None` when there was no room for them.
    fn peak(&mut self, rows: u64) -> Result<Option<u64>, Self::Error>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Rows computed at once, at least 1.
    pub(crate) rows: u64,
    pub(crate) needed: u64,
    pub(crate) limit: u64,
}

impl Fit {
    /// Whether its limit is that of so many free bytes.
    pub(crate) fn is_within(&self, free: u64) -> bool {
        self.limit == (SHARE * free as f64) as u64
    }

    /// The numbers it comes from, `of` what memory.
    pub(crate) fn explanation(&self, of: &str) -> String {
        let [needed, limit] = [self.needed, self.limit].map(|bytes| bytes as f64 / f64::from(1 << 20));
        format!("they need {needed:.1} MiB, and 90 % of {of} are {limit:.1} MiB")
    }
}

/// The most rows, up to `share`, that fit below 90 % of the free memory.
pub(crate) fn fit<M: MemoryMeter>(meter: &mut M, share: u64) -> Result<Fit, M::Error> {
    let limit = (SHARE * meter.free()? as f64) as u64;
    let [few, more] = PROBES.map(|rows| rows.min(share.max(1)));
    let Some(base) = meter.peak(few)? else { return Ok(Fit { rows: 1, needed: limit, limit }) };
    let mut line = Line { base: (few, base), top: (few, base) };
    // Rows that are known to have room, and those that are looked at.
    let mut known = few;
    let mut rows = few;
    if more > few {
        if let Some(bytes) = meter.peak(more)? {
            line.top = (more, bytes);
            known = more;
            rows = most(share, |rows| line.at(rows) <= limit);
        } else {
            rows = more / 2;
        }
    }
    for check in 0..CHECKS_MAX {
        let needed = line.at(rows);
        let is_trusted = check == 0 && needed as f64 <= TRUSTED.0 * limit as f64 && rows <= TRUSTED.1 * known;
        if rows <= known || is_trusted {
            return Ok(Fit { rows, needed, limit });
        }
        match meter.peak(rows)? {
            Some(bytes) if bytes <= limit => return Ok(Fit { rows, needed: bytes, limit }),
            Some(bytes) => {
                line.top = (rows, bytes);
                rows = most(rows / 2, |rows| line.at(rows) <= limit);
            }
            None => rows /= 2,
        }
    }
    Ok(Fit { rows: 1, needed: base, limit })
}

/// The largest number in `1..=max` that holds, where those that hold come first; 1 when none does.
fn most(max: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let mut low = 1;
    let mut high = max.max(1);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Bytes by rows, through two points (rows, bytes).
#[derive(Debug, Clone, Copy)]
struct Line {
    base: (u64, u64),
    top: (u64, u64),
}

impl Line {
    fn at(&self, rows: u64) -> u64 {
        let base = self.base;
        let top = self.top;
        let span = top.0.saturating_sub(base.0).max(1);
        let each = top.1.saturating_sub(base.1) as f64 / span as f64;
        base.1.saturating_add((each * rows.saturating_sub(base.0) as f64).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// Memory of so many bytes in which rows cost what `cost` says.
    struct Fake<F> {
        free: u64,
        cost: F,
        probed: Vec<u64>,
    }

    impl<F: Fn(u64) -> u64> MemoryMeter for Fake<F> {
        type Error = Infallible;

        fn free(&mut self) -> Result<u64, Infallible> {
            Ok(self.free)
        }

        fn peak(&mut self, rows: u64) -> Result<Option<u64>, Infallible> {
            self.probed.push(rows);
            let bytes = (self.cost)(rows);
            Ok((bytes <= self.free).then_some(bytes))
        }
    }

    fn found(free: u64, share: u64, cost: impl Fn(u64) -> u64) -> (Fit, Vec<u64>) {
        let mut meter = Fake { free, cost, probed: Vec::new() };
        let Ok(fit) = fit(&mut meter, share);
        (fit, meter.probed)
    }

    #[test]
    fn a_share_that_clearly_fits_costs_two_small_probes() {
        let (fit, probed) = found(10_000, 32, |rows| 100 + 10 * rows);
        assert_eq!((fit, probed), (Fit { rows: 32, needed: 420, limit: 9_000 }, vec![1, 8]));
        assert_eq!(found(10_000, 1, |_| 100).1, [1]);
    }

    #[test]
    fn as_many_rows_as_nine_tenths_hold() {
        let (fit, probed) = found(10_000, 4096, |rows| 100 + 10 * rows);
        assert_eq!((fit.rows, fit.needed), (890, 9_000));
        assert_eq!(probed, [1, 8, 890]);
    }

    #[test]
    fn what_grows_faster_than_the_line_is_noticed_before_training() {
        let cost = |rows: u64| rows * rows;
        let (fit, probed) = found(10_000, 4096, cost);
        assert!(cost(fit.rows) <= 9_000 && fit.rows >= 30, "{fit:?} after {probed:?}");
        assert_eq!(found(1_000_000, 4096, |rows| if rows > 100 { u64::MAX } else { rows }).0.rows, 64);
        assert_eq!(found(1_000_000, 4096, |rows| rows).1, [1, 8, 4096]);
    }

    #[test]
    fn where_nothing_fits_one_row_is_tried() {
        assert_eq!(found(10, 64, |_| 100).0.rows, 1);
        assert_eq!(found(10, 64, |rows| rows * 9).0.rows, 1);
    }

    proptest! {
        #[test]
        fn what_is_found_fits_or_is_one_row(
            free in 1u64..1 << 40, share in 1u64..100_000, base in 0u64..1 << 34, each in 0u64..1 << 28, square in 0u64..1000,
        ) {
            let cost = |rows: u64| base + each * rows + square * rows * rows;
            let (fit, probed) = found(free, share, cost);
            prop_assert!((1..=share).contains(&fit.rows) && probed.len() <= 2 + CHECKS_MAX);
            prop_assert!(fit.rows == 1 || cost(fit.rows) <= free, "{fit:?} needs {}", cost(fit.rows));
            if square == 0 && fit.rows < share && fit.rows >= PROBES[1] {
                prop_assert!(cost(fit.rows + 1) as f64 > SHARE * free as f64 - each as f64 - 2.0, "{fit:?} is too little");
            }
        }
    }
}
