//! `[train]` and `[cluster]`.

use crate::config::{
    error::{ConfigError, ConfigErrorKind},
    facts::Facts,
    raw::{RawNode, RawValue},
    section::Section,
    train::{
        Averaging, Busy, CellWeights, ClusterConfig, Collectives, Device, Execution, Loss, MEDIAN, Nproc,
        PointCalibration, Precision, Recompute, Recovery, Strategy, TrainConfig,
    },
};
use std::ops::Bound;

const EXECUTIONS: &[(&str, Execution)] =
    &[("auto", Execution::Auto), ("tape", Execution::Tape), ("plan", Execution::Plan)];
const STRATEGIES: &[(&str, Strategy)] = &[
    ("auto", Strategy::Auto),
    ("ddp", Strategy::Ddp),
    ("zero1", Strategy::Zero1),
    ("fsdp", Strategy::Fsdp),
    ("hsdp", Strategy::Hsdp),
];
const RECOMPUTES: &[(&str, Recompute)] =
    &[("auto", Recompute::Auto), ("always", Recompute::Always), ("never", Recompute::Never)];
const BUSIES: &[(&str, Busy)] = &[("wait", Busy::Wait), ("skip", Busy::Skip)];
const AVERAGINGS: &[(&str, Averaging)] =
    &[("none", Averaging::None), ("ema", Averaging::Ema), ("swa_tail", Averaging::SwaTail)];
const CALIBRATIONS: &[(&str, PointCalibration)] =
    &[("off", PointCalibration::Off), ("affine", PointCalibration::Affine), ("auto", PointCalibration::Auto)];
const COLLECTIVES: &[(&str, Collectives)] =
    &[("auto", Collectives::Auto), ("gloo", Collectives::Gloo), ("nccl", Collectives::Nccl)];
const DEVICES: &[(&str, Device)] = &[("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda", Device::Cuda)];
const NPROCS: &[(&str, Nproc)] = &[("auto", Nproc::Auto), ("gpu", Nproc::Gpu), ("cpu", Nproc::Cpu)];

const POLICIES: &[(&str, Recovery)] = &[("reform", Recovery::Reform), ("restart", Recovery::Restart)];

/// Levels of predicted quantiles at most.
const LEVELS_MAX: usize = 99;
/// Weight of a cell at most.
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
    let default = TrainConfig { loss, ..TrainConfig::default() };
    let train = TrainConfig {
        epochs: s.integer("epochs", 0..=10_000_000, default.epochs),
        batch: s.integer("batch", 0..=1 << 30, default.batch),
        rate_by_rows: rate_by_rows(s),
        lr: s.number("lr", 1e-12..=1e3, default.lr),
        lr_min_ratio: s.number("lr_min_ratio", 0.0..=1.0, default.lr_min_ratio),
        warmup_ratio: s.number("warmup_ratio", 0.0..=1.0, default.warmup_ratio),
        weight_decay: s.number("weight_decay", 0.0..=1e3, default.weight_decay),
        betas: s.pair("betas", 0.0..1.0).unwrap_or(default.betas),
        clip: s.number("clip", 0.0..=1e12, default.clip),
        loss: s.name("loss", Loss::NAMES).unwrap_or(default.loss),
        huber_delta: s.number("huber_delta", 1e-9..=1e9, default.huber_delta),
        levels: levels(s).unwrap_or(default.levels),
        degrees_of_freedom: s.number("degrees_of_freedom", 1.0..=1e3, default.degrees_of_freedom),
        cell_weights: cell_weights(s),
        base_loss_weight: s.number("base_loss_weight", 0.0..=1e3, default.base_loss_weight),
        averaging: s.name("averaging", AVERAGINGS).unwrap_or(default.averaging),
        ema: s.number("ema", 0.0..1.0, default.ema),
        calibration: s.name("calibration", CALIBRATIONS).unwrap_or(default.calibration),
        calibrate_intervals: s.truth("calibrate_intervals", default.calibrate_intervals),
        validate_every_steps: s.integer("validate_every_steps", 0..=1 << 40, default.validate_every_steps),
        patience: s.integer("patience", 0..=10_000_000, default.patience),
        accumulation: s.integer("accumulation", 0..=1 << 20, default.accumulation),
        step_memory_mb: s.integer("step_memory_mb", 0..=1 << 24, default.step_memory_mb),
        checkpoint_every: s.integer("checkpoint_every", 1..=10_000_000, default.checkpoint_every),
        checkpoint_every_steps: s.integer("checkpoint_every_steps", 0..=1 << 40, default.checkpoint_every_steps),
        checkpoint_every_s: s.number("checkpoint_every_s", 0.0..=86_400.0 * 30.0, default.checkpoint_every_s),
        checkpoint_keep: s.integer("checkpoint_keep", 0..=1_000_000, default.checkpoint_keep),
        checkpoint_keep_epochs: s.integer("checkpoint_keep_epochs", 0..=10_000_000, default.checkpoint_keep_epochs),
        checkpoint_keep_hours: s.number("checkpoint_keep_hours", 0.0..=1e6, default.checkpoint_keep_hours),
        checkpoint_async: s.truth("checkpoint_async", default.checkpoint_async),
        checkpoint_busy: s.name("checkpoint_busy", BUSIES).unwrap_or(default.checkpoint_busy),
        checkpoint_blake3: s.truth("checkpoint_blake3", default.checkpoint_blake3),
        checkpoint_mirror: s.text("checkpoint_mirror"),
        precision: s.name("precision", Precision::NAMES).unwrap_or(default.precision),
        execution: s.name("execution", EXECUTIONS).unwrap_or(default.execution),
        capture_collectives: s.truth("capture_collectives", default.capture_collectives),
        profile: s.truth("profile", default.profile),
        ledger: s.truth("ledger", default.ledger),
        poisoned_rows_max: s.has("poisoned_rows_max").then(|| s.integer("poisoned_rows_max", 0..=1 << 40, 0)),
        bucket_mib: s.number("bucket_mib", 1e-3..=1e6, default.bucket_mib),
        strategy: s.name("strategy", STRATEGIES).unwrap_or(default.strategy),
        recompute: s.name("recompute", RECOMPUTES).unwrap_or(default.recompute),
        deterministic: s.truth("deterministic", default.deterministic),
        threads: s.integer("threads", 0..=4096, default.threads),
    };
    let freedom = train.degrees_of_freedom != TrainConfig::default().degrees_of_freedom;
    for (key, idle) in [
        ("levels", !train.loss.has_levels() && train.levels != TrainConfig::default().levels),
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
    s.truth("rate_by_rows", unsaid)
}

