//! Python's `string.Template` with `safe_substitute`, as torchrun uses it: names that are not known stay as they are. Pure.

/// Fills in a template: `value` returns the value of a name.
pub fn substitute(template: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let taken = macro_at(rest, &value, &mut out);
        rest = &rest[taken..];
    }
    out + rest
}

/// Writes the expansion of the text at this dollar sign and returns the bytes of the text that it replaces.
fn macro_at(text: &str, value: impl Fn(&str) -> Option<String>, out: &mut String) -> usize {
    let after = &text[1..];
    if after.starts_with('$') {
        out.push('$');
        return 2;
    }
    let braced = after.starts_with('{');
    let name = &after[usize::from(braced)..];
    let length = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(name.len());
    let (name, rest) = name.split_at(length);
    match value(name) {
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
        let fill = |template| substitute(template, |name| (name == "rank").then(|| "11".to_owned()));
        assert_eq!(fill("[${rank}/$rank] "), "[11/11] ");
        assert_eq!(fill("$$rank ${other} $ ${rank $rankx"), "$rank ${other} $ ${rank $rankx");
        assert_eq!(fill("é$rank€"), "é11€");
        assert_eq!(fill("none"), "none");
    }
}
