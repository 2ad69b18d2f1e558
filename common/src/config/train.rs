//! Training, checkpoints and the cluster: what `[train]`, `[checkpoint]` and `[cluster]` mean after resolving.

pub use super::weights::CellWeights;

use super::names;
use serde::{Deserialize, Serialize};

/// Default of `TrainConfig::bucket_mib`. Measured with NCCL on 4 × H200: 1.4 GB of gradients take 8.2 ms in buckets of 25, 6.5 in
/// these, 6.2 in larger ones, of which the last is waited for longer.
pub const BUCKET_MIB: f64 = 100.0;

/// Validations of a run at least, where each has `VALIDATION_STEPS_MIN` steps.
const VALIDATIONS_MIN: u64 = 10;
const VALIDATION_STEPS_MIN: u64 = 100;

/// The level that is the point prediction.
pub const MEDIAN: f64 = 0.5;

/// Objective, optimizer and schedule. Every field has a default: what `resolve` makes of an empty section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainConfig {
    /// Passes over the training rows; 0 decides by `passes`.
    pub epochs: u64,
    /// Samples per optimizer update over all workers; 0 decides by `global_batch`.
    pub batch: usize,
    pub lr: f64,
    /// Whether the configuration names no `lr`, so that it may follow the rows (see `RunConfig::settled`).
    pub rate_by_rows: bool,
    /// Learning rate at the end of the cosine, as a fraction of `lr`.
    pub lr_min_ratio: f64,
    /// Fraction of all optimizer steps spent warming up linearly.
    pub warmup_ratio: f64,
    /// AdamW decay of the decayed group (matrices; never norms, biases, embeddings, latents, β, gate).
    pub weight_decay: f64,
    pub betas: (f64, f64),
    /// Global-norm gradient clip; 0 switches it off.
    pub clip: f64,
    /// Element loss in standardised target space.
    pub loss: Loss,
    /// Huber's transition, in target standard deviations.
    pub huber_delta: f64,
    /// Levels at which a loss that predicts a distribution gives quantiles: rising, 0.5 among them.
    pub levels: Vec<f64>,
    /// Degrees of freedom ν of `student_t`.
    pub degrees_of_freedom: f64,
    /// Weights of the output cells in the training loss and in all reported errors.
    pub cell_weights: CellWeights,
    /// Weight λ of the loss on the base head (deep supervision).
    pub base_loss_weight: f64,
    /// Which averages of the weights stand for election beside the weights of the single steps.
    pub averaging: Averaging,
    /// EMA decay of the weights with bias correction; 0 switches this average off. By default about 50 steps whatever the length of the run:
    /// it takes the noise of single steps out of what is validated, and a longer one would lag behind in the validations in between.
    /// Noise of longer reach is the schedule's to remove; `SwaTail` averages over a share of the run.
    pub ema: f64,
    /// Whether a shift and a slope by cell, fitted to the validation rows, correct the prediction of the weights that are kept.
    pub calibration: PointCalibration,
    /// Whether distances between predicted quantiles are multiplied so that they hold their share of the validation targets.
    pub calibrate_intervals: bool,
    /// Optimizer steps from validation to validation within an epoch, which is validated at its end as well; 0 decides by
    /// `validate_every`.
    pub validate_every_steps: u64,
    /// Validations without a better MAE before training stops; 0 switches early stopping off.
    pub patience: u64,
    /// Micro-batches accumulated per optimizer update and worker; 0: as few as memory allows, measured when a worker begins.
    pub accumulation: usize,
    /// MiB that forward and backward of a micro-batch may take on a worker, less a tenth; with an `accumulation` that is not 0, less a
    /// fifth before activations are computed again. 0: what is free.
    pub step_memory_mb: u64,
    /// Save a checkpoint every this many epochs (and at the end, and when stopped).
    pub checkpoint_every: u64,
    /// And every this many optimizer steps; 0: not.
    pub checkpoint_every_steps: u64,
    /// And when the last one is so many seconds old by the clock of rank 0; 0: not.
    pub checkpoint_every_s: f64,
    /// Checkpoints kept besides the newest and the best.
    pub checkpoint_keep: usize,
    /// The first checkpoint of every this many epochs is kept too; 0: of none.
    pub checkpoint_keep_epochs: u64,
    /// The first checkpoint of every this many hours is kept too; 0: of none.
    pub checkpoint_keep_hours: f64,
    /// Whether training goes on while a checkpoint is written: it waits for a copy in memory only, which the launcher writes. Where
    /// the memory is not there, and for workers on other nodes than the launcher's, it waits for the disk.
    pub checkpoint_async: bool,
    /// Treatment of a periodic checkpoint that is due while two are still being written.
    pub checkpoint_busy: Busy,
    /// Whether the files of a checkpoint get a blake3 beside their CRC-32.
    pub checkpoint_blake3: bool,
    /// Where every checkpoint is uploaded while the run goes on: s3://, gs://, az://, file:// or a directory, the run's own name
    /// below it. None: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_mirror: Option<String>,
    /// Numeric precision of training; masters, statistics, heads and losses are f32 whatever it says.
    pub precision: Precision,
    pub execution: Execution,
    /// Whether the collectives are captured with the rest of a step, in one CUDA graph, instead of running between graphs.
    pub capture_collectives: bool,
    /// Most MiB of gradients that travel together, and of weights that `fsdp` and `hsdp` gather together.
    pub bucket_mib: f64,
    /// Parts of the training state that ranks share.
    pub strategy: Strategy,
    /// Whether blocks let go of their activations and compute them again in the backward pass.
    pub recompute: Recompute,
    /// Whether only computations that give the same bits each time are used.
    pub deterministic: bool,
    /// Whether a few steps are timed operation by operation.
    pub profile: bool,
    /// Whether every rank writes down which rows it puts into each step (`crate::ledger`).
    pub ledger: bool,
    /// Rows that may be left out of training because they make a step not finite; more end it. `None` decides by
    /// `poisoned_rows_limit`.
    pub poisoned_rows_max: Option<u64>,
    /// Intra-op threads per worker; 0 divides the cores by the local world size.
    pub threads: usize,
}

