//! The measurements of `enn train --profile`: the table of `enn profile RUN`, and the traces of all ranks in one file.

use super::format;
use enn_common::{
    fs::{FileError, atomic},
    profile::{FOLDER, Limit, NumberKind, OpCost, ROOFLINE_JSON, ROOFLINE_VERSION, Roofline, TRACE_JSON, trace_name},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Most ranks of which traces are put together.
const RANKS_MAX: u32 = 1024;

/// Note on operations above 100 % of the ceiling.
const BEYOND: &str = "\nmore than 100 %: what it moved lay in a cache, a mask spared it work that is counted, or the machine was \
                      busy when its ceiling was measured";

/// Why there is no profile to show.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("{} is not there\nhint: profile a run with `enn train CONFIG --profile`; it needs at least six steps", path.display())]
    Absent { path: PathBuf },
    #[error("{} has version {found}, expected {expected}\nhint: profile a run again", path.display())]
    Version { path: PathBuf, found: u64, expected: u32 },
    #[error("{}: {source}", path.display())]
    Foreign { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Reads the table of `run`.
///
/// # Errors
/// The run was not profiled, or the file is damaged or of another version.
pub fn read(run: &Path) -> Result<Roofline, ProfileError> {
    versioned(run.join(FOLDER).join(ROOFLINE_JSON), ROOFLINE_VERSION)
}

/// A file of a profile, of that version.
pub(super) fn versioned<T: DeserializeOwned>(path: PathBuf, expected: u32) -> Result<T, ProfileError> {
    let Ok(text) = fs::read(&path) else { return Err(ProfileError::Absent { path }) };
    let table: Value = match serde_json::from_slice(&text) {
        Ok(table) => table,
        Err(source) => return Err(ProfileError::Foreign { path, source }),
    };
    // First of all: what another version wrote may look otherwise.
    match table["version"].as_u64() {
        Some(found) if found != u64::from(expected) => Err(ProfileError::Version { path, found, expected }),
        _ => serde_json::from_value(table).map_err(|source| ProfileError::Foreign { path, source }),
    }
}

/// Puts the traces of all ranks into one file, on one clock, and returns its path.
///
/// # Errors
/// No rank left a trace, one is damaged, or the file cannot be written.
pub fn gather_traces(run: &Path) -> Result<PathBuf, ProfileError> {
    let folder = run.join(FOLDER);
    let mut traces = Vec::new();
    for path in (0..RANKS_MAX).map(|rank| folder.join(trace_name(rank))) {
        let Ok(text) = fs::read(&path) else { break };
        let trace: Value = serde_json::from_slice(&text).map_err(|source| ProfileError::Foreign { path, source })?;
        traces.push(trace);
    }
    if traces.is_empty() {
        return Err(ProfileError::Absent { path: folder.join(trace_name(0)) });
    }
    let path = folder.join(TRACE_JSON);
    atomic::write(&path, together(traces).to_string().as_bytes())?;
    Ok(path)
}

/// One trace whose times count from the earliest rank's begin.
fn together(traces: Vec<Value>) -> Value {
    let base = |trace: &Value| trace["baseTimeNanoseconds"].as_u64().unwrap_or(0);
    let first = traces.iter().map(base).min().unwrap_or(0);
    let mut events = Vec::new();
    for mut trace in traces {
        let later = (base(&trace) - first) as f64 / 1e3;
        let Some(own) = trace.get_mut("traceEvents").and_then(Value::as_array_mut) else { continue };
        for event in own.iter_mut() {
            if let Some(begin) = event["ts"].as_f64() {
                event["ts"] = json!(begin + later);
            }
        }
        events.append(own);
    }
    json!({ "displayTimeUnit": "ns", "baseTimeNanoseconds": first, "traceEvents": events })
}

/// The table: operations, the most expensive first, how near each came to the machine's ceiling, and which part of that was the
/// lower one.
pub fn table(roofline: &Roofline) -> String {
    let whole: f64 = roofline.ops.iter().map(|op| op.seconds).sum();
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    rows.extend(roofline.ops.iter().map(|op| row(op, roofline, whole).to_vec()));
    let is_word = |column: usize| column < 3 || column + 1 == HEAD.len();
    let table = format::table(&rows, is_word);
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect::<String>() + &foot(roofline)
}

const HEAD: [&str; 10] =
    ["operation", "kernel", "kind", "calls", "ms/step", "share", "GFLOP/s", "GB/s", "of ceiling", "limit"];

/// Formats the notes below the table: its data, and the ceilings of its last columns.
fn foot(roofline: &Roofline) -> String {
    let ceiling = &roofline.ceiling;
    let products = ceiling.flops_per_s.iter();
    let products = products.map(|(kind, rate)| format!("{} GFLOP/s in {}, ", format::brief(rate / 1e9), kind.name()));
    let mut text = format!(
        "{}: {} over {}; ceiling of this machine: {}{} GB/s",
        roofline.device,
        format::plural(roofline.ops.iter().map(|op| op.calls).fold(0, u64::saturating_add), "call"),
        format::plural(roofline.steps, "step"),
        products.collect::<String>(),
        format::brief(ceiling.bytes_per_s / 1e9),
    );
    let borrowed = roofline.ops.iter().filter_map(|op| match op.at_ceiling(ceiling) {
        Some((_, Limit::Products(by))) if by != op.kind => Some((op.kind, by)),
        _ => None,
    });
    for (kind, by) in borrowed.collect::<BTreeSet<(NumberKind, NumberKind)>>() {
        let kind = kind.name();
        let by = by.name();
        let _ = write!(text, "\nproducts in {kind} were not measured: {kind} is compared with {by}");
    }
    if roofline.ops.iter().any(|op| op.reached(ceiling) > 1.0) {
        text.push_str(BEYOND);
    }
    text
}

fn row(op: &OpCost, roofline: &Roofline, whole: f64) -> [String; 10] {
    let rate = |amount: u64| {
        if op.seconds > 0.0 { format::brief(amount as f64 / op.seconds / 1e9) } else { format::ABSENT.to_owned() }
    };
    let part = |part: f64| format!("{:.1} %", part * 100.0);
    let limit = match op.at_ceiling(&roofline.ceiling) {
        Some((_, Limit::Products(kind))) => kind.name(),
        Some((_, Limit::Memory)) => "memory",
        None => format::ABSENT,
    };
    [
        op.op.clone(),
        op.kernel.clone(),
        op.kind.name().to_owned(),
        format::count(op.calls),
        format::measure(op.seconds * 1e3 / roofline.steps.max(1) as f64),
        part(if whole > 0.0 { op.seconds / whole } else { 0.0 }),
        rate(op.flops),
        rate(op.bytes),
        part(op.reached(&roofline.ceiling)),
        limit.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use NumberKind::{Bf16, F32, Fp8};
    use enn_common::profile::Ceiling;

    fn roofline() -> Roofline {
        let op = |name: &str, kind, seconds, flops, bytes| OpCost {
            op: name.into(),
            kernel: "plain".into(),
            kind,
            calls: 6,
            seconds,
            flops,
            bytes,
        };
        let ceiling = Ceiling { flops_per_s: [(F32, 100e9)].into(), bytes_per_s: 10e9 };
        let ops = vec![op("matmul", F32, 0.003, 150_000_000, 1_000_000), op("reshape", F32, 0.001, 0, 0)];
        Roofline { version: ROOFLINE_VERSION, device: "Cpu".into(), steps: 3, ceiling, ops }
    }

    fn line(text: &str, operation: &str) -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(operation)).unwrap();
        line.split("  ").filter(|cell| !cell.is_empty()).map(|cell| cell.trim().to_owned()).collect()
    }

    #[test]
    fn the_table_names_the_distance_to_the_ceiling() {
        let text = table(&roofline());
        let expected = ["matmul", "plain", "f32", "6", "1.000", "75.0 %", "50.0", "0.333", "50.0 %", "f32"];
        assert_eq!(line(&text, "matmul"), expected);
        assert_eq!(line(&text, "reshape").last().unwrap(), format::ABSENT);
        assert!(
            text.ends_with("12 calls over 3 steps; ceiling of this machine: 100 GFLOP/s in f32, 10.0 GB/s"),
            "{text}"
        );
        let mut beyond = roofline();
        beyond.ops[0].seconds = 1e-4;
        assert!(table(&beyond).ends_with(BEYOND));
    }

    #[test]
    fn the_table_says_which_ceiling_it_compares_with() {
        let mut low = roofline();
        low.ceiling.flops_per_s.insert(Bf16, 800e9);
        let product = &low.ops[0];
        let low_product = OpCost { op: "linear".into(), kind: Bf16, flops: 1_200_000_000, ..product.clone() };
        let eight_bits = OpCost { op: "scaled_mm".into(), kind: Fp8, ..low_product.clone() };
        let cast = OpCost { op: "cast".into(), kind: Bf16, flops: 0, bytes: 3_000_000, ..product.clone() };
        low.ops.extend([low_product, eight_bits, cast]);
        let text = table(&low);
        for (operation, expected) in [
            ("matmul", ["50.0 %", "f32"]),
            ("linear", ["50.0 %", "bf16"]),
            ("scaled_mm", ["50.0 %", "bf16"]),
            ("cast", ["10.0 %", "memory"]),
        ] {
            assert_eq!(line(&text, operation)[8..], expected, "{text}");
        }
        let products = "100 GFLOP/s in f32, 800 GFLOP/s in bf16, 10.0 GB/s";
        let borrowed = "\nproducts in fp8 were not measured: fp8 is compared with bf16";
        assert!(text.ends_with(&format!("{products}{borrowed}")), "{text}");
    }

    #[test]
    fn a_table_of_another_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(FOLDER)).unwrap();
        let path = dir.path().join(FOLDER).join(ROOFLINE_JSON);
        let ceiling = json!({ "flops_per_s": 1e9, "bytes_per_s": 1e9 });
        let first = json!({ "version": 1, "device": "Cpu", "steps": 3, "ceiling": ceiling, "ops": [] });
        fs::write(&path, first.to_string()).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("version 1, expected 2"));
        fs::write(&path, serde_json::to_vec(&roofline()).unwrap()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), roofline());
    }

    #[test]
    fn a_damaged_trace_is_passed_over() {
        let sound = json!({ "baseTimeNanoseconds": 7, "traceEvents": [{ "ts": 1.5 }] });
        let damaged = [json!(7), json!([sound]), json!({ "traceEvents": 3 }), json!(null)];
        let trace = together(damaged.into_iter().chain([sound]).collect());
        assert_eq!(trace["traceEvents"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn traces_of_two_ranks_share_a_clock() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(gather_traces(dir.path()), Err(ProfileError::Absent { .. })));
        assert!(read(dir.path()).unwrap_err().to_string().contains("--profile"));
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        for (rank, base) in [(0, 5_000_u64), (1, 2_000)] {
            let events = json!([{ "ph": "M", "pid": rank }, { "ph": "X", "pid": rank, "ts": 1.5, "dur": 1.0 }]);
            let trace = json!({ "baseTimeNanoseconds": base, "traceEvents": events });
            fs::write(folder.join(trace_name(rank)), trace.to_string()).unwrap();
        }
        let path = gather_traces(dir.path()).unwrap();
        let trace: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let times: Vec<f64> =
            trace["traceEvents"].as_array().unwrap().iter().filter_map(|e| e["ts"].as_f64()).collect();
        assert_eq!(times, [4.5, 1.5]);
    }
}
