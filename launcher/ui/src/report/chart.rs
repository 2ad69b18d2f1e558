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

/// Space around the plotting area.
#[derive(Debug, Clone, Copy)]
pub(super) struct Margin {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// A chart's frame: size, scales and what is written along the axes.
pub(super) struct Chart<'a> {
    /// Size of the drawing.
    pub(super) size: (f64, f64),
    /// Space around the plotting area.
    pub(super) margin: Margin,
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// Places and texts along the horizontal axis.
    pub(super) x_ticks: Vec<(f64, String)>,
    /// About how many places along the vertical axis.
    pub(super) y_ticks: usize,
    /// Name of the horizontal axis.
    pub(super) x_name: &'a str,
    /// Text alternative of the drawing.
    pub(super) description: &'a str,
}

impl Chart<'_> {
    /// The plotting area of a drawing: (left, right), (bottom, top).
    pub(super) fn area(size: (f64, f64), margin: Margin) -> ((f64, f64), (f64, f64)) {
        ((margin.left, size.0 - margin.right), (size.1 - margin.bottom, margin.top))
    }

    /// Draws the axes and then `inner`, which is cut off at the plotting area's edge.
    pub(super) fn draw(
        &self,
        html: &mut Html,
        clip: &str,
        inner: impl FnOnce(&mut Html),
        over: impl FnOnce(&mut Html),
    ) {
        let (width, height) = self.size;
        let view_box = format!("0 0 {width} {height}");
        html.element("svg", &[("viewBox", &view_box), ("role", &"img"), ("aria-label", &self.description)], |html| {
            self.axes(html);
            let ((left, right), (bottom, top)) = Self::area(self.size, self.margin);
            html.element("clipPath", &[("id", &clip)], |html| {
                let width = Px(right - left);
                let height = Px(bottom - top + 8.0);
                html.void("rect", &[("x", &Px(left)), ("y", &Px(top - 4.0)), ("width", &width), ("height", &height)]);
            });
            html.element("g", &[("clip-path", &format!("url(#{clip})"))], inner);
            over(html);
        });
    }

    fn axes(&self, html: &mut Html) {
        let ((left, right), (bottom, _)) = Self::area(self.size, self.margin);
        for (value, label) in self.y.ticks(self.y_ticks) {
            let y = self.y.at(value);
            html.void(
                "line",
                &[("class", &"grid"), ("x1", &Px(left)), ("x2", &Px(right)), ("y1", &Px(y)), ("y2", &Px(y))],
            );
            html.leaf("text", &[("class", &"tick end"), ("x", &Px(left - 7.0)), ("y", &Px(y + 4.0))], &label);
        }
        html.void(
            "line",
            &[("class", &"axis"), ("x1", &Px(left)), ("x2", &Px(right)), ("y1", &Px(bottom)), ("y2", &Px(bottom))],
        );
        for (value, label) in &self.x_ticks {
            html.leaf(
                "text",
                &[("class", &"tick mid"), ("x", &Px(self.x.at(*value))), ("y", &Px(bottom + 16.0))],
                label,
            );
        }
        if !self.x_name.is_empty() {
            html.leaf("text", &[("class", &"tick end"), ("x", &Px(right)), ("y", &Px(bottom + 31.0))], self.x_name);
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
        for (index, (x, y)) in
            points.iter().enumerate().step_by(every).filter(|(_, p)| p.0.is_finite() && p.1.is_finite())
        {
            let place: [Px; 2] = [Px(self.x.at(*x)), Px(self.y.at(*y))];
            html.mark(
                "circle",
                &[("class", &"touch"), ("cx", &place[0]), ("cy", &place[1]), ("r", &7)],
                &tooltip(index),
            );
        }
    }

    /// A horizontal reference line.
    pub(super) fn level(&self, html: &mut Html, class: &str, value: f64, tooltip: &str) {
        let (left, right) = self.x.range();
        let y = Px(self.y.at(value));
        let class = format!("line {class}");
        html.mark("line", &[("class", &class), ("x1", &Px(left)), ("x2", &Px(right)), ("y1", &y), ("y2", &y)], tooltip);
    }

    /// Texts right of the plotting area at the heights of `labels` (value, class, text), moved apart where they would touch.
    pub(super) fn end_labels(&self, html: &mut Html, labels: &[(f64, &str, String)]) {
        let (bottom, top) = self.y.range();
        let mut order: Vec<usize> = (0..labels.len()).filter(|i| labels[*i].0.is_finite()).collect();
        order.sort_by(|a, b| labels[*b].0.total_cmp(&labels[*a].0));
        let mut places: Vec<f64> = order.iter().map(|i| self.y.at(labels[*i].0).clamp(top, bottom)).collect();
        spread(&mut places, (top, bottom));
        for (index, y) in order.into_iter().zip(places) {
            let (_, class, text) = &labels[index];
            let class = format!("label {class}");
            html.leaf("text", &[("class", &class), ("x", &Px(self.x.range().1 + 7.0)), ("y", &Px(y + 4.0))], text);
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
