//! The outcome of each format's export, and its display.

use super::describe::OUTSIDE;
use enn_common::artifact::export::{Level, Sidecar};
use enn_export::{ExportError, Target};
use enn_ui::format;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug)]
pub struct Exported {
    pub target: Target,
    /// The artifact's path and sidecar, or the reason why there is none.
    pub outcome: Result<(PathBuf, Box<Sidecar>), ExportError>,
    /// Seconds of writing or making the artifact.
    pub seconds: f64,
}

/// Returns one line on a format: its file, its size, how it was checked; or why there is none. A note on rules outside of it follows.
pub fn line(exported: &Exported) -> String {
    let name = exported.target.name();
    let (path, sidecar) = match &exported.outcome {
        Ok((path, sidecar)) => (path, sidecar),
        Err(error) => return format!("{name:<11} not exported: {error}"),
    };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let checked = &sidecar.verified;
    let size = format::bytes(sidecar.bytes);
    let check = match checked.level {
        Level::Runtime => format!(
            "{}: {} rows differ by {:.1e} of the spread at most (limit {:.0e})",
            checked.runtime, checked.rows, checked.largest, checked.tolerance
        ),
        Level::Structure => format!("read again and holds together; {}", checked.runtime),
        Level::None => format!("not verified: {}", checked.runtime),
    };
    let outside = sidecar.notes.get(OUTSIDE).map(|note| format!("\n  note: {note}")).unwrap_or_default();
    format!("{name:<11} {file}  {size}  made in {:.2} s  {check}{outside}", exported.seconds)
}

/// Returns all formats as a JSON document.
pub fn json(done: &[Exported]) -> Value {
    let one = |exported: &Exported| match &exported.outcome {
        Ok((path, sidecar)) => {
            json!({ "format": exported.target.name(), "path": path, "seconds": exported.seconds, "sidecar": sidecar })
        }
        Err(error) => {
            json!({ "format": exported.target.name(), "seconds": exported.seconds, "error": error.to_string() })
        }
    };
    json!({ "exported": done.iter().map(one).collect::<Vec<_>>() })
}
