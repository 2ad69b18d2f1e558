//! Slurm's host lists: `gpu[001-003,007],cpu-[a,b][1-2]` to names.
//!
//! Zero padding follows Slurm: numbers are padded to the width of the range's first number. An item between brackets that is
//! no number stands for itself. Several brackets count like digits: the last one varies fastest.
//!
//! **Invariant:** no list expands to more than [`NAMES_MAX`] names, to a name longer than [`NAME_BYTES_MAX`], or to more than
//! [`NAMES_BYTES_MAX`] in all.

pub const NAMES_MAX: usize = 65_536;
/// Limit on the bytes of a name, as for host names.
pub const NAME_BYTES_MAX: usize = 253;

/// Limit on the bytes of all names: [`NAMES_MAX`] names of 32 bytes.
pub const NAMES_BYTES_MAX: usize = 2 << 20;

/// Errors of a list that cannot be parsed. Positions are counted in characters, from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    #[error("the host list {list:?} has no name at character {at}")]
    Empty { list: String, at: usize },
    #[error("the host list {list:?} has {found:?} at character {at}, which is part of no host name")]
    Character { list: String, at: usize, found: char },
    #[error("the host list {list:?} has a bracket without a partner at character {at}")]
    Bracket { list: String, at: usize },
    #[error(
        "the host list {list:?} has {found:?} at character {at} where a number or a range such as 01-16 was expected"
    )]
    Range { list: String, at: usize, found: String },
    #[error("the host list {list:?} has the range {found:?} at character {at}, which ends before it begins")]
    Backwards { list: String, at: usize, found: String },
    #[error("the host list of {bytes} bytes stands for more than {NAMES_MAX} names")]
    TooMany { bytes: usize },
    #[error("the host list of {bytes} bytes stands for names of more than {NAMES_BYTES_MAX} bytes together")]
    TooLarge { bytes: usize },
    #[error("the host list of {bytes} bytes has a name longer than {NAME_BYTES_MAX} bytes")]
    TooLong { bytes: usize },
}

/// One alternative for a part of a name.
enum NamePart {
    Text(String),
    Numbers { first: u64, last: u64, width: usize },
}

pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let chars: Vec<char> = list.chars().collect();
    let mut names = Vec::new();
    let mut room_bytes = NAMES_BYTES_MAX;
    let mut at = 0;
    loop {
        let entry_at = at;
        let mut columns = Vec::new();
        while at < chars.len() && chars[at] != ',' {
            let (column, end) = if chars[at] == '[' { bracket(list, &chars, at)? } else { text(list, &chars, at)? };
            columns.push(column);
            at = end;
        }
        if columns.is_empty() {
            return Err(HostlistError::Empty { list: list.to_owned(), at: entry_at + 1 });
        }
        product(list, &columns, &mut names, &mut room_bytes)?;
        if at == chars.len() {
            return Ok(names);
        }
        at += 1;
    }
}

/// Parses plain characters from `at` on; returns their end, too.
fn text(list: &str, chars: &[char], at: usize) -> Result<(Vec<NamePart>, usize), HostlistError> {
    let end = at + chars[at..].iter().take_while(|c| !matches!(c, ',' | '[')).count();
    for (index, found) in chars[at..end].iter().enumerate() {
        let at = at + index + 1;
        match found {
            ']' => return Err(HostlistError::Bracket { list: list.to_owned(), at }),
            c if !allowed(*c) => return Err(HostlistError::Character { list: list.to_owned(), at, found: *found }),
            _ => {}
        }
    }
    Ok((vec![NamePart::Text(chars[at..end].iter().collect())], end))
}

/// Parses the items between the bracket at `at` and its partner; returns the index after it, too.
fn bracket(list: &str, chars: &[char], at: usize) -> Result<(Vec<NamePart>, usize), HostlistError> {
    let length = chars[at + 1..].iter().take_while(|c| !matches!(c, '[' | ']')).count();
    let end = at + 1 + length;
    if chars.get(end) != Some(&']') {
        return Err(HostlistError::Bracket { list: list.to_owned(), at: at + 1 });
    }
    let mut parts = Vec::new();
    let mut item_at = at + 1;
    for item in chars[at + 1..end].split(|c| *c == ',') {
        parts.push(part(list, item, item_at + 1)?);
        item_at += item.len() + 1;
    }
    Ok((parts, end + 1))
}

/// Parses one item between brackets: N, N-M, or a word without a hyphen.
fn part(list: &str, item: &[char], at: usize) -> Result<NamePart, HostlistError> {
    let found: String = item.iter().collect();
    let range = || HostlistError::Range { list: list.to_owned(), at, found: found.clone() };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    if let Some((first, last)) = found.split_once('-') {
        let low = number(first).ok_or_else(range)?;
        let high = number(last).ok_or_else(range)?;
        if high < low {
            return Err(HostlistError::Backwards { list: list.to_owned(), at, found: found.clone() });
        }
        return Ok(NamePart::Numbers { first: low, last: high, width: first.len() });
    }
    if found.is_empty() || !found.chars().all(allowed) {
        return Err(range());
    }
    Ok(NamePart::Text(found))
}

fn allowed(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !matches!(c, ',' | '[' | ']')
}

