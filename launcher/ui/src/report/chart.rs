//! Line charts: axes with round numbers, lines, reference lines, labels at the lines' ends instead of a legend.

use super::{
    html::{Html, Px},
    scale::Scale,
};
use std::fmt::Write;

/// Space between two labels at the end of lines.
const LABEL_GAP: f64 = 14.0;

/// Number of points beyond which marks with tooltips are thinned.
const MARKS_MAX: usize = 160;

/// Size of a drawing and the space around its plotting area.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// One of two drawings side by side, with room for labels at the ends of lines.
pub(super) const PANEL: Frame =
    Frame { width: 480.0, height: 290.0, left: 44.0, right: 116.0, top: 12.0, bottom: 40.0 };

impl Frame {
    /// The plotting area: left, right.
    pub(super) fn across(&self) -> (f64, f64) {
        (self.left, self.width - self.right)
    }

    /// The plotting area: bottom, top.
    pub(super) fn upwards(&self) -> (f64, f64) {
        (self.height - self.bottom, self.top)
    }
}

/// Height (a value), class and text of a label at the end of a line.
pub(super) type EndLabel = (f64, &'static str, String);

/// A chart: scales and what is written along the axes.
pub(super) struct Chart<'a> {
    /// Unique on the page.
    pub(super) id: &'a str,
    pub(super) description: &'a str,
    pub(super) frame: Frame,
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// Places and texts along the horizontal axis.
    pub(super) x_ticks: Vec<(f64, String)>,
    /// About how many places along the vertical axis.
    pub(super) y_ticks: usize,
    pub(super) x_name: &'a str,
    /// Texts right of the plotting area.
    pub(super) labels: Vec<EndLabel>,
}

impl<'a> Chart<'a> {
    pub(super) fn new(id: &'a str, description: &'a str, frame: Frame, x: Scale, y: Scale) -> Self {
        Self { id, description, frame, x, y, x_ticks: x.ticks(6), y_ticks: 5, x_name: "", labels: Vec::new() }
    }

    /// A chart of shares, from 0 to 1, over others.
    pub(super) fn of_shares(id: &'a str, description: &'a str, frame: Frame, x_name: &'a str) -> Self {
        let x = Scale::linear((0.0, 1.0), frame.across());
        let y = Scale::linear((0.0, 1.0), frame.upwards());
        Self { x_ticks: x.ticks(5), x_name, ..Self::new(id, description, frame, x, y) }
    }

    /// Draws the axes, `inner`, which is cut off at the plotting area's edge, and the labels.
    pub(super) fn draw(&self, html: &mut Html, inner: impl FnOnce(&mut Html)) {
        let Frame { width, height, .. } = self.frame;
        html.svg(width, height, self.description, |html| {
            self.axes(html);
            let (left, right) = self.frame.across();
            let (bottom, top) = self.frame.upwards();
            html.element("clipPath", &[("id", &self.id)], |html| {
                let [x, y, width, height] = [left, top - 4.0, right - left, bottom - top + 8.0].map(Px);
                html.void("rect", &[("x", &x), ("y", &y), ("width", &width), ("height", &height)]);
            });
            html.element("g", &[("clip-path", &format!("url(#{})", self.id))], inner);
            self.end_labels(html);
        });
    }

    /// Draws a line through points of shares beside the diagonal on which both shares are equal.
    pub(super) fn draw_shares(&self, html: &mut Html, points: &[(f64, f64)], tooltip: impl Fn(usize) -> String) {
        self.draw(html, |html| {
            self.line(html, "faint", &[(0.0, 0.0), (1.0, 1.0)]);
            self.line(html, "model", points);
            self.tooltips(html, points, tooltip);
        });
    }

