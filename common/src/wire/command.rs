//! Requests of a user to a run that is under way, and their answers: one line of JSON each way.

use serde::{Deserialize, Serialize};

/// Longest line either side reads, bytes; the rest of a longer one is not looked at.
pub const LINE_BYTES_MAX: usize = 16 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Go on with so many workers.
    Resize {
        /// At least 1.
        workers: u32,
    },
    /// Leave the round at a step and stay warm, until `Continue`.
    Pause {},
    /// Go on after `Pause`.
    Continue {},
    /// Save and leave the node, or end the run where it has one node only.
    Drain {
        /// Host; the only one when left out.
        node: Option<String>,
    },
    /// Finish the step, save, end.
    Stop {},
    /// Cut the link between a node and the leader for a while, to see what the run does.
    Cut { node: String, seconds: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Accepted {
        /// Consequence, one sentence.
        says: String,
    },
    Refused {
        /// Why, with what was found.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_people_would_write_them() {
        let line = |request: &Request| serde_json::to_string(request).unwrap();
        assert_eq!(line(&Request::Resize { workers: 3 }), r#"{"command":"resize","workers":3}"#);
        assert_eq!(line(&Request::Pause {}), r#"{"command":"pause"}"#);
        for wrong in [r#"{"command":"explode"}"#, r#"{"command":"stop","now":true}"#, r#"{"command":"resize"}"#, "[]"] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
        let drain: Request = serde_json::from_str(r#"{"command":"drain","node":"a"}"#).unwrap();
        assert_eq!(drain, Request::Drain { node: Some("a".into()) });
    }
}
