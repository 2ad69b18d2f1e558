//! What `train.ledger` leaves in `<run>/ledger`: a file of lines per worker process, which say what rows went into which step.
//!
//! Each rank writes a line before it contributes to a step, and one after the step is whole. A step that is whole on one rank
//! is whole for all: the others get its state. Where a step was done more than once, because the state of the rank that did
//! it was lost, the latest round counts. The rows of a step are those of all lines with its number in that round.
//!
//! **Invariant:** a line is appended by one write, so that a process may be killed at any time; only a last line may be torn.

use serde::{Deserialize, Serialize};
use std::io;

/// Folder in the run directory.
pub const FOLDER: &str = "ledger";

pub fn name(pid: u32) -> String {
    format!("{pid}.jsonl")
}

/// A line. Steps and epochs are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A rank is about to contribute to a step.
    Begun {
        round: u64,
        /// Start of the workers.
        attempt: String,
        step: u64,
        epoch: u64,
        rank: u32,
        /// Identities of the rows of its share, those included that are left out.
        rows: Vec<i64>,
    },
    /// A step is whole.
    Done {
        done: u64,
        round: u64,
        /// Start of the workers.
        attempt: String,
    },
    /// Rows weigh nothing from this step on: they made it not finite.
    LeftOut {
        /// Identities of the rows.
        left_out: Vec<i64>,
        step: u64,
        round: u64,
    },
}

impl Line {
    /// The line with its end.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The whole lines of a file, in its order. A torn last line is passed over.
    ///
    /// # Errors
    /// When a whole line is not one of a ledger.
    pub fn decode_all(text: &str) -> serde_json::Result<Vec<Self>> {
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(serde_json::from_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_a_torn_one_is_passed_over() {
        let attempt = || "a".to_owned();
        let lines = [
            Line::Begun { round: 2, attempt: attempt(), step: 7, epoch: 1, rank: 0, rows: vec![5, -3] },
            Line::LeftOut { left_out: vec![5], step: 7, round: 2 },
            Line::Done { done: 7, round: 2, attempt: attempt() },
        ];
        let mut text: String = lines.iter().map(|line| String::from_utf8(line.encode().unwrap()).unwrap()).collect();
        assert!(text.starts_with(r#"{"round":2,"attempt":"a","step":7,"epoch":1,"rank":0,"rows":[5,-3]}"#), "{text}");
        text.push_str(r#"{"done":8,"rou"#);
        assert_eq!(Line::decode_all(&text).unwrap(), lines);
        assert!(Line::decode_all("{}\n").is_err());
    }
}
