//! Shows the beginning of a cell in an error.

const SHOWN_CHARS: usize = 40;

pub(super) fn brief(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cells_are_cut() {
        assert_eq!(brief(&"é".repeat(100)).chars().count(), 41);
    }
}
