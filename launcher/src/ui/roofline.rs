//! What `enn train --profile` measured: the table of `enn profile RUN`, and the traces of all ranks in one file.

use super::figures;
use enn_common::{
    fs::{FileError, atomic},
    profile::{FOLDER, OpCost, ROOFLINE_JSON, Roofline, TRACE_JSON, trace_name},
};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// Most ranks of which traces are put together.
const RANKS_MAX: u32 = 1024;

/// What is said where an operation came further than the ceiling.
const BEYOND: &str =
    "\nmore than 100 %: what it moved lay in a cache, or the machine was busy when its ceiling was measured";

/// Why there is no profile to show.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The run was not profiled.
    #[error("{} is not there\nhint: profile a run with `enn train CONFIG --profile`; it needs at least eight steps", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// A file that does not say what it should.
    #[error("{}: {source}", path.display())]
    Foreign {
        /// File.
        path: PathBuf,
        /// Cause.
        source: serde_json::Error,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Reads the table of `run`.
///
/// # Errors
/// The run was not profiled, or the file is damaged.
pub fn read(run: &Path) -> Result<Roofline, ProfileError> {
    let path = run.join(FOLDER).join(ROOFLINE_JSON);
    let Ok(text) = fs::read(&path) else { return Err(ProfileError::Absent { path }) };
    serde_json::from_slice(&text).map_err(|source| ProfileError::Foreign { path, source })
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
        let Some(own) = trace["traceEvents"].as_array_mut() else { continue };
        for event in own.iter_mut() {
            if let Some(begin) = event["ts"].as_f64() {
                event["ts"] = json!(begin + later);
            }
        }
        events.append(own);
    }
    json!({ "displayTimeUnit": "ns", "baseTimeNanoseconds": first, "traceEvents": events })
}

/// The table: operations, the most expensive first, and how near each came to the machine's ceiling.
pub fn table(roofline: &Roofline) -> String {
    let ceiling = &roofline.ceiling;
    let whole: f64 = roofline.ops.iter().map(|op| op.seconds).sum();
    let mut rows =
        vec![["operation", "kernel", "calls", "ms/step", "share", "GFLOP/s", "GB/s", "of ceiling"].map(str::to_owned)];
    rows.extend(roofline.ops.iter().map(|op| row(op, roofline, whole)));
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells =
            cells.map(|(i, (cell, width))| if i < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    let _ = write!(
        text,
        "{}: {} over {}; ceiling of this machine: {} GFLOP/s in f32, {} GB/s",
        roofline.device,
        figures::plural(roofline.ops.iter().map(|op| op.calls).sum(), "call"),
        figures::plural(roofline.steps, "step"),
        figures::brief(ceiling.flops_per_s / 1e9),
        figures::brief(ceiling.bytes_per_s / 1e9),
    );
    if roofline.ops.iter().any(|op| op.reached(ceiling) > 1.0) {
        text.push_str(BEYOND);
    }
    text
}

fn row(op: &OpCost, roofline: &Roofline, whole: f64) -> [String; 8] {
    let rate = |amount: u64| {
        if op.seconds > 0.0 { figures::brief(amount as f64 / op.seconds / 1e9) } else { figures::ABSENT.to_owned() }
    };
    let part = |part: f64| format!("{:.1} %", part * 100.0);
    [
        op.op.clone(),
        op.kernel.clone(),
        figures::count(op.calls),
        figures::measure(op.seconds * 1e3 / roofline.steps.max(1) as f64),
        part(if whole > 0.0 { op.seconds / whole } else { 0.0 }),
        rate(op.flops),
        rate(op.bytes),
        part(op.reached(&roofline.ceiling)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::profile::Ceiling;

    fn roofline() -> Roofline {
        let op = |name: &str, seconds, flops, bytes| OpCost {
            op: name.into(),
            kernel: "plain".into(),
            calls: 6,
            seconds,
            flops,
            bytes,
        };
        let ceiling = Ceiling { flops_per_s: 100e9, bytes_per_s: 10e9 };
        let ops = vec![op("matmul", 0.003, 150_000_000, 1_000_000), op("reshape", 0.001, 0, 0)];
        Roofline { version: 1, device: "Cpu".into(), steps: 3, ceiling, ops }
    }

    #[test]
    fn the_table_names_the_distance_to_the_ceiling() {
        let text = table(&roofline());
        let line = text.lines().find(|line| line.starts_with("matmul")).unwrap();
        for cell in ["plain", "6", "1.000", "75.0 %", "50.0 %"] {
            assert!(line.contains(cell), "{cell} is not in {line}");
        }
        assert!(
            text.ends_with("12 calls over 3 steps; ceiling of this machine: 100 GFLOP/s in f32, 10.0 GB/s"),
            "{text}"
        );
        let mut beyond = roofline();
        beyond.ops[0].seconds = 1e-4;
        assert!(table(&beyond).ends_with(BEYOND));
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
