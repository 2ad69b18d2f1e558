//! HTML and SVG text that is always balanced and always escaped.
//!
//! **Invariant:** every string that is not a constant of this crate passes through [`Html::text`] or an attribute; elements are
//! closed by the call that opened them.

use enn_common::shown;
use std::fmt::{self, Display, Write};

/// Attributes of an element: name and value.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

#[derive(Debug, Clone, Copy)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

#[derive(Debug, Default)]
pub(super) struct Html {
    out: String,
}

impl Html {
    pub(super) fn element(&mut self, tag: &'static str, attributes: Attributes, inner: impl FnOnce(&mut Self)) {
        self.open(tag, attributes);
        self.out.push('>');
        inner(self);
        self.out.push_str("</");
        self.out.push_str(tag);
        self.out.push('>');
    }

    pub(super) fn leaf(&mut self, tag: &'static str, attributes: Attributes, text: &str) {
        self.element(tag, attributes, |html| html.text(text));
    }

    pub(super) fn void(&mut self, tag: &'static str, attributes: Attributes) {
        self.open(tag, attributes);
        self.out.push_str("/>");
    }

    /// An SVG mark without content but with a tooltip.
    pub(super) fn mark(&mut self, tag: &'static str, attributes: Attributes, tooltip: &str) {
        self.element(tag, attributes, |html| html.leaf("title", &[], tooltip));
    }

    /// A paragraph in small print.
    pub(super) fn note(&mut self, text: &str) {
        self.leaf("p", &[("class", &"note")], text);
    }

    /// A drawing of this size with a text alternative.
    pub(super) fn svg(&mut self, width: f64, height: f64, description: &str, inner: impl FnOnce(&mut Self)) {
        let view_box = format!("0 0 {} {}", Px(width), Px(height));
        self.element("svg", &[("viewBox", &view_box), ("role", &"img"), ("aria-label", &description)], inner);
    }

    pub(super) fn svg_text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        self.leaf("text", &[("class", &class), ("x", &Px(x)), ("y", &Px(y))], text);
    }

    pub(super) fn segment(&mut self, class: &str, x: [f64; 2], y: [f64; 2]) {
        let [x, y] = [x, y].map(|ends| ends.map(Px));
        self.void("line", &[("class", &class), ("x1", &x[0]), ("x2", &x[1]), ("y1", &y[0]), ("y2", &y[1])]);
    }

    /// A rectangle of a drawing with a tooltip; `corner` is the radius of its corners.
    pub(super) fn rect(&mut self, class: &str, rect: Rect, corner: u8, tooltip: &str) {
        let [x, y, width, height] = [rect.x, rect.y, rect.width, rect.height].map(Px);
        let look: Attributes = &[("class", &class), ("rx", &corner)];
        let place: Attributes = &[("x", &x), ("y", &y), ("width", &width), ("height", &height)];
        self.mark("rect", &[look, place].concat(), tooltip);
    }

    /// A list that explains colours: class, name and number.
    pub(super) fn keys<'a>(&mut self, keys: impl IntoIterator<Item = (&'a str, &'a str, Option<String>)>) {
        self.element("ul", &[("class", &"keys")], |html| {
            for (class, name, number) in keys {
                html.element("li", &[], |html| {
                    html.leaf("span", &[("class", &format!("swatch {class}"))], "");
                    html.text(name);
                    number.iter().for_each(|number| html.leaf("b", &[], number));
                });
            }
        });
    }

    /// A table that scrolls on a narrow screen; its first column has names, the others numbers.
    pub(super) fn table(&mut self, class: &str, head: &[&str], rows: impl IntoIterator<Item = Row>) {
        self.element("div", &[("class", &"scroll")], |html| {
            html.element("table", &[("class", &class)], |html| {
                let mut rows = rows.into_iter().peekable();
                let bars = rows.peek().and_then(|row| row.bar).map(|_| head.len() - 1);
                html.element("thead", &[], |html| {
                    html.element("tr", &[], |html| {
                        for (column, name) in head.iter().enumerate() {
                            let class = if column == 0 { "" } else { "number" };
                            let class = if Some(column) == bars { "bars" } else { class };
                            html.leaf("th", &[("class", &class)], name);
                        }
                    });
                });
                html.element("tbody", &[], |html| rows.for_each(|row| html.row(&row)));
            });
        });
    }

    fn row(&mut self, row: &Row) {
        self.element("tr", &[("class", &if row.is_ours { "ours" } else { "" })], |html| {
            html.leaf("th", &[("scope", &"row")], &row.name);
            row.cells.iter().for_each(|cell| html.leaf("td", &[("class", &"number")], cell));
            if let Some(percent) = row.bar {
                html.element("td", &[("class", &"bars")], |html| {
                    html.leaf("span", &[("class", &"hbar"), ("style", &format!("width:{percent:.1}%"))], "");
                });
            }
        });
    }

    /// Appends text, escaped for HTML.
    pub(super) fn text(&mut self, text: &str) {
        // Writing to a String cannot fail.
        let _ = EscapedWriter(&mut self.out).write_str(text);
    }

    /// A constant of this crate that is markup already.
    pub(super) fn constant(&mut self, markup: &'static str) {
        self.out.push_str(markup);
    }

    pub(super) fn into_string(self) -> String {
        self.out
    }

    fn open(&mut self, tag: &'static str, attributes: Attributes) {
        self.out.push('<');
        self.out.push_str(tag);
        for (name, value) in attributes {
            self.out.push(' ');
            self.out.push_str(name);
            self.out.push_str("=\"");
            let _ = write!(EscapedWriter(&mut self.out), "{value}");
            self.out.push('"');
        }
    }
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) cells: Vec<String>,
    /// Whether it is the row of the model.
    pub(super) is_ours: bool,
    /// Length of the bar behind the numbers, percent.
    pub(super) bar: Option<f64>,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, cells: Vec<String>) -> Self {
        Self { name: name.into(), cells, is_ours: false, bar: None }
    }
}

struct EscapedWriter<'a>(&'a mut String);

impl Write for EscapedWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\n' | '\t' => self.0.push(character),
                obeyed if shown::is_obeyed(obeyed) => self.0.extend(obeyed.escape_default()),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

/// A length in user units of a drawing, to a tenth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Px(pub(super) f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round();
        if tenths % 10.0 == 0.0 { write!(f, "{:.0}", tenths / 10.0) } else { write!(f, "{:.1}", tenths / 10.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// No text can open a tag, end an attribute or smuggle a control character.
        #[test]
        fn any_text_is_harmless(text in any::<String>()) {
            let mut html = Html::default();
            html.element("p", &[("title", &text)], |html| html.text(&text));
            let out = html.into_string();
            prop_assert_eq!(out.matches('<').count(), 2);
            prop_assert_eq!(out.matches('>').count(), 2);
            prop_assert_eq!(out.matches('"').count(), 2);
            prop_assert!(!out.chars().any(|character| shown::is_obeyed(character) && !matches!(character, '\n' | '\t')));
        }
    }

    #[test]
    fn lengths_are_short() {
        assert_eq!([1.0, 1.25, -0.04, 99.96].map(|v| Px(v).to_string()), ["1", "1.3", "-0", "100"]);
    }
}