/// Treatment of a checkpoint when the disk is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Busy {
    /// Training waits until one is written.
    Wait,
    /// The checkpoint is left out. The last one, and one before a stop, is waited for all the same.
    Skip,
}

/// How far an optimizer step may go from the code that defines it. The mode changes the time, never a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Execution {
    /// Captured CUDA graphs on a GPU, a replayed record on a CPU.
    Auto,
    /// The code runs at every step.
    Tape,
    /// The record of the first steps is replayed.
    Plan,
}

/// Parts of the state that each rank keeps. The strategy changes memory and time, and numbers only in the order of sums; a checkpoint is the same
/// under every strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// The strategy that fits into half of the devices' memory, with the least communication; `Ddp` on the CPU.
    Auto,
    /// Everything: 24 bytes per weight (weight, gradient, two moments, average, best).
    Ddp,
    /// Weights and gradients whole, of moments, average and best weights a share: 8 bytes per weight, and 16 divided by the
    /// number of workers. A worker that dies takes its share along: the others go on from the newest checkpoint.
    Zero1,
    /// A share of everything: 24 bytes per weight divided by the number of workers. Weights are gathered when a layer reads them,
    /// a bucket and its neighbours at a time, and gradients are scattered as soon as a bucket is complete.
    Fsdp,
    /// `Fsdp` among the workers of each node, and every node has all: 24 bytes per weight divided by the workers of a node, and
    /// between nodes only each worker's own sums of gradients travel, once a step. A worker that dies leaves its share on the
    /// other nodes.
    Hsdp,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        names::name_of(&self)
    }
}

/// Averages of the weights. What validates is the moving average where there is one, else the weights themselves; the best of all epochs is
/// kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Averaging {
    None,
    /// The exponential moving average with decay `ema`.
    Ema,
    /// And the mean over the last quarter of the steps, which is kept instead of the best epoch where it validates better.
    SwaTail,
}

/// Affine calibration of predictions after training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PointCalibration {
    Off,
    Affine,
    /// Where cross-validation over the validation rows says that it lowers the error.
    Auto,
}

/// Activation checkpointing. It changes memory and time, never a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Where the activations would not fit into the device's free memory.
    Auto,
    Always,
    Never,
}

