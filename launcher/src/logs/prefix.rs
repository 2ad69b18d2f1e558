//! The prefix of a teed line: torchrun's default or the user's template.
//!
//! Pure. The template is Python's `string.Template` as torchrun uses it: names it does not know stay as they are.

use super::Who;

/// Prefix of a worker's lines.
pub(super) fn prefix(template: Option<&str>, who: &Who) -> Vec<u8> {
    match template.filter(|template| !template.is_empty()) {
        None => format!("[{}{}]:", who.role, who.local_rank).into_bytes(),
        Some(template) => substitute(template, who).into_bytes(),
    }
}

fn substitute(template: &str, who: &Who) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = macro_at(rest, who, &mut out);
        rest = &rest[taken..];
    }
    out + rest
}

/// Writes what stands for the text at this dollar sign and returns how much of it was used.
fn macro_at(text: &str, who: &Who, out: &mut String) -> usize {
    let after = &text[1..];
    if after.starts_with('$') {
        out.push('$');
        return 2;
    }
    let braced = after.starts_with('{');
    let name = &after[usize::from(braced)..];
    let length = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(name.len());
    let (name, rest) = name.split_at(length);
    let value = match name {
        "role_name" => Some(who.role.clone()),
        "rank" => Some(who.rank.to_string()),
        "local_rank" => Some(who.local_rank.to_string()),
        _ => None,
    };
    match value {
        Some(value) if !braced || rest.starts_with('}') => {
            out.push_str(&value);
            1 + name.len() + 2 * usize::from(braced)
        }
        _ => {
            out.push('$');
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_as_python_does() {
        let who = Who { role: "trainer".into(), local_rank: 3, rank: 11 };
        let fill = |template| String::from_utf8(prefix(template, &who)).unwrap();
        assert_eq!(fill(None), "[trainer3]:");
        assert_eq!(fill(Some("")), "[trainer3]:");
        assert_eq!(fill(Some("[${role_name}:${rank}/${local_rank}] ")), "[trainer:11/3] ");
        assert_eq!(fill(Some("$rank-$local_rank|")), "11-3|");
        assert_eq!(fill(Some("$$rank ${other} $ ${rank $rankx")), "$rank ${other} $ ${rank $rankx");
        assert_eq!(fill(Some("é$rank€")), "é11€");
    }
}
