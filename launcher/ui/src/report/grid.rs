//! The output grid as people see it: entities down, time across.

use enn_common::staged::StagedMeta;

/// Which output cell is where. The second axis of the grid is time; all others together are entities. A grid of one axis is one entity.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    pub(super) entities: Vec<String>,
    pub(super) times: Vec<String>,
    /// Step between two times in the flat output.
    stride: usize,
}

impl Grid {
    pub(super) fn new(meta: &StagedMeta) -> Self {
        let labels = &meta.out_labels;
        match labels.as_slice() {
            [] => Self { entities: vec![String::new()], times: vec![], stride: 1 },
            [times] => Self { entities: vec![String::new()], times: times.clone(), stride: 1 },
            [first, times, rest @ ..] => {
                let mut inner = vec![String::new()];
                for axis in rest {
                    let joined = |name: &String| axis.iter().map(move |label| join(name, label)).collect::<Vec<_>>();
                    inner = inner.iter().flat_map(joined).collect();
                }
                let entities = first.iter().flat_map(|name| inner.iter().map(move |rest| join(name, rest))).collect();
                Self { entities, times: times.clone(), stride: inner.len() }
            }
        }
    }

    pub(super) fn cell(&self, entity: usize, time: usize) -> usize {
        let outer = entity / self.stride;
        let inner = entity % self.stride;
        (outer * self.times.len() + time) * self.stride + inner
    }

    /// The values of one entity over time.
    pub(super) fn series(&self, entity: usize, value: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
        (0..self.times.len()).map(|time| (time as f64, value(self.cell(entity, time)))).collect()
    }

    /// About `count` evenly spaced names along time.
    pub(super) fn time_ticks(&self, count: usize) -> Vec<(f64, String)> {
        let every = self.times.len().div_ceil(count.max(1)).max(1);
        // Hours read best in steps that divide a day.
        let every = if self.times.len() == 24 {
            [1, 2, 3, 4, 6, 8, 12].into_iter().find(|step| *step >= every).unwrap_or(24)
        } else {
            every
        };
        self.times.iter().enumerate().step_by(every).map(|(time, name)| (time as f64, name.clone())).collect()
    }
}

fn join(a: &str, b: &str) -> String {
    if a.is_empty() || b.is_empty() { format!("{a}{b}") } else { format!("{a} · {b}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_axis_is_time() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let labels = [names(&["JFK", "LGA"]), names(&["0h", "1h", "2h"]), names(&["low", "high"])];
        let grid = |axes: usize| {
            let meta = crate::report::fixture::meta_of(labels[..axes].to_vec());
            Grid::new(&meta)
        };
        let three = grid(3);
        assert_eq!(three.entities, ["JFK · low", "JFK · high", "LGA · low", "LGA · high"]);
        // (s, t, u) lies at (s·3 + t)·2 + u.
        assert_eq!((three.cell(0, 1), three.cell(1, 1), three.cell(3, 2)), (2, 3, 11));
        let two = grid(2);
        assert_eq!((two.entities.len(), two.cell(1, 2)), (2, 5));
        let one = grid(1);
        assert_eq!((one.entities.len(), one.times.len(), one.cell(0, 1)), (1, 2, 1));
    }
}
