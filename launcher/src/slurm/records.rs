//! What `scontrol -o show` prints: one line of `Name=Value` pairs.

/// Values by name, from one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record<'a>(&'a str);

impl<'a> Record<'a> {
    /// The first line of the answer that has pairs.
    pub(super) fn of(answer: &'a str) -> Option<Self> {
        answer.lines().find(|line| line.contains('=')).map(Record)
    }

    /// The value of `name`, up to the next blank; "(null)" and "" are none.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let value = |word: &'a str| word.strip_prefix(name)?.strip_prefix('=');
        self.0.split_whitespace().find_map(value).filter(|value| !value.is_empty() && *value != "(null)")
    }
}
