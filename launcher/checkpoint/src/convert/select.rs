//! Selects and renames tensors and values: `--only`, `--without`, `--strip`.

/// A selection of names. The default takes all names unchanged.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Patterns of which one must match; empty: every name matches.
    pub only: Vec<String>,
    pub without: Vec<String>,
    /// A prefix that is removed from names, with the dot after it.
    pub strip: Option<String>,
}

impl Selection {
    /// Returns whether all names are taken unchanged.
    pub(super) fn is_all(&self) -> bool {
        self.only.is_empty() && self.without.is_empty() && self.strip.is_none()
    }

    /// Returns the name in the target; `None`: it is left out.
    pub(super) fn name<'a>(&self, name: &'a str) -> Option<&'a str> {
        let fits = |patterns: &[String]| patterns.iter().any(|pattern| fits(pattern, name));
        if (!self.only.is_empty() && !fits(&self.only)) || fits(&self.without) {
            return None;
        }
        let stripped = self.strip.as_deref().and_then(|strip| name.strip_prefix(strip.trim_end_matches('.')));
        Some(stripped.and_then(|rest| rest.strip_prefix('.')).filter(|rest| !rest.is_empty()).unwrap_or(name))
    }
}

/// Returns whether a pattern matches: `*` is any text; without one, the pattern is a name or its prefix up to a dot.
fn fits(pattern: &str, name: &str) -> bool {
    if pattern.contains('*') {
        return glob(pattern.as_bytes(), name.as_bytes());
    }
    let beginning = pattern.strip_suffix('.').unwrap_or(pattern);
    name.strip_prefix(beginning).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Matches wildcards by backtracking to the last `*`: linear in the usual case, never exponential.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let mut at = 0;
    let mut seen = 0;
    let mut star = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(byte) if *byte == text[seen] => (at, seen) = (at + 1, seen + 1),
            _ => {
                let Some((place, from)) = star else { return false };
                star = Some((place, from + 1));
                at = place + 1;
                seen = from + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_names_beginnings_or_have_stars() {
        for (pattern, name, expected) in [
            ("model", "model.a", true),
            ("model.", "model.a", true),
            ("model", "models.a", false),
            ("model.a", "model.a", true),
            ("*.weight", "a.b.weight", true),
            ("*.weight", "a.weight_scale", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn what_is_left_out_has_no_name_and_beginnings_are_taken_off() {
        let all = Selection::default();
        assert_eq!(all.name("model.a"), Some("model.a"));
        let some = Selection { only: vec!["model".into()], without: vec!["*.b".into()], strip: Some("model.".into()) };
        assert_eq!((some.name("model.a"), some.name("model.b"), some.name("optim.a")), (Some("a"), None, None));
        assert_eq!(some.name("model"), Some("model"));
    }
}