/// Element losses. Those from `Quantile` on predict more than one number per cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    Mse,
    /// Quadratic near zero, linear beyond `huber_delta`.
    Huber,
    /// Pinball loss of the quantiles at `levels`, their mean.
    Quantile,
    /// Negative log-likelihood of a Student-t with `degrees_of_freedom` and a predicted scale.
    StudentT,
    /// Negative log-likelihood of a normal distribution with a predicted scale.
    Gaussian,
    /// Continuous ranked probability score of a predicted normal distribution.
    Crps,
    /// Negative log-likelihood of the target's class.
    CrossEntropy,
}

impl Loss {
    /// All losses by the name in the configuration.
    pub const NAMES: &'static [(&'static str, Self)] = &[
        ("mse", Self::Mse),
        ("huber", Self::Huber),
        ("quantile", Self::Quantile),
        ("student_t", Self::StudentT),
        ("gaussian", Self::Gaussian),
        ("crps", Self::Crps),
        ("cross_entropy", Self::CrossEntropy),
    ];

    pub fn name(self) -> &'static str {
        names::name_of(&self)
    }

    /// Whether quantiles of each cell are predicted.
    pub fn has_levels(self) -> bool {
        matches!(self, Self::Quantile | Self::StudentT | Self::Gaussian | Self::Crps)
    }
}

/// Format of the matrix products of training. What the device or the data forbid gives way to the next best: the
/// worker says what it took, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// bf16 on a GPU that has it, else the best it has; fp32 on the CPU.
    Auto,
    Fp32,
    /// IEEE single in memory, products of 10-bit mantissas on the GPU.
    Tf32,
    /// bfloat16: the range of fp32, 7-bit mantissas.
    Bf16,
    /// IEEE half with a loss scale; refused when the standardised data exceed its range.
    Fp16,
    /// 8-bit products of large matrices with per-tensor scales, bf16 elsewhere.
    Fp8,
}

impl Precision {
    pub fn name(self) -> &'static str {
        names::name_of(&self)
    }
}

impl std::str::FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        names::named(name).map_err(|known| format!("found {name:?}, expected one of: {}", known.join(", ")))
    }
}

impl TrainConfig {
    /// Passes over so many training rows: as configured, or by rule 50 up to 1,000 rows and 50 · √(1000 / rows) above, at least 1.
    ///
    /// More rows need fewer passes: ten times the rows make three times the steps.
    pub fn passes(&self, train_rows: u64) -> u64 {
        match self.epochs {
            0 => ((50.0 * (1000.0 / train_rows.max(1000) as f64).sqrt()).round() as u64).max(1),
            given => given,
        }
    }

    /// Steps from validation to validation within an epoch of so many, 0: only at its end. As configured, or by rule so that a run of
    /// fewer than 10 epochs has 10 validations, but no two with fewer than 100 steps between them.
    pub fn validate_every(&self, steps_per_epoch: u64) -> u64 {
        let parts = VALIDATIONS_MIN.div_ceil(self.epochs.max(1)).min(steps_per_epoch / VALIDATION_STEPS_MIN);
        match self.validate_every_steps {
            0 if parts <= 1 => 0,
            0 => steps_per_epoch.div_ceil(parts),
            given => given,
        }
    }

    /// Samples per optimizer update: the configured batch, or by rule a power of two near rows / 16 within 16..=1024.
    ///
    /// The rule looks at the data only, never at timing or the world, so that every world trains the same batches.
    pub fn global_batch(&self, train_rows: usize) -> usize {
        if self.batch > 0 {
            return self.batch.min(train_rows.max(1));
        }
        let target = (train_rows / 16).clamp(16, 1024);
        let power = target.next_power_of_two();
        let batch = if power > target { power / 2 } else { power };
        batch.min(train_rows.max(1))
    }

    /// Decay of the moving average, if there is one.
    pub fn ema_decay(&self) -> Option<f64> {
        (self.averaging != Averaging::None && self.ema > 0.0).then_some(self.ema)
    }

    /// Levels of the predicted quantiles, rising; empty for a loss without.
    pub fn quantile_levels(&self) -> &[f64] {
        if self.loss.has_levels() { &self.levels } else { &[] }
    }

    /// Rows that may be left out: as configured, or by rule a thousandth of the training rows, but at least 10.
    pub fn poisoned_rows_limit(&self, train_rows: u64) -> u64 {
        self.poisoned_rows_max.unwrap_or_else(|| (train_rows / 1000).max(10))
    }
}