/// Appends every combination of the columns to `names`, the last column varying fastest.
fn product(
    list: &str,
    columns: &[Vec<NamePart>],
    names: &mut Vec<String>,
    room_bytes: &mut usize,
) -> Result<(), HostlistError> {
    let too_many = HostlistError::TooMany { bytes: list.len() };
    let mut count = 1_u64;
    let mut bytes = 0_usize;
    for column in columns {
        let mut values = 0_u64;
        for part in column {
            values = values.saturating_add(part.count());
        }
        count = count.saturating_mul(values);
        bytes += column.iter().map(NamePart::bytes_max).max().unwrap_or(0);
    }
    let room = NAMES_MAX - names.len();
    let Some(count) = usize::try_from(count).ok().filter(|count| *count <= room) else { return Err(too_many) };
    if bytes > NAME_BYTES_MAX {
        return Err(HostlistError::TooLong { bytes: list.len() });
    }
    *room_bytes = room_bytes.checked_sub(count * bytes).ok_or(HostlistError::TooLarge { bytes: list.len() })?;
    let mut combined = vec![String::new()];
    for column in columns {
        let values: Vec<String> = column.iter().flat_map(NamePart::values).collect();
        combined = combined.iter().flat_map(|name| values.iter().map(move |value| format!("{name}{value}"))).collect();
    }
    names.extend(combined);
    Ok(())
}

impl NamePart {
    fn count(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Numbers { first, last, .. } => (last - first).saturating_add(1),
        }
    }

    fn bytes_max(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Numbers { last, width, .. } => (*width).max(last.checked_ilog10().map_or(1, |log| log as usize + 1)),
        }
    }

    fn values(&self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text.clone()],
            Self::Numbers { first, last, width } => {
                (*first..=*last).map(|number| format!("{number:0width$}")).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(list: &str) -> String {
        expand(list).unwrap_or_else(|error| panic!("{error}")).join(" ")
    }

    #[test]
    fn every_form_of_a_list() {
        for (list, expected) in [
            ("n1", "n1"),
            ("a,b", "a b"),
            ("n[9-11]", "n9 n10 n11"),
            ("n[09-11]", "n09 n10 n11"),
            ("n[1-002]", "n1 n2"),
            ("n[01-1]", "n01"),
            ("n[8-0010]", "n8 n9 n10"),
            ("gpu[001-003,007],cpu-[a,b][1-2]", "gpu001 gpu002 gpu003 gpu007 cpu-a1 cpu-a2 cpu-b1 cpu-b2"),
            ("n[1-3]x[01-02]", "n1x01 n1x02 n2x01 n2x02 n3x01 n3x02"),
            ("r[1-2]n[1-2]c[1-2]", "r1n1c1 r1n1c2 r1n2c1 r1n2c2 r2n1c1 r2n1c2 r2n2c1 r2n2c2"),
            ("n[1,3]-ib", "n1-ib n3-ib"),
            ("[1-2]", "1 2"),
            ("n[1-3,2]", "n1 n2 n3 n2"),
            ("node-1.cluster.example,10.0.0.[1-2]", "node-1.cluster.example 10.0.0.1 10.0.0.2"),
            ("n[18446744073709551615]", "n18446744073709551615"),
        ] {
            assert_eq!(names(list), expected, "{list}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (list, expected) in [
            ("", "no name at character 1"),
            ("a,,b", "no name at character 3"),
            ("a,", "no name at character 3"),
            ("n[1-3", "a bracket without a partner at character 2"),
            ("n1-3]", "a bracket without a partner at character 5"),
            ("n[[1-2]]", "a bracket without a partner at character 2"),
            ("n[]", "has \"\" at character 3"),
            ("n[1,]", "has \"\" at character 5"),
            ("n[1-]", "has \"1-\" at character 3"),
            ("n[3,-1]", "has \"-1\" at character 5"),
            ("n[1-2-3]", "has \"1-2-3\" at character 3"),
            ("n[1 - 2]", "has \"1 - 2\" at character 3"),
            ("n[a-c]", "has \"a-c\" at character 3"),
            ("n[1,3-1]", "the range \"3-1\" at character 5, which ends before it begins"),
            ("a b", "has ' ' at character 2"),
            ("n[1-99999999999999999999]", "has \"1-99999999999999999999\" at character 3"),
        ] {
            let error = expand(list).unwrap_err().to_string();
            assert!(error.contains(expected), "{list}: {error}");
        }
    }

    #[test]
    fn a_list_has_its_limits() {
        assert_eq!(expand("n[1-65536]").map(|names| names.len()), Ok(NAMES_MAX));
        let many = |list: &str| matches!(expand(list), Err(HostlistError::TooMany { .. }));
        assert!(many("n[1-65537]") && many("n[1-65536],m") && many("[0-18446744073709551615]"));
        assert!(many(&"[0-9]".repeat(40)), "10^40 overflows no counter");
        // As many names as there may be, of more bytes than they may have.
        let wide = format!("{}[1-65536]", "n".repeat(40));
        assert!(matches!(expand(&wide), Err(HostlistError::TooLarge { .. })));
        assert!(expand(&wide.replace("65536", "40000")).is_ok());
        let long = |list: &str| matches!(expand(list), Err(HostlistError::TooLong { .. }));
        assert!(long(&"n".repeat(254)) && long(&format!("n[{}1-9]", "0".repeat(253))));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(list in "[a-b0-9,\\[\\]\\- x]{0,40}") {
            if let Ok(names) = expand(&list) {
                prop_assert!(names.len() <= NAMES_MAX && names.iter().all(|name| !name.is_empty()));
            }
        }
    }
}
