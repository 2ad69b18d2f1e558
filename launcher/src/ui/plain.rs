//! What programs of others printed, made harmless for a page of ours.
//!
//! **Invariant:** pure and total; no control character is left.

/// Lines without escape sequences and control characters; of a line that was written over, what was last to be seen.
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
            c => out.push(c),
        }
    }
    out
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
