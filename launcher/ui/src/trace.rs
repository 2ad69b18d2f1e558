//! A curve that never grows beyond a bound: neighbouring points are averaged as it gets longer.

/// Maximum number of points that are kept.
const POINTS_MAX: usize = 1024;

/// Loss over steps, thinned evenly.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Step and mean loss, steps ascending.
    points: Vec<(u64, f64)>,
    /// Values averaged into one point.
    stride: u32,
    pending: (f64, u32),
}

impl Default for Trace {
    fn default() -> Self {
        Self { points: Vec::new(), stride: 1, pending: (0.0, 0) }
    }
}

impl Trace {
    /// Adds the value of a step. A step that was passed before begins the curve again from there: the part after it was
    /// undone. A value that is not finite is left out.
    pub fn push(&mut self, step: u64, value: f64) {
        if self.points.last().is_some_and(|last| last.0 >= step) {
            self.points.retain(|point| point.0 < step);
            self.pending = (0.0, 0);
        }
        if !value.is_finite() {
            return;
        }
        self.pending.0 += value;
        self.pending.1 += 1;
        if self.pending.1 < self.stride {
            return;
        }
        self.points.push((step, self.pending.0 / f64::from(self.pending.1)));
        self.pending = (0.0, 0);
        if self.points.len() >= POINTS_MAX {
            self.points = self.points.chunks(2).map(Self::merged).collect();
            self.stride = self.stride.saturating_mul(2);
        }
    }

    /// Step and mean loss, steps ascending.
    pub fn points(&self) -> &[(u64, f64)] {
        &self.points
    }

    fn merged(pair: &[(u64, f64)]) -> (u64, f64) {
        let sum: f64 = pair.iter().map(|point| point.1).sum();
        (pair.last().map_or(0, |point| point.0), sum / pair.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Bounded, ascending, within the values seen, and covering the run to within one stride of its end.
        #[test]
        fn a_trace_stays_bounded_and_true(steps in 1u64..20_000) {
            let mut trace = Trace::default();
            for step in 1..=steps {
                trace.push(step, step as f64);
            }
            let points = trace.points();
            prop_assert!(points.len() < POINTS_MAX);
            prop_assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
            prop_assert!(points.iter().all(|point| point.1 >= 1.0 && point.1 <= point.0 as f64));
            prop_assert!(steps - points[points.len() - 1].0 < u64::from(trace.stride));
        }
    }

    #[test]
    fn an_undone_part_is_replaced() {
        let mut trace = Trace::default();
        for (step, value) in [(1, 9.0), (2, 8.0), (3, 7.0), (2, 6.0), (3, f64::NAN), (4, 5.0)] {
            trace.push(step, value);
        }
        assert_eq!(trace.points(), [(1, 9.0), (2, 6.0), (4, 5.0)]);
    }
}
