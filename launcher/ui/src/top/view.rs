//! The screen, drawn from values: what stands where. Pure.

use super::{
    panels,
    rows::WorkerRow,
    scene::Scene,
    state::{Pane, TopState},
};
use crate::plain;
use enn_common::shown;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph},
};

/// Rows of the list of nodes, with its head.
const NODES_ROWS_MAX: u16 = 7;
/// Fewest rows of the list of workers, with its head.
const WORKERS_ROWS_MIN: u16 = 4;
/// Size of the explanation of the keys.
const HELP_SIZE: (u16, u16) = (62, 15);

pub(super) fn draw(frame: &mut Frame<'_>, scene: &Scene<'_>) {
    let rows = scene.rows();
    let area = frame.area();
    let overview = panels::overview(scene, usize::from(area.width));
    let nodes = panels::nodes(scene);
    let heights = heights(area.height, overview.len(), nodes.len(), rows.len());
    let [top, node_area, worker_area, lower, foot] = Layout::vertical(heights).areas(area);
    frame.render_widget(Paragraph::new(harmless(overview)), top);
    frame.render_widget(Paragraph::new(harmless(nodes)), node_area);
    panels::workers(frame, worker_area, scene, &rows);
    lower_part(frame, lower, scene, &rows);
    frame.render_widget(Paragraph::new(panels::footer(scene)), foot);
    if scene.state.help {
        help(frame, area);
    }
}

/// Lines in which what a terminal obeys is seen: names of runs and hosts and what programs say come from elsewhere.
fn harmless(lines: Vec<Line<'_>>) -> Vec<Line<'_>> {
    let span = |span: Span<'_>| Span::styled(shown::line(&span.content).into_owned(), span.style);
    lines.into_iter().map(|line| Line { spans: line.spans.into_iter().map(span).collect(), ..line }).collect()
}

/// Heights of overview, nodes, workers, lower part and footer.
fn heights(height: u16, overview: usize, nodes: usize, workers: usize) -> [Constraint; 5] {
    let rows = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let overview = rows(overview);
    let nodes = rows(nodes).min(NODES_ROWS_MAX).min(height / 4);
    let rest = height.saturating_sub(overview).saturating_sub(nodes).saturating_sub(1);
    // The list takes what it needs up to a half; the lower part has the rest.
    let workers = rows(workers).saturating_add(2).clamp(WORKERS_ROWS_MIN, (rest / 2).max(WORKERS_ROWS_MIN));
    [
        Constraint::Length(overview),
        Constraint::Length(nodes),
        Constraint::Length(workers),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]
}

fn lower_part(frame: &mut Frame<'_>, area: Rect, scene: &Scene<'_>, rows: &[WorkerRow]) {
    let TopState { pane, search, scroll, .. } = scene.state;
    let (title, lines) = match pane {
        Pane::Reasons => ("what happened".to_owned(), panels::reasons(scene)),
        Pane::Stderr | Pane::Stdout => panels::log(scene, rows),
    };
    let wanted = search.to_lowercase();
    let matches = |line: &Line<'_>| wanted.is_empty() || line.to_string().to_lowercase().contains(&wanted);
    let lines: Vec<Line<'_>> = lines.into_iter().filter(matches).collect();
    let title = if search.is_empty() { title } else { format!("{title}, lines with \"{search}\"") };
    let block = Block::bordered().title(format!(" {title} "));
    let inner = block.inner(area);
    let visible = usize::from(inner.height);
    let width = usize::from(inner.width);
    let end = lines.len().saturating_sub((*scroll).min(lines.len().saturating_sub(visible)));
    let hang = if *pane == Pane::Reasons { panels::STAMP } else { 0 };
    // Long lines take several rows: the end is what must be seen.
    let rows = lines[end.saturating_sub(visible)..end].iter().flat_map(|line| wrapped(line, width, hang));
    let mut shown: Vec<Line<'_>> = rows.collect();
    shown.drain(..shown.len().saturating_sub(visible));
    frame.render_widget(Paragraph::new(harmless(shown)).block(block), area);
}

/// A line in rows of `width` columns, in its own style; rows after the first begin at column `hang`.
fn wrapped(line: &Line<'_>, width: usize, hang: usize) -> Vec<Line<'static>> {
    let text = line.to_string();
    let split = text.char_indices().nth(hang).map_or(text.len(), |(at, _)| at);
    let (head, rest) = text.split_at(split);
    let mut rows = Vec::new();
    plain::wrap(rest, &" ".repeat(hang), width.max(hang + 1), &mut rows);
    if let Some(first) = rows.first_mut() {
        *first = format!("{head}{}", first.get(hang..).unwrap_or_default());
    }
    rows.into_iter().map(|row| Line::styled(row, line.style)).collect()
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let width = HELP_SIZE.0.min(area.width);
    let height = HELP_SIZE.1.min(area.height);
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    let lines: Vec<Line<'_>> = panels::HELP.iter().map(|line| Line::from(*line)).collect();
    frame.render_widget(Clear, place);
    let block = Block::bordered().title(" keys ").style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

#[cfg(test)]
mod tests;