    fn axes(&self, html: &mut Html) {
        let (left, right) = self.frame.across();
        let (bottom, _) = self.frame.upwards();
        for (value, label) in self.y.ticks(self.y_ticks) {
            let y = self.y.at(value);
            html.segment("grid", [left, right], [y, y]);
            html.svg_text("tick end", left - 7.0, y + 4.0, &label);
        }
        html.segment("axis", [left, right], [bottom, bottom]);
        for (value, label) in &self.x_ticks {
            html.svg_text("tick mid", self.x.at(*value), bottom + 16.0, label);
        }
        if !self.x_name.is_empty() {
            html.svg_text("tick end", right, bottom + 31.0, self.x_name);
        }
    }

    /// A line through the points; a point that is not finite breaks it.
    pub(super) fn line(&self, html: &mut Html, class: &str, points: &[(f64, f64)]) {
        let mut path = String::new();
        let mut pen_down = false;
        for (x, y) in points {
            if !(x.is_finite() && y.is_finite()) {
                pen_down = false;
                continue;
            }
            let _ = write!(path, "{}{} {}", if pen_down { "L" } else { "M" }, Px(self.x.at(*x)), Px(self.y.at(*y)));
            pen_down = true;
        }
        if !path.is_empty() {
            html.void("path", &[("class", &format!("line {class}")), ("d", &path)]);
        }
    }

    /// Invisible marks over the points that show a tooltip.
    pub(super) fn tooltips(&self, html: &mut Html, points: &[(f64, f64)], tooltip: impl Fn(usize) -> String) {
        let every = points.len().div_ceil(MARKS_MAX).max(1);
        let marked = points.iter().enumerate().step_by(every);
        for (index, (x, y)) in marked.filter(|(_, (x, y))| x.is_finite() && y.is_finite()) {
            self.dot(html, "touch", *x, *y, 7.0, &tooltip(index));
        }
    }

    /// A circle of this radius around a point.
    pub(super) fn dot(&self, html: &mut Html, class: &str, x: f64, y: f64, radius: f64, tooltip: &str) {
        let [x, y] = [Px(self.x.at(x)), Px(self.y.at(y))];
        html.mark("circle", &[("class", &class), ("cx", &x), ("cy", &y), ("r", &radius)], tooltip);
    }

    pub(super) fn level(&self, html: &mut Html, class: &str, value: f64, tooltip: &str) {
        let (left, right) = self.x.range();
        let y = Px(self.y.at(value));
        let class = format!("line {class}");
        html.mark("line", &[("class", &class), ("x1", &Px(left)), ("x2", &Px(right)), ("y1", &y), ("y2", &y)], tooltip);
    }

    /// Writes the labels at their heights, moved apart where they would touch.
    fn end_labels(&self, html: &mut Html) {
        let (bottom, top) = self.y.range();
        let mut labels: Vec<&EndLabel> = self.labels.iter().filter(|label| label.0.is_finite()).collect();
        labels.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut places: Vec<f64> = labels.iter().map(|label| self.y.at(label.0).clamp(top, bottom)).collect();
        spread(&mut places, (top, bottom));
        for ((_, class, text), y) in labels.into_iter().zip(places) {
            html.svg_text(&format!("label {class}"), self.x.range().1 + 7.0, y + 4.0, text);
        }
    }
}

/// Moves ascending places apart to at least `LABEL_GAP`, keeping them within `limits` as long as there is room.
fn spread(places: &mut [f64], limits: (f64, f64)) {
    for index in 1..places.len() {
        places[index] = places[index].max(places[index - 1] + LABEL_GAP);
    }
    let Some(over) = places.last().map(|last| last - limits.1).filter(|over| *over > 0.0) else { return };
    if let Some(last) = places.last_mut() {
        *last -= over;
    }
    for index in (0..places.len().saturating_sub(1)).rev() {
        places[index] = places[index].min(places[index + 1] - LABEL_GAP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_touch() {
        let mut places = vec![50.0, 52.0, 53.0, 99.0];
        spread(&mut places, (0.0, 100.0));
        assert_eq!(places, [50.0, 64.0, 78.0, 99.0]);
        let mut places = vec![98.0, 99.0, 100.0];
        spread(&mut places, (0.0, 100.0));
        assert_eq!(places, [72.0, 86.0, 100.0]);
    }
}
