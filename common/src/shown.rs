//! Text for people of which parts come from elsewhere: names in files, messages, what a library says.
//!
//! **Invariant:** pure and total; no character is left that a terminal, a browser or an editor obeys instead of showing it.

use std::borrow::Cow;

/// Whether this character is obeyed instead of shown: control characters of both kinds, and the marks that turn, hide or break the
/// text around them.
pub fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}'
        )
}

/// One line: what is obeyed is written as an escape, also the end of a line.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, &[], |character| character.escape_default().to_string())
}

/// Lines: their ends and tabs stay, everything else that is obeyed is written as an escape.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, &['\n', '\t'], |character| character.escape_default().to_string())
}

/// A JSON document that says the same to a program and holds nothing a terminal obeys. JSON itself leaves some of it as it is.
pub fn json(document: &str) -> Cow<'_, str> {
    // All of them lie in the first plane, so that four digits say them.
    escaped(document, &['\n', '\t', '\r'], |character| format!("\\u{:04x}", u32::from(character)))
}

fn escaped<'t>(text: &'t str, kept: &[char], escape: impl Fn(char) -> String) -> Cow<'t, str> {
    let is_kept = |character: char| !is_obeyed(character) || kept.contains(&character);
    if text.chars().all(is_kept) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_kept(character) {
            out.push(character);
        } else {
            out.push_str(&escape(character));
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_obeyed_is_seen_instead() {
        assert_eq!(line("a\nb\u{1b}[2J größe 😀\u{9b}\u{7f}"), "a\\nb\\u{1b}[2J größe 😀\\u{9b}\\u{7f}");
        assert_eq!(line("\u{202e}txt\u{2066}x\u{2069}\u{200f}"), "\\u{202e}txt\\u{2066}x\\u{2069}\\u{200f}");
        assert_eq!(lines("a\n\tb\r\u{7}"), "a\n\tb\\r\\u{7}");
        assert!(matches!(lines("as it is\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_document_says_the_same() {
        let value = serde_json::json!({"name\u{202e}": ["\u{9b}2J", "\u{7f}", "😀\n"]});
        let document = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&document);
        assert!(!shown.chars().any(|character| is_obeyed(character) && character != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    proptest! {
        #[test]
        fn nothing_is_obeyed(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(is_obeyed));
            prop_assert!(!lines(&text).chars().any(|character| is_obeyed(character) && !matches!(character, '\n' | '\t')));
        }
    }
}
