//! Formats a task forest as a table in which children are indented under their parent.

use enn_common::{
    config::forest::{Forest, Part},
    shown,
};

/// Returns the table, with columns as wide as their widest entry.
pub(super) fn text(forest: &Forest) -> String {
    let mut rows = vec![["task", "weight", "mode", "tokens", "depth", "mixer", "model"].map(str::to_owned)];
    for (depth, task) in forest.list() {
        let mut row: [String; 7] = Default::default();
        row[0] = format!("{}{}", "  ".repeat(depth), shown::line(&task.name));
        row[1] = task.weight.to_string();
        match &task.part {
            Part::Template(template) => {
                row[2] = template.mode.name().to_owned();
                row[3] = template.tokens.to_string();
                row[4] = template.depth.to_string();
                row[5] = template.mixer.name().to_owned();
                row[6] = shown::line(template.model.as_deref().unwrap_or_default()).into_owned();
            }
            Part::Fuser { reduction } => row[2] = format!("joins by {}", reduction.name()),
        }
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if let Err(error) = forest.check() {
        lines.push(format!("not ready to be trained: {error}"));
    }
    lines.join("\n")
}
