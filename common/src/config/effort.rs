//! What a step of training costs, estimated from sizes alone before one is taken, and the defaults that follow from it on a CPU.

use super::{
    RunConfig,
    forest::Part,
    model::{ModelConfig, SIZES},
    train::Device,
};

/// Seconds that the training of a run may take on a CPU of two cores, by the estimate, before smaller sizes are taken, and then fewer
/// passes over the rows.
const SECONDS_MAX: f64 = 60.0;
/// Passes that are left at least, where the rows ask for so many.
const PASSES_MIN: u64 = 2;
/// Operations on numbers a second of two cores with AVX2, beside what else a row takes; measured with all three sizes.
const OPERATIONS_PER_SECOND: f64 = 3e10;
/// Seconds of a row and of a step whatever the sizes.
const SECONDS_PER_ROW: f64 = 2e-5;
const SECONDS_PER_STEP: f64 = 2e-3;
/// Training rows below which the sizes and the batch are small by the rows alone.
const ROWS_MIN: u64 = 4096;
/// Samples of a step on so many rows: more and shorter steps learn more per row.
const BATCH: usize = 64;
/// The highest learning rate of such steps, times the width: 4e-3 at 32.
const RATE_TIMES_WIDTH: f64 = 0.128;
/// Numbers of a token's width that a block keeps for its backward pass; measured at a width of 128.
const KEPT_PER_TOKEN: f64 = 20.0;

/// Cost of forward and backward over one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowCost {
    pub operations: f64,
    /// Bytes of activations.
    pub bytes: f64,
}

impl RowCost {
    /// Of a model of these sizes (already [`ModelConfig::sized`]) with so many inputs and this output shape. Tasks beside the preset's
    /// templates count as the templates they are.
    #[must_use]
    pub fn of(model: &ModelConfig, inputs: usize, out_shape: &[usize]) -> Self {
        let width = model.d_model as f64;
        let square = width * width;
        let feed = 3.0 * width * (width * model.mlp_ratio * 2.0 / 3.0).floor();
        let block = 4.0 * square + feed;
        let mut products = 0.0;
        let mut kept = 0.0;
        let mut tokens = 0.0;
        for task in model.preset_tasks().iter().chain(model.tasks.tasks()) {
            let Part::Template(template) = &task.part else { continue };
            let count = template.tokens as f64;
            products += count * (template.depth as f64 * block + inputs as f64 * width);
            kept += count * template.depth as f64;
            tokens += count;
        }
        let latents = model.fuser_latents as f64;
        let rounds = model.fuser_rounds as f64;
        let read = 2.0 * square * (latents + tokens) + 2.0 * latents * tokens * width + latents * feed;
        let layers = model.fuser_self_layers as f64;
        products += rounds * (read + layers * latents * (block + 2.0 * latents * width));
        kept += rounds * latents * (1.0 + layers);
        let patches: f64 =
            out_shape.iter().enumerate().map(|(axis, &cells)| cells.div_ceil(patch_at(model, axis)) as f64).product();
        let depth = model.collector_depth as f64;
        products +=
            2.0 * square * (latents + patches) + 2.0 * patches * latents * width + patches * (feed + depth * block);
        kept += patches * (1.0 + depth);
        // A product and its two gradients; a multiplication and an addition each.
        Self { operations: 6.0 * products, bytes: kept * width * KEPT_PER_TOKEN * size_of::<f32>() as f64 }
    }
}

/// Estimated cost of the training of a run on a CPU of two cores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub steps: u64,
    /// Seconds of all steps.
    pub seconds: f64,
    /// Bytes of the activations of a step.
    pub step_bytes: f64,
}

