//! `[train]` and `[cluster]`.

use crate::config::{
    error::{ConfigError, ConfigErrorKind},
    facts::Facts,
    names,
    raw::{RawNode, RawValue},
    section::Section,
    train::{
        Averaging, BUCKET_MIB, Busy, CellWeights, ClusterConfig, Collectives, Device, Execution, Loss, MEDIAN, Nproc,
        PointCalibration, Precision, Recompute, Recovery, Strategy, TrainConfig,
    },
};
use std::{ops::Bound, path::PathBuf};

const NPROCS: &[(&str, Nproc)] = &[("auto", Nproc::Auto), ("gpu", Nproc::Gpu), ("cpu", Nproc::Cpu)];

/// Levels unless the configuration lists its own.
const LEVELS: [f64; 3] = [0.1, MEDIAN, 0.9];
const DEGREES_OF_FREEDOM: f64 = 4.0;
/// Levels of predicted quantiles at most.
const LEVELS_MAX: usize = 99;
const CELL_WEIGHT_MAX: f64 = 1e6;
/// Spares of one node at most.
const SPARES_MAX: u32 = 64;
/// Workers of one node at most.
pub(super) const NPROC_MAX: u32 = 1024;
/// Workers that `auto` starts on a machine without GPUs, at most.
const NPROC_AUTO_MAX: usize = 8;

/// `[train]`; `loss` is that of the target where none is said.
pub(super) fn resolve(mut section: Section<'_>, loss: Loss, errors: &mut Vec<ConfigError>) -> TrainConfig {
    let s = &mut section;
    let train = TrainConfig {
        epochs: s.integer("epochs", 0..=10_000_000, 0),
        batch: s.integer("batch", 0..=1 << 30, 0),
        rate_by_rows: rate_by_rows(s),
        lr: s.number("lr", 1e-12..=1e3, 1e-3),
        lr_min_ratio: s.number("lr_min_ratio", 0.0..=1.0, 0.01),
        warmup_ratio: s.number("warmup_ratio", 0.0..=1.0, 0.05),
        weight_decay: s.number("weight_decay", 0.0..=1e3, 1e-2),
        betas: s.pair("betas", 0.0..1.0).unwrap_or((0.9, 0.99)),
        clip: s.number("clip", 0.0..=1e12, 1.0),
        loss: s.name("loss", &names::all()).unwrap_or(loss),
        huber_delta: s.number("huber_delta", 1e-9..=1e9, 1.0),
        levels: levels(s).unwrap_or_else(|| LEVELS.to_vec()),
        degrees_of_freedom: s.number("degrees_of_freedom", 1.0..=1e3, DEGREES_OF_FREEDOM),
        cell_weights: cell_weights(s),
        base_loss_weight: s.number("base_loss_weight", 0.0..=1e3, 0.5),
        averaging: s.name("averaging", &names::all()).unwrap_or(Averaging::Ema),
        ema: s.number("ema", 0.0..1.0, 0.98),
        calibration: s.name("calibration", &names::all()).unwrap_or(PointCalibration::Auto),
        calibrate_intervals: s.truth("calibrate_intervals", true),
        validate_every_steps: s.integer("validate_every_steps", 0..=1 << 40, 0),
        patience: s.integer("patience", 0..=10_000_000, 0),
        accumulation: s.integer("accumulation", 0..=1 << 20, 0),
        step_memory_mb: s.integer("step_memory_mb", 0..=1 << 24, 0),
        checkpoint_every: s.integer("checkpoint_every", 1..=10_000_000, 5),
        checkpoint_every_steps: s.integer("checkpoint_every_steps", 0..=1 << 40, 0),
        checkpoint_every_s: s.number("checkpoint_every_s", 0.0..=86_400.0 * 30.0, 600.0),
        checkpoint_keep: s.integer("checkpoint_keep", 0..=1_000_000, 2),
        checkpoint_keep_epochs: s.integer("checkpoint_keep_epochs", 0..=10_000_000, 0),
        checkpoint_keep_hours: s.number("checkpoint_keep_hours", 0.0..=1e6, 0.0),
        checkpoint_async: s.truth("checkpoint_async", true),
        checkpoint_busy: s.name("checkpoint_busy", &names::all()).unwrap_or(Busy::Wait),
        checkpoint_blake3: s.truth("checkpoint_blake3", false),
        checkpoint_mirror: s.text("checkpoint_mirror"),
        precision: s.name("precision", &names::all()).unwrap_or(Precision::Auto),
        execution: s.name("execution", &names::all()).unwrap_or(Execution::Auto),
        capture_collectives: s.truth("capture_collectives", false),
        profile: s.truth("profile", false),
        ledger: s.truth("ledger", false),
        poisoned_rows_max: s.integer_if("poisoned_rows_max", 0..=1 << 40),
        bucket_mib: s.number("bucket_mib", 1e-3..=1e6, BUCKET_MIB),
        strategy: s.name("strategy", &names::all()).unwrap_or(Strategy::Auto),
        recompute: s.name("recompute", &names::all()).unwrap_or(Recompute::Auto),
        deterministic: s.truth("deterministic", false),
        threads: s.integer("threads", 0..=4096, 0),
    };
    let freedom = train.degrees_of_freedom != DEGREES_OF_FREEDOM;
    for (key, idle) in [
        ("levels", !train.loss.has_levels() && train.levels != LEVELS),
        ("degrees_of_freedom", train.loss != Loss::StudentT && freedom),
        ("cell_weights", train.loss == Loss::CrossEntropy && train.cell_weights != CellWeights::Equal),
    ] {
        if idle {
            s.error_at(key, ConfigErrorKind::IdleForLoss { loss: train.loss.name() });
        }
    }
    section.finish(errors);
    train
}

