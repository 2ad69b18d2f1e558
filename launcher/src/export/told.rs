//! What came of each format, and how it is shown.

use super::describe::OUTSIDE;
use crate::ui::figures;
use enn_common::artifact::export::{Level, Sidecar};
use enn_export::{ExportError, Target};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What came of a format.
#[derive(Debug)]
pub struct Exported {
    pub target: Target,
    /// The artifact's place and what is said beside it; or why there is none.
    pub outcome: Result<(PathBuf, Box<Sidecar>), ExportError>,
    /// Seconds of writing or making it.
    pub seconds: f64,
}

/// One line of a format: its file, its size, how it was checked; or why there is none. What it leaves to whoever calls it follows.
pub fn line(exported: &Exported) -> String {
    let name = exported.target.name();
    let (path, sidecar) = match &exported.outcome {
        Ok((path, sidecar)) => (path, sidecar),
        Err(error) => return format!("{name:<11} not exported: {error}"),
    };
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let checked = &sidecar.verified;
    let size = figures::bytes(sidecar.bytes);
    let said = match checked.level {
        Level::Runtime => format!(
            "{}: {} rows differ by {:.1e} of the spread at most (limit {:.0e})",
            checked.runtime, checked.rows, checked.largest, checked.tolerance
        ),
        Level::Structure => format!("read again and holds together; {}", checked.runtime),
        Level::None => format!("not verified: {}", checked.runtime),
    };
    let outside = sidecar.notes.get(OUTSIDE).map(|note| format!("\n  note: {note}")).unwrap_or_default();
    format!("{name:<11} {file}  {size}  made in {:.2} s  {said}{outside}", exported.seconds)
}

/// All formats as a document.
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
