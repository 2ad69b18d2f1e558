//! The output of `scontrol -o show`: one line of `Name=Value` pairs.

/// Values by name, from one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScontrolRecord<'a>(&'a str);

impl<'a> ScontrolRecord<'a> {
    /// Returns the first line of the answer that has pairs.
    pub(super) fn of(answer: &'a str) -> Option<Self> {
        answer.lines().find(|line| line.contains('=')).map(ScontrolRecord)
    }

    /// Returns the value of `name`, up to the next blank; `None` for "(null)" and "".
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
        self.0.split_whitespace().find_map(value).filter(|value| !value.is_empty() && *value != "(null)")
    }
}