impl Estimate {
    /// Of `config`, whose sizes are settled, with so many training rows, inputs and this output shape.
    #[must_use]
    pub fn of(config: &RunConfig, train_rows: u64, inputs: usize, out_shape: &[usize]) -> Self {
        let model = config.model.sized(train_rows, out_shape);
        let cost = RowCost::of(&model, inputs, out_shape);
        let batch = config.train.global_batch(train_rows as usize).max(1);
        let passes = config.train.passes(train_rows);
        let steps = passes * train_rows.div_ceil(batch as u64);
        let per_row = SECONDS_PER_ROW + cost.operations / OPERATIONS_PER_SECOND;
        let seconds = steps as f64 * SECONDS_PER_STEP + (passes * train_rows) as f64 * per_row;
        Self { steps, seconds, step_bytes: batch as f64 * cost.bytes }
    }
}

fn patch_at(model: &ModelConfig, axis: usize) -> usize {
    model.patch.get(axis).copied().unwrap_or(1).max(1)
}

impl RunConfig {
    /// The configuration with sizes, batch and learning rate that were left open chosen for so many training rows, inputs and this output
    /// shape, where a CPU trains on many rows: the largest sizes up to those of the rows with which training is estimated to stay
    /// below a minute of two cores, or the smallest with fewer passes over the rows. Everything else, and whatever was named, stays.
    ///
    /// It looks at the data and the kind of device, never at timing or the number of cores, so that every machine trains the same model.
    #[must_use]
    pub fn settled(&self, train_rows: u64, inputs: usize, out_shape: &[usize]) -> Self {
        if !self.model.by_rows || self.cluster.device == Device::Cuda || train_rows < ROWS_MIN {
            return self.clone();
        }
        let known = SIZES.iter().rev().map(|(least, _)| *least).filter(|least| *least <= train_rows);
        let mut sized = known.map(|least| self.with_sizes(least, out_shape));
        let is_soon = |config: &Self| Estimate::of(config, train_rows, inputs, out_shape).seconds <= SECONDS_MAX;
        let mut settled = sized.find(is_soon).unwrap_or_else(|| self.with_sizes(0, out_shape));
        if self.train.batch == 0 && self.train.rate_by_rows {
            settled.train.lr = RATE_TIMES_WIDTH / settled.model.d_model as f64;
        }
        settled.train.rate_by_rows = false;
        let passes = self.train.passes(train_rows);
        let seconds = Estimate::of(&settled, train_rows, inputs, out_shape).seconds;
        if self.train.epochs == 0 && seconds > SECONDS_MAX && passes > PASSES_MIN {
            settled.train.epochs = ((SECONDS_MAX / seconds * passes as f64) as u64).max(PASSES_MIN);
        }
        settled
    }

    /// With the sizes that go with so many rows, whatever the rows, and short steps unless the batch is named.
    fn with_sizes(&self, rows: u64, out_shape: &[usize]) -> Self {
        let mut sized = self.clone();
        sized.model = ModelConfig { by_rows: false, ..self.model.sized(rows, out_shape) };
        if self.train.batch == 0 {
            sized.train.batch = BATCH;
        }
        sized
    }

