//! A curve that never grows beyond a bound: neighbouring points are averaged as it gets longer, and their extremes are kept.

/// Maximum number of points that are kept.
const POINTS_MAX: usize = 2048;

/// Mean, least and greatest value of neighbouring steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TracePoint {
    /// The last of the steps.
    pub step: u64,
    /// Time of the last step, seconds since the Unix epoch.
    pub time: f64,
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

/// A value over steps, thinned evenly.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Points, steps ascending.
    points: Vec<TracePoint>,
    /// Values averaged into one point.
    stride: u32,
    pending: PendingPoint,
    edits: u64,
}

/// The values that will be the next point.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PendingPoint {
    step: u64,
    count: u32,
    sum: f64,
    low: f64,
    high: f64,
}

impl Default for PendingPoint {
    fn default() -> Self {
        Self { step: 0, count: 0, sum: 0.0, low: f64::INFINITY, high: f64::NEG_INFINITY }
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self { points: Vec::new(), stride: 1, pending: PendingPoint::default(), edits: 0 }
    }
}

impl Trace {
    /// Adds the value of a step. A step that was passed before begins the curve again from there: the part after it was
    /// undone. A value that is not finite is left out.
    pub fn push(&mut self, step: u64, time: f64, value: f64) {
        self.undo_from(step);
        if !value.is_finite() {
            return;
        }
        let PendingPoint { count, sum, low, high, .. } = self.pending;
        self.pending =
            PendingPoint { step, count: count + 1, sum: sum + value, low: low.min(value), high: high.max(value) };
        if self.pending.count < self.stride {
            return;
        }
        let PendingPoint { count, sum, low, high, .. } = std::mem::take(&mut self.pending);
        self.points.push(TracePoint { step, time, mean: sum / f64::from(count), low, high });
        if self.points.len() >= POINTS_MAX {
            self.points = self.points.chunks(2).filter_map(Self::merged).collect();
            self.stride = self.stride.saturating_mul(2);
            self.edits += 1;
        }
    }

    /// Removes the part of the curve that begins with a step.
    pub fn undo_from(&mut self, step: u64) {
        if self.points.last().is_some_and(|last| last.step >= step) {
            self.points.retain(|point| point.step < step);
            self.pending = PendingPoint::default();
            self.edits += 1;
        }
        if self.pending.step >= step {
            self.pending = PendingPoint::default();
        }
    }

    /// Returns the points, steps ascending.
    pub fn points(&self) -> &[TracePoint] {
        &self.points
    }

    /// Returns how often points were removed or merged. As long as it is the same, points are only added.
    pub fn edits(&self) -> u64 {
        self.edits
    }

    fn merged(pair: &[TracePoint]) -> Option<TracePoint> {
        let sum: f64 = pair.iter().map(|point| point.mean).sum();
        let low = pair.iter().map(|point| point.low).fold(f64::INFINITY, f64::min);
        let high = pair.iter().map(|point| point.high).fold(f64::NEG_INFINITY, f64::max);
        pair.last().map(|last| TracePoint { mean: sum / pair.len() as f64, low, high, ..*last })
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
                trace.push(step, step as f64, step as f64);
            }
            let points = trace.points();
            prop_assert!(points.len() < POINTS_MAX);
            prop_assert!(points.windows(2).all(|pair| pair[0].step < pair[1].step && pair[0].mean < pair[1].mean));
            prop_assert!(points.iter().all(|point| point.mean >= 1.0 && point.mean <= point.step as f64));
            prop_assert!(steps - points[points.len() - 1].step < u64::from(trace.stride));
        }
    }

    #[test]
    fn extremes_survive_a_million_steps() {
        let mut trace = Trace::default();
        for step in 1..=1_000_000u64 {
            let value = match step {
                123_457 => 77.0,
                765_432 => -5.0,
                _ => 1.0,
            };
            trace.push(step, 0.5 * step as f64, value);
        }
        let points = trace.points();
        assert!(points.len() < POINTS_MAX && points.len() >= POINTS_MAX / 4, "{}", points.len());
        let around = |step: u64| points.iter().find(|point| point.step >= step).unwrap();
        assert_eq!((around(123_457).high, around(123_457).low), (77.0, 1.0));
        assert_eq!((around(765_432).high, around(765_432).low), (1.0, -5.0));
        assert!(points.iter().all(|point| point.time == 0.5 * point.step as f64));
    }

    #[test]
    fn an_undone_part_is_replaced() {
        let mut trace = Trace::default();
        let all = [(1, 9.0), (2, 8.0), (3, 7.0), (2, 6.0), (3, f64::NAN), (4, 5.0)];
        let mut edits = Vec::new();
        for (step, value) in all {
            trace.push(step, 0.0, value);
            edits.push(trace.edits());
        }
        let pairs: Vec<(u64, f64)> = trace.points().iter().map(|point| (point.step, point.mean)).collect();
        assert_eq!(pairs, [(1, 9.0), (2, 6.0), (4, 5.0)]);
        assert_eq!(edits, [0, 0, 0, 1, 1, 1]);
        trace.undo_from(5);
        assert_eq!(trace.points().len(), 3);
        trace.undo_from(2);
        assert_eq!((trace.points().len(), trace.edits()), (1, 2));
    }
}
