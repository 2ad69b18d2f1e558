//! HTML and SVG text that is always balanced and always escaped.
//!
//! **Invariant:** every string that is not a constant of this crate passes through [`Html::text`] or an attribute; elements are
//! closed by the call that opened them.

use enn_common::shown;
use std::fmt::{self, Display, Write};

/// Attributes of an element: name and value.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

/// HTML text under construction.
#[derive(Debug, Default)]
pub(super) struct Html {
    out: String,
}

impl Html {
    /// An element with content.
    pub(super) fn element(&mut self, tag: &'static str, attributes: Attributes, inner: impl FnOnce(&mut Self)) {
        self.open(tag, attributes);
        self.out.push('>');
        inner(self);
        self.out.push_str("</");
        self.out.push_str(tag);
        self.out.push('>');
    }

    /// An element that holds only text.
    pub(super) fn leaf(&mut self, tag: &'static str, attributes: Attributes, text: &str) {
        self.element(tag, attributes, |html| html.text(text));
    }

    /// An element without content.
    pub(super) fn void(&mut self, tag: &'static str, attributes: Attributes) {
        self.open(tag, attributes);
        self.out.push_str("/>");
    }

    /// An SVG mark without content but with a tooltip.
    pub(super) fn mark(&mut self, tag: &'static str, attributes: Attributes, tooltip: &str) {
        self.element(tag, attributes, |html| html.leaf("title", &[], tooltip));
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

    /// The text so far.
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