    /// Returns this configuration with the choices of the run `before` where this one leaves them open.
    #[must_use]
    pub fn after(&self, before: &Self) -> Self {
        let mut after = self.clone();
        if self.model.by_rows {
            after.model = before.model.clone();
        }
        if self.train.batch == 0 {
            after.train.batch = before.train.batch;
        }
        if self.train.rate_by_rows {
            after.train.lr = before.train.lr;
            after.train.rate_by_rows = before.train.rate_by_rows;
        }
        if self.train.epochs == 0 {
            after.train.epochs = before.train.epochs;
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{facts::Facts, raw::RawConfig, resolve};

    fn facts() -> Facts {
        Facts { cores: 8, gpus: 0, cuda_worker: false, cwd: "/home/u".into() }
    }

    fn config(text: &str) -> RunConfig {
        let raw = RawConfig::parse(text, std::path::Path::new("a.toml")).unwrap();
        resolve(&raw, &facts()).unwrap()
    }

    #[test]
    fn many_rows_on_a_cpu_train_small_sizes_in_short_steps() {
        let open = config("");
        for rows in [4_096, 70_000, 700_000] {
            let settled = open.settled(rows, 10, &[1]);
            let cost = RowCost::of(&settled.model, 10, &[1]);
            assert!((settled.model.d_model, settled.model.by_rows) == (32, false), "{rows}");
            assert_eq!((settled.train.batch, settled.train.lr), (64, 4e-3));
            assert!(cost.bytes * 64.0 < f64::from(100 << 20), "{cost:?}");
            assert_eq!(settled.settled(rows, 10, &[1]), settled);
            assert_eq!(open.after(&settled), settled);
        }
        assert_eq!(open.settled(4_095, 10, &[1]), open);
    }

    #[test]
    fn what_is_named_stays() {
        let sizes = config("[model]\nd_model = 64\n");
        assert_eq!(sizes.settled(70_000, 10, &[1]), sizes);
        let rate = config("[train]\nlr = 1e-3\n").settled(70_000, 10, &[1]);
        assert_eq!((rate.train.batch, rate.train.lr), (64, 1e-3));
        let batch = config("[train]\nbatch = 512\n").settled(70_000, 10, &[1]);
        assert_eq!((batch.train.batch, batch.train.lr), (512, 1e-3));
        let mut gpu = config("");
        gpu.cluster.device = Device::Cuda;
        assert_eq!(gpu.settled(70_000, 10, &[1]), gpu);
    }

    #[test]
    fn fewer_passes_are_made_where_the_smallest_sizes_take_long() {
        let passes = |text: &str, rows| config(text).settled(rows, 10, &[1]).train.passes(rows);
        assert_eq!([35_000, 70_000, 700_000, 7_000_000].map(|rows| passes("", rows)), [8, 4, 2, 1]);
        assert_eq!(passes("[train]\nepochs = 6\n", 70_000), 6);
        let before = config("").settled(70_000, 10, &[1]);
        assert_eq!(config("").after(&before).train.epochs, 4);
        assert_eq!(config("[train]\nepochs = 9\n").after(&before).train.epochs, 9);
    }

    #[test]
    fn larger_sizes_are_taken_where_they_are_done_soon() {
        let soon = config("[train]\nepochs = 1\n").settled(10_000, 10, &[1]);
        assert_eq!((soon.model.d_model, soon.train.batch, soon.train.lr), (64, 64, 2e-3));
        assert!(Estimate::of(&soon, 10_000, 10, &[1]).seconds <= SECONDS_MAX);
        let later = config("[train]\nepochs = 20\n").settled(10_000, 10, &[1]);
        assert_eq!((later.model.d_model, later.train.batch, later.train.lr), (32, 64, 4e-3));
    }

    #[test]
    fn the_estimate_of_a_run_is_near_what_it_took() {
        // Two cores take 75 and 400 s for 4 passes over 70,000 and 2 over 700,000 training rows of 10 numbers, when something else runs.
        let seconds = |rows| Estimate::of(&config("").settled(rows, 10, &[1]), rows, 10, &[1]).seconds;
        assert!((40.0..75.0).contains(&seconds(70_000)), "{}", seconds(70_000));
        assert!((180.0..500.0).contains(&seconds(700_000)), "{}", seconds(700_000));
        // The medium sizes took nine times as long for a row as the smallest.
        let sized = |rows| Estimate::of(&config("").with_sizes(rows, &[1]), 20_000, 10, &[1]).seconds;
        assert!((6.0..12.0).contains(&(sized(4096) / sized(0))), "{}", sized(4096) / sized(0));
    }

    #[test]
    fn the_estimate_is_near_what_was_counted() {
        // The profile of a step counted 3.75 million operations of linear layers a row.
        let smallest = RowCost::of(&config("").model.sized(0, &[1]), 12, &[1]);
        assert!((3.0e6..5.0e6).contains(&smallest.operations), "{smallest:?}");
        // 1,024 rows at the largest sizes took 7.8 GB.
        let largest = RowCost::of(&config("").model.sized(1 << 20, &[1]), 10, &[1]);
        assert!((5e9..11e9).contains(&(1024.0 * largest.bytes)), "{largest:?}");
    }
}
