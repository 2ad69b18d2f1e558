//! A selection of logs to show.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSelection {
    /// The ranks to show; empty: all.
    pub ranks: Vec<u32>,
    /// The attempt or round; `None`: the last one, and those that follow it.
    pub attempt: Option<u32>,
    pub out: bool,
    pub err: bool,
}
