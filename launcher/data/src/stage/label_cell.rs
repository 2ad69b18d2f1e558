//! The text of a cell that holds any number of labels.

/// Prefix of each label of a list, which the user's separator does not split.
const LISTED: char = '\u{1f}';

/// Joins a list of labels to the text of a cell that no separator splits.
pub fn listed(labels: &[String]) -> String {
    if labels.is_empty() {
        return LISTED.to_string();
    }
    labels.iter().flat_map(|label| [LISTED.to_string(), label.clone()]).collect()
}

/// Iterates over the labels of a cell, including repetitions.
pub(super) fn of_cell(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let separator = if text.starts_with(LISTED) { LISTED } else { separator };
    text.split(separator).map(str::trim).filter(|label| !label.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_cut_at_its_separator_and_a_list_where_it_was() {
        let of = |text: &'static str, separator| of_cell(text, separator).collect::<Vec<_>>();
        assert_eq!(of("rain; wind;;", ';'), ["rain", "wind"]);
        assert_eq!(of("rain; wind", '|'), ["rain; wind"]);
        assert!(of("", ';').is_empty());
        for labels in [vec![], vec!["a;b".to_owned()], vec!["a;b".to_owned(), "c".to_owned()]] {
            let text = listed(&labels);
            assert_eq!(of_cell(&text, ';').collect::<Vec<_>>(), labels);
        }
    }
}