/// Whether the learning rate follows the rows: as a run's own file says, or where none is named.
fn rate_by_rows(s: &mut Section<'_>) -> bool {
    let unsaid = !s.has("lr");
    s.truth_if("rate_by_rows").unwrap_or(unsaid)
}

/// Rising levels within (0, 1), the median among them.
fn levels(s: &mut Section<'_>) -> Option<Vec<f64>> {
    let levels = s.numbers("levels", (Bound::Excluded(0.0), Bound::Excluded(1.0)))?;
    if levels.len() > LEVELS_MAX || !levels.is_sorted_by(|one, next| one < next) || !levels.contains(&MEDIAN) {
        let expected = format!("at most {LEVELS_MAX} rising numbers with {MEDIAN} among them, the point prediction");
        s.out_of_range("levels", format!("{levels:?}"), expected);
    }
    Some(levels)
}

/// A number per cell, or a list per axis of the grid.
fn cell_weights(s: &mut Section<'_>) -> CellWeights {
    let key = "cell_weights";
    let Some(node) = s.node(key, "a list of numbers, or a list of such lists") else { return CellWeights::Equal };
    let weight = 0.0..=CELL_WEIGHT_MAX;
    let lists = |node: &RawNode| matches!(&node.value, RawValue::Array(items) if items.iter().any(is_list));
    let weights = if lists(node) {
        let RawValue::Array(axes) = &node.value else { return CellWeights::Equal };
        CellWeights::Axes(axes.iter().filter_map(|axis| s.numbers_of(key, axis, &weight)).collect())
    } else {
        CellWeights::Cells(s.numbers_of(key, node, &weight).unwrap_or_default())
    };
    let counts = match &weights {
        CellWeights::Cells(all) => all.iter().any(|weight| *weight > 0.0),
        CellWeights::Axes(axes) => axes.iter().all(|axis| axis.is_empty() || axis.iter().any(|weight| *weight > 0.0)),
        CellWeights::Equal => true,
    };
    if !counts {
        s.out_of_range(key, "0", "weights that are not all 0");
    }
    weights
}

fn is_list(node: &RawNode) -> bool {
    matches!(node.value, RawValue::Array(_))
}

impl Default for TrainConfig {
    fn default() -> Self {
        let mut train = resolve(Section::empty(), Loss::Huber, &mut Vec::new());
        train.rate_by_rows = false;
        train
    }
}

