//! Text of other programs without control characters, for output of this one.
//!
//! **Invariant:** pure and total; no control character is left, and no other that a terminal obeys.

use enn_common::shown;

/// Maximum number of rows of a long line.
const ROWS_MAX: usize = 4;

/// Splits text into lines without escape sequences and control characters. Of a line that was overwritten, the last
/// visible text is kept.
pub fn lines(text: &str) -> Vec<String> {
    let lines = text.trim_end().lines().map(|line| {
        let line = line.trim_end_matches('\r');
        let seen = line.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or_default();
        without_escapes(seen).trim_end().to_owned()
    });
    let lines: Vec<String> = lines.collect();
    let blank = lines.iter().take_while(|line| line.is_empty()).count();
    lines[blank..].to_vec()
}

fn without_escapes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' if chars.next_if_eq(&'[').is_some() => {
                // Parameters, then one final byte.
                while chars.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                chars.next();
            }
            '\t' => out.push_str("    "),
            c if c.is_control() => {}
            c if shown::is_obeyed(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Appends `text` in rows of at most `width` columns, each after `indent` and broken at blanks where possible. Text
/// beyond [`ROWS_MAX`] rows is cut.
pub fn wrap(text: &str, indent: &str, width: usize, out: &mut Vec<String>) {
    let room = width.saturating_sub(indent.chars().count()).max(1);
    let mut rest: Vec<char> = text.chars().collect();
    for row in 1..=ROWS_MAX {
        if rest.len() <= room {
            out.push(format!("{indent}{}", rest.iter().collect::<String>()));
            return;
        }
        if row == ROWS_MAX {
            let cut: String = rest[..room - 1].iter().collect();
            out.push(format!("{indent}{cut}…"));
            return;
        }
        // A break in the first half would waste the row: a long word is cut instead.
        let blank = rest[..=room].iter().rposition(|c| *c == ' ').filter(|at| *at > room / 2);
        let end = blank.unwrap_or(room);
        let row: String = rest[..end].iter().collect();
        out.push(format!("{indent}{}", row.trim_end()));
        rest.drain(..end + usize::from(blank.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_to_be_seen_is_left() {
        let text = "\n\x1b[1;31mred\x1b[0m\tx\n 10%\r 50%\r100%\r\nlast\x07\n\n";
        assert_eq!(lines(text), ["red    x", "100%", "last"]);
        assert!(lines("").is_empty());
    }
}