/// Rising levels within (0, 1), the median among them.
fn levels(s: &mut Section<'_>) -> Option<Vec<f64>> {
    let levels = s.numbers("levels", (Bound::Excluded(0.0), Bound::Excluded(1.0)))?;
    if levels.len() > LEVELS_MAX || !levels.is_sorted_by(|one, next| one < next) || !levels.contains(&MEDIAN) {
        let expected = format!("at most {LEVELS_MAX} rising numbers with {MEDIAN} among them, the point prediction");
        s.error_at("levels", ConfigErrorKind::Range { found: format!("{levels:?}"), expected });
    }
    Some(levels)
}

/// A number per cell, or a list per axis of the grid.
fn cell_weights(s: &mut Section<'_>) -> CellWeights {
    let key = "cell_weights";
    let Some(node) = s.node(key) else { return CellWeights::Equal };
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
        let expected = "weights that are not all 0".to_owned();
        s.error_at(key, ConfigErrorKind::Range { found: "0".to_owned(), expected });
    }
    weights
}

fn is_list(node: &RawNode) -> bool {
    matches!(node.value, RawValue::Array(_))
}

pub(super) fn resolve_cluster(
    section: Option<Section<'_>>,
    facts: &Facts,
    errors: &mut Vec<ConfigError>,
) -> ClusterConfig {
    let default = ClusterConfig::default();
    let Some(mut section) = section else {
        let device = if facts.cuda_worker && facts.gpus > 0 { Device::Cuda } else { Device::Cpu };
        let workers = count(Nproc::Auto, device, facts);
        return ClusterConfig { nproc_per_node: Nproc::Count(workers), device, ..default };
    };
    let s = &mut section;
    let wanted = s.name("device", DEVICES).unwrap_or(default.device);
    let nproc = nproc(s);
    let max_restarts = s.integer("max_restarts", 0..=1_000_000, default.max_restarts);
    let grace_s = s.number("grace_s", 0.0..=86_400.0, default.grace_s);
    let hang_timeout_s = s.number("hang_timeout_s", 0.0..=86_400.0 * 30.0, default.hang_timeout_s);
    let policy = s.name("policy", POLICIES).unwrap_or(default.policy);
    let spares = s.integer("spares", 0..=SPARES_MAX, default.spares);
    let evict_stragglers = s.truth("evict_stragglers", default.evict_stragglers);
    let collectives = s.name("collectives", COLLECTIVES).unwrap_or(default.collectives);
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
    match s.node("nproc_per_node") {
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
        Some("enn-worker was built without it (`make cuda` builds it)")
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
