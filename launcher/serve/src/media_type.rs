//! Media types of requests and answers.

/// Media type of Arrow IPC streams.
pub(super) const ARROW: &str = "application/vnd.apache.arrow.stream";
pub(super) const JSON: &str = "application/json";
