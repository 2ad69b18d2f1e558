//! Meaning of column names: identifiers, times, directions, and the name of the target in another. Pure.

/// Last words of names of identifiers.
const IDENTIFIERS: [&str; 7] = ["id", "ids", "uuid", "guid", "identifier", "kennung", "pk"];
/// Words of names of identifiers if the values tell the rows apart, too.
const IDENTIFIERS_IF_UNIQUE: [&str; 10] =
    ["index", "idx", "key", "no", "nr", "number", "nummer", "row", "rownum", "unnamed"];
const TIMES: [&str; 11] =
    ["date", "datetime", "time", "timestamp", "when", "ds", "datum", "zeit", "zeitpunkt", "zeitstempel", "uhrzeit"];
/// Words of names of times that are no times of the samples.
const BIRTHS: [&str; 5] = ["birth", "birthday", "dob", "geburt", "geburtsdatum"];
const DIRECTIONS: [&str; 6] = ["dir", "direction", "heading", "bearing", "azimuth", "richtung"];
/// Letters of a target's name that must be there, so that it says something in another name.
const TARGET_LETTERS_MIN: usize = 4;

/// Returns the words of a name in lower case: `orderID_2` and `Order Id 2` are order, id, 2.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = ' ';
    for letter in name.chars() {
        let begins = !before.is_alphanumeric()
            || (before.is_lowercase() && letter.is_uppercase())
            || before.is_numeric() != letter.is_numeric();
        if letter.is_alphanumeric() {
            match words.last_mut() {
                Some(word) if !begins => word.extend(letter.to_lowercase()),
                _ => words.push(letter.to_lowercase().collect()),
            }
        }
        before = letter;
    }
    words
}

fn has(name: &str, known: &[&str]) -> bool {
    words(name).iter().any(|word| known.contains(&word.as_str()))
}

pub(super) fn is_identifier(name: &str) -> bool {
    words(name).last().is_some_and(|word| IDENTIFIERS.contains(&word.as_str()))
}

/// Whether a column of this name is an identifier if nearly each of its values occurs once.
pub(super) fn is_identifier_if_unique(name: &str) -> bool {
    name.is_empty() || is_identifier(name) || has(name, &IDENTIFIERS_IF_UNIQUE)
}

pub(super) fn is_time(name: &str) -> bool {
    has(name, &TIMES)
}

pub(super) fn is_birth(name: &str) -> bool {
    has(name, &BIRTHS)
}

pub(super) fn is_direction(name: &str) -> bool {
    has(name, &DIRECTIONS)
}

/// Whether a name contains the name of the target.
pub(super) fn contains_target(name: &str, target: &str) -> bool {
    let plain = |name: &str| words(name).concat();
    let target = plain(target);
    target.chars().count() >= TARGET_LETTERS_MIN && plain(name).contains(&target)
}

#[cfg(test)]
mod names_tests {
    use super::*;

    #[test]
    fn names_are_words_however_they_are_written() {
        for name in ["id", "customer_id", "CustomerID", "Customer Id", "order-uuid", "Kunden-ID"] {
            assert!(is_identifier(name), "{name}");
        }
        for name in ["idea", "paid", "humid", "width", "id_count", "price"] {
            assert!(!is_identifier(name), "{name}");
        }
        assert!(
            is_identifier_if_unique("Unnamed: 0") && is_identifier_if_unique("") && !is_identifier_if_unique("normal")
        );
        assert!(is_time("pickup_datetime") && is_time("Datum") && !is_time("lifetime") && is_birth("date_of_birth"));
        assert!(is_direction("wind_dir") && !is_direction("dirty"));
    }

    #[test]
    fn the_name_of_the_target_is_found_in_others() {
        assert!(contains_target("sale_price_eur", "SalePrice") && contains_target("log price", "price"));
        assert!(!contains_target("city", "y") && !contains_target("yes", "yesterday"));
    }
}
