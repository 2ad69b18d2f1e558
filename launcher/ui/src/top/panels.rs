//! The parts of the screen as lines: overview, nodes, workers, log, reasons, footer. Pure.

use super::{
    rows::{self, WorkerRow},
    scene::Scene,
    state::{Pane, WorkerFilter},
};
use crate::{
    RunView, format,
    lines::LineLevel,
    model::NodeState,
    run_status::{RunStatus, WorkerStatus},
    status::{moment, node_words, regroupings, step_parts},
};
use enn_common::shown;
use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Row as TableRow, Table, TableState},
};

const GPUS_MAX: usize = 8;

/// Columns of a time before a sentence.
pub(super) const STAMP: usize = 13;

pub(super) const HELP: [&str; 13] = [
    "",
    "  up down j k      select a worker",
    "  g G              the first, the last worker",
    "  f                list all workers, those that failed,",
    "                   those of this host",
    "  l                log of the worker: standard error,",
    "                   standard output",
    "  r                what happened, in sentences",
    "  page up, down    scroll the lower part",
    "  /                show only lines with a text (Esc: all)",
    "  q Esc Ctrl-C     leave; the run goes on",
    "",
    "  any key closes this",
];

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

fn colour(status: &RunStatus) -> Color {
    match status {
        RunStatus::Running | RunStatus::Finished => Color::Green,
        RunStatus::Failed(_) | RunStatus::Gone => Color::Red,
        _ => Color::Yellow,
    }
}