/// Processes and policy of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterConfig {
    pub nproc_per_node: Nproc,
    /// Workers with which a round goes on at once while others are missing; 0: all.
    pub workers_min: u32,
    pub policy: Recovery,
    /// Processes that stand by for a seat.
    pub spares: u32,
    /// Whether a worker that the others wait for loses its seat to a spare.
    pub evict_stragglers: bool,
    /// Failures that are recovered from: in a row without a step between them under `reform`, in all under `restart`.
    pub max_restarts: u32,
    /// Time without any sign of progress from any worker after which one of them is taken for dead, seconds; 0: never.
    pub hang_timeout_s: f64,
    /// Time a worker has to finish its step and checkpoint after the first signal, seconds.
    pub grace_s: f64,
    pub device: Device,
    /// How workers add up their gradients.
    pub collectives: Collectives,
}

/// Policy after a worker of a training run failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// The others keep their processes and their state, and meet again with a replacement.
    Reform,
    /// All workers end, and others start from the newest checkpoint.
    Restart,
}

/// Way of the collectives between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Collectives {
    /// On CPUs shared memory when all workers are on one node and can share it, else Gloo. On GPUs their copy engines when all workers are on
    /// one node and its GPUs are linked, and each keeps the whole state; else NCCL.
    Auto,
    /// On CPUs Gloo, over the network or loopback; on GPUs as `Nccl`.
    Gloo,
    /// On GPUs NCCL; on CPUs as `Auto`.
    Nccl,
}

/// How many workers to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nproc {
    /// One per GPU, else one per two cores (at least 1, at most 8).
    Auto,
    Gpu,
    Cpu,
    #[serde(untagged)]
    Count(u32),
}

/// Device kind of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// CUDA when a GPU and a CUDA build are there, else CPU.
    Auto,
    /// CPU, process group of shared memory or Gloo.
    Cpu,
    /// CUDA, process group NCCL.
    Cuda,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What follows from 10², 10³ … 10⁸ training rows: passes, samples of a step, steps of an epoch, steps between validations.
    const BY_ROWS: [[u64; 5]; 7] = [
        [100, 50, 16, 7, 0],
        [1_000, 50, 32, 32, 0],
        [10_000, 16, 512, 20, 0],
        [100_000, 5, 1024, 98, 0],
        [1_000_000, 2, 1024, 977, 196],
        [10_000_000, 1, 1024, 9_766, 977],
        [100_000_000, 1, 1024, 97_657, 9_766],
    ];

    #[test]
    fn rules_follow_the_rows() {
        for expected in BY_ROWS {
            let rows = expected[0];
            let epochs = TrainConfig::default().passes(rows);
            let train = TrainConfig { epochs, ..TrainConfig::default() };
            let batch = train.global_batch(rows as usize) as u64;
            let steps = rows.div_ceil(batch);
            let every = train.validate_every(steps);
            assert_eq!([rows, epochs, batch, steps, every], expected);
            let validations = epochs * if every == 0 { 1 } else { steps.div_ceil(every) };
            assert!(validations >= 10 || steps < 200, "{validations} validations with {rows} rows");
        }
        // More rows never make fewer steps in all, once the batch is the largest.
        let steps = |rows: u64| {
            let train = TrainConfig::default();
            train.passes(rows) * rows.div_ceil(train.global_batch(rows as usize) as u64)
        };
        assert!((0..=12).map(|power| steps(16_384 << power)).is_sorted());
    }

    #[test]
    fn what_is_configured_goes_before_the_rules() {
        let given = TrainConfig { epochs: 7, batch: 100, validate_every_steps: 9, ..TrainConfig::default() };
        assert_eq!((given.passes(1 << 30), given.validate_every(5)), (7, 9));
        assert_eq!([30, 100, 5000].map(|rows| given.global_batch(rows)), [30, 100, 100]);
        let fewest = [0, 1, 15, 17].map(|rows| TrainConfig::default().global_batch(rows));
        assert_eq!(fewest, [1, 1, 15, 16]);
        assert_eq!([0, 1, 1000].map(|rows| TrainConfig::default().passes(rows)), [50; 3]);
    }
}