/// `[cluster]`.
pub(super) fn resolve_cluster(mut section: Section<'_>, facts: &Facts, errors: &mut Vec<ConfigError>) -> ClusterConfig {
    let s = &mut section;
    let wanted = s.name("device", &names::all()).unwrap_or(Device::Auto);
    let nproc = nproc(s);
    let max_restarts = s.integer("max_restarts", 0..=1_000_000, 3);
    let grace_s = s.number("grace_s", 0.0..=86_400.0, 30.0);
    let hang_timeout_s = s.number("hang_timeout_s", 0.0..=86_400.0 * 30.0, 600.0);
    let policy = s.name("policy", &names::all()).unwrap_or(Recovery::Reform);
    let spares = s.integer("spares", 0..=SPARES_MAX, 0);
    let evict_stragglers = s.truth("evict_stragglers", false);
    let collectives = s.name("collectives", &names::all()).unwrap_or(Collectives::Auto);
    let device = device(s, wanted, nproc, facts);
    let workers = count(nproc, device, facts);
    if device == Device::Cuda && workers as usize > facts.gpus {
        let kind = ConfigErrorKind::Gpus { workers: workers as usize, gpus: facts.gpus };
        s.error_at("nproc_per_node", kind);
    }
    let workers_min = workers_min(s, workers);
    if policy == Recovery::Restart {
        let idle = [
            ("spares", spares > 0),
            ("evict_stragglers", evict_stragglers),
            ("workers_min", workers_min > 0 && workers_min < workers),
        ];
        for (key, _) in idle.into_iter().filter(|(_, wanted)| *wanted) {
            s.error_at(key, ConfigErrorKind::NeedsReform);
        }
    }
    section.finish(errors);
    let nproc_per_node = Nproc::Count(workers);
    ClusterConfig {
        nproc_per_node,
        workers_min,
        policy,
        spares,
        evict_stragglers,
        max_restarts,
        hang_timeout_s,
        grace_s,
        device,
        collectives,
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        let facts = Facts { cores: 1, gpus: 0, cuda_worker: false, cwd: PathBuf::new() };
        let resolved = resolve_cluster(Section::empty(), &facts, &mut Vec::new());
        Self { nproc_per_node: Nproc::Auto, device: Device::Auto, ..resolved }
    }
}

/// 0, or a number of workers up to all.
fn workers_min(s: &mut Section<'_>, workers: u32) -> u32 {
    match s.integer("workers_min", 0..=NPROC_MAX, 0) {
        fewest if fewest <= workers => fewest,
        fewest => {
            s.error_at("workers_min", ConfigErrorKind::MinAboveAll { fewest, workers });
            0
        }
    }
}

fn nproc(s: &mut Section<'_>) -> Nproc {
    match s.node("nproc_per_node", "a number or a name") {
        None => Nproc::Auto,
        Some(node) if matches!(node.value, RawValue::Integer(_)) => {
            Nproc::Count(s.integer("nproc_per_node", 1..=NPROC_MAX, 1))
        }
        Some(node) => s.name_of("nproc_per_node", node, NPROCS).unwrap_or(Nproc::Auto),
    }
}

/// CUDA or CPU. CUDA is taken when it is asked for, or when nothing speaks against it.
fn device(s: &mut Section<'_>, wanted: Device, nproc: Nproc, facts: &Facts) -> Device {
    let reason = if facts.gpus == 0 {
        Some("this machine shows no GPU")
    } else if facts.cuda_worker {
        None
    } else {
        Some("enn-worker is not built for it (`enn doctor` says how to get one that is)")
    };
    let key = if wanted == Device::Cuda { "device" } else { "nproc_per_node" };
    match (wanted, reason) {
        (Device::Cpu, _) => Device::Cpu,
        (_, None) => Device::Cuda,
        (Device::Auto, Some(_)) if nproc != Nproc::Gpu => Device::Cpu,
        (_, Some(reason)) => {
            s.error_at(key, ConfigErrorKind::NoCuda(reason));
            Device::Cpu
        }
    }
}

fn count(nproc: Nproc, device: Device, facts: &Facts) -> u32 {
    let workers = match nproc {
        Nproc::Count(workers) => return workers,
        Nproc::Gpu => facts.gpus,
        Nproc::Cpu => facts.cores,
        Nproc::Auto if device == Device::Cuda => facts.gpus,
        Nproc::Auto => (facts.cores / 2).min(NPROC_AUTO_MAX),
    };
    u32::try_from(workers.max(1)).map_or(NPROC_MAX, |workers| workers.min(NPROC_MAX))
}