/// Name, status, time, round; what it waits for; step; GPUs.
pub(super) fn overview(scene: &Scene<'_>, width: usize) -> Vec<Line<'static>> {
    let view = &scene.event_log.view;
    let status = RunStatus::of(view, scene.context.living);
    let now = moment(&scene.context, view);
    let since = view.sessions.last().map_or(now, |session| session.started);
    let restarts = format::plural(view.restarts(), "restart");
    let mut parts = vec![format::seconds((now - since).max(0.0))];
    if let Some(round) = view.rounds.last() {
        let left = round.restarts_left.map_or_else(String::new, |left| format!(" ({left} left)"));
        parts.push(format!("round {}, {restarts}{left}{}", round.round, regroupings(view)));
        parts.push(format::plural(u64::from(round.world_size), "worker"));
    }
    let word = Span::styled(status.word().to_uppercase(), bold().fg(colour(&status)));
    let name = Span::styled(format::shortened(view.name(), width / 2), bold());
    let room = width.saturating_sub(name.width() + word.width() + 4);
    let mut parts = fitted(&parts, room, width).into_iter();
    let first = parts.next().unwrap_or_default();
    let mut lines = vec![Line::from(vec![name, "  ".into(), word, "  ".into(), first.into()])];
    lines.extend(parts.map(Line::from));
    lines.extend(reason(view, &status, now).map(|text| Line::styled(text, Style::new().fg(colour(&status)))));
    lines.extend(fitted(&step(scene), width, width).into_iter().filter(|line| !line.is_empty()).map(Line::from));
    let sick = scene.event_log.view.sick_devices.iter();
    lines.extend(sick.map(|sentence| Line::styled(sentence.clone(), Style::new().fg(Color::Yellow))));
    let gpus = scene.samples.gpus.iter().take(GPUS_MAX).map(|gpu| {
        let used = format::bytes(gpu.used_bytes);
        let total = format::bytes(gpu.total_bytes);
        format!("GPU {} {} % {used} of {total}", gpu.index, gpu.percent)
    });
    let gpus: Vec<String> = gpus.collect();
    if !gpus.is_empty() {
        lines.push(Line::styled(gpus.join("   "), dim()));
    }
    lines
}

/// Returns the reason for a status other than running.
pub(super) fn reason(view: &RunView, status: &RunStatus, now: f64) -> Option<String> {
    Some(match status {
        RunStatus::Waiting => {
            let waiting = view.waiting.as_ref()?;
            format!("waiting: {}, for {}", waiting.reason, format::seconds((now - waiting.since).max(0.0)))
        }
        RunStatus::Paused => "paused: enn continue goes on".to_owned(),
        RunStatus::Stopping => format!("stopping: {} came", view.stops.last()?.1),
        RunStatus::Failed(_) | RunStatus::Restarting => {
            let (cause, _) = view.rounds.iter().rev().find_map(|round| round.failure.as_ref())?;
            format!("{}: {}", status, cause.lines().next().unwrap_or_default())
        }
        RunStatus::Gone | RunStatus::Stopped(_) => status.to_string(),
        _ => return None,
    })
}

/// How far training is, in parts.
fn step(scene: &Scene<'_>) -> Vec<String> {
    let view = &scene.event_log.view;
    let mut parts = step_parts(view);
    let Some(first) = parts.first_mut() else { return parts };
    first.insert_str(0, "step ");
    if let Some(best) = view.best().filter(|report| report.val.n > 0) {
        parts.push(format!("best val {}", format::judged(&best.val, view.units())));
    }
    let under_way = view.trained.is_none() && scene.context.living;
    if let Some(seconds) = view.remaining_s().filter(|_| under_way) {
        parts.push(format!("ETA {}", format::countdown(seconds)));
    }
    parts
}

/// Parts two blanks apart in lines: the first of `first` columns, the others of `width`.
fn fitted(parts: &[String], first: usize, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut room = first;
    for part in parts {
        let line = lines.last().map_or(0, |line| line.chars().count());
        let gap = if line == 0 { 0 } else { 2 };
        if line + gap + part.chars().count() > room && (line > 0 || room < width) {
            lines.push(part.clone());
            room = width;
        } else if let Some(line) = lines.last_mut() {
            line.push_str(&" ".repeat(gap));
            line.push_str(part);
        }
    }
    lines
}

/// The nodes, those that are not well first when not all can be seen; empty when the launcher is the only one.
pub(super) fn nodes(scene: &Scene<'_>) -> Vec<Line<'static>> {
    let all = &scene.event_log.view.nodes;
    if all.len() < 2 && all.iter().all(|node| matches!(node.state, NodeState::InRound | NodeState::Out)) {
        return Vec::new();
    }
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by_key(|node| matches!(node.state, NodeState::InRound | NodeState::Out));
    let head = format!("NODES {:<4}{:<24}{:>8}  STATE", all.len(), "HOST", "WORKERS");
    let mut lines = vec![Line::styled(head, dim())];
    lines.extend(sorted.iter().map(|node| {
        let (rank, state) = node_words(node);
        let style = match node.state {
            NodeState::Lost(_) => Style::new().fg(Color::Red),
            NodeState::Joined => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        };
        let host = format::shortened(&node.host, 23);
        Line::styled(format!("{rank:>9} {host:<24}{:>8}  {state}", node.workers), style)
    }));
    lines
}

pub(super) fn workers(frame: &mut Frame<'_>, area: Rect, scene: &Scene<'_>, rows: &[WorkerRow]) {
    let which = match scene.state.filter {
        WorkerFilter::All => "",
        WorkerFilter::Failed => " failed",
        WorkerFilter::Here => " here",
    };
    let head = ["RANK", "HOST", "PID", "STATE", "CPU %", "RSS", "GPU", "GPU MEM"].map(str::to_owned);
    let head = TableRow::new(head).style(dim());
    let title = Line::styled(format!("WORKERS{which} {}", rows.len()), dim());
    let widths = [
        Constraint::Length(5),
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(16),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(9),
    ];
    let [title_area, table_area] =
        ratatui::layout::Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(title, title_area);
    let selected = rows::selected(rows, scene.state);
    let table = Table::new(rows.iter().map(worker), widths)
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol(">");
    let mut place = TableState::default().with_selected(selected);
    frame.render_stateful_widget(table, table_area, &mut place);
}

fn worker(row: &WorkerRow) -> TableRow<'static> {
    let absent = || "-".to_owned();
    let load = row.load.unwrap_or_default();
    let gpu = load.gpu.map_or_else(absent, |gpu| format!("{}: {} %", gpu.index, gpu.percent));
    let gpu_memory = load.gpu.and_then(|gpu| gpu.used_bytes).map_or_else(absent, format::bytes);
    let cells = [
        row.rank.to_string(),
        shown::line(&row.host).into_owned(),
        row.process.map_or_else(absent, |(pid, _)| pid.to_string()),
        row.process.map_or_else(|| "of its node".to_owned(), |(_, status)| status.to_string()),
        load.cpu_percent.map_or_else(absent, |percent| format!("{percent:.0}")),
        row.load.map_or_else(absent, |load| format::bytes(load.rss_bytes)),
        gpu,
        gpu_memory,
    ];
    let style = match row.process.map(|(_, status)| status) {
        Some(WorkerStatus::Failed(_)) => Style::new().fg(Color::Red),
        Some(WorkerStatus::Ended(_) | WorkerStatus::Gone) | None => dim(),
        Some(WorkerStatus::Starting | WorkerStatus::Paused | WorkerStatus::Stopping) => Style::new().fg(Color::Yellow),
        Some(WorkerStatus::Running | WorkerStatus::Done) => Style::new(),
    };
    TableRow::new(cells).style(style)
}

/// Title and lines of the selected worker's log.
pub(super) fn log(scene: &Scene<'_>, rows: &[WorkerRow]) -> (String, Vec<Line<'static>>) {
    let stream = if scene.state.pane == Pane::Stdout { "standard output" } else { "standard error" };
    let Some(row) = rows::selected(rows, scene.state).and_then(|index| rows.get(index)) else {
        return (stream.to_owned(), vec![Line::styled("no worker is selected", dim())]);
    };
    let title = format!("{stream} of rank {}", row.rank);
    if scene.tail.path.is_none() {
        return (title, vec![Line::styled(without_log(row), dim())]);
    }
    (title, scene.tail.lines.iter().map(|line| Line::from(line.clone())).collect())
}

/// Says why a worker has no log file here.
pub(super) fn without_log(row: &WorkerRow) -> &'static str {
    if row.here || row.process.is_some() {
        "no log file was found: this output went to the launcher's own"
    } else {
        "the log is on its node"
    }
}

/// Returns the log of events with times since the launch began; alerts are red.
pub(super) fn reasons(scene: &Scene<'_>) -> Vec<Line<'static>> {
    let started = scene.event_log.view.sessions.last().map_or(0.0, |session| session.started);
    let mut all = Vec::new();
    for (time, level, text) in &scene.event_log.lines {
        let style = match level {
            LineLevel::Alert => Style::new().fg(Color::Red),
            LineLevel::Notable => Style::new(),
            LineLevel::Detail => dim(),
        };
        for (index, line) in text.lines().enumerate() {
            let stamp = if index == 0 { format!("{:>9.1} s  ", time - started) } else { " ".repeat(STAMP) };
            all.push(Line::styled(format!("{stamp}{line}"), style));
        }
    }
    all
}

/// The keys, or the search that is typed.
pub(super) fn footer(scene: &Scene<'_>) -> Line<'static> {
    if scene.state.typing {
        return Line::styled(format!("/{}_   Return: keep   Esc: all lines", scene.state.search), bold());
    }
    Line::styled("q quit  j k select  f filter  l log  r reasons  / search  ? help", dim())
}
