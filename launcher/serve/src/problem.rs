//! Errors of requests, with a sentence and an HTTP status.

use super::{engine::EngineError, rows_error::RowsError};
use enn_data::stage::{EncodeError, StageError};

/// The reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("there is nothing at {path}; POST /predict and /streams, GET /, /health and /metrics are")]
    NotFound { path: String },
    #[error("{path} takes {allowed}, found {found}")]
    Method { path: &'static str, allowed: &'static str, found: String },
    #[error("this server asks for a token: send the header Authorization: Bearer TOKEN")]
    Token,
    #[error("the header Host says {found:?}, expected this server's own address")]
    Host { found: String },
    #[error("the Content-Type is {found:?}, expected application/json or {}", super::media_type::ARROW)]
    Kind { found: String },
    #[error("the body has more than {limit} bytes: send fewer rows at a time")]
    Large { limit: usize },
    #[error("the body has more than {limit} bytes once it is unpacked: send fewer rows at a time")]
    Unpacked { limit: usize },
    #[error("{found} rows, expected at most {limit}: send them in parts")]
    Rows { found: usize, limit: usize },
    #[error("the body did not come within {seconds} s")]
    Slow { seconds: u64 },
    #[error("the body was cut off: {0}")]
    Cut(String),
    #[error(transparent)]
    Body(#[from] RowsError),
    #[error(transparent)]
    Encode(Box<EncodeError>),
    #[error("{}", without(.0, .1))]
    Stage(Box<StageError>, String),
    #[error("a file of the request: {0}")]
    Scratch(std::io::Error),
    #[error("too much is waiting already: send it again later")]
    Busy,
    #[error("no worker is up: {cause}")]
    NoWorker { cause: String },
    #[error("the worker that computed this ended ({cause}): send it again")]
    Lost { cause: String },
    #[error("there was no answer within {seconds} s: send it again later")]
    Late { seconds: u64 },
    #[error("the worker gave no answer within {seconds} s and is replaced: send it again")]
    Hung { seconds: u64 },
    #[error("this server has no streams: its model has no state, or was not served, or exported, with --stream")]
    NoStreams,
    #[error("stream {name:?} is not open: it never was, has ended, or had no rows for {seconds} s")]
    Stream { name: String, seconds: u64 },
    #[error("the stream computes another request: its rows come one after the other")]
    StreamBusy,
    #[error("{limit} streams are open, which is the most: DELETE /streams/NAME ends one")]
    Streams { limit: usize },
    #[error("this server is about to end")]
    Closing,
    #[error("too many connections: at most {limit} at a time")]
    Connections { limit: usize },
}

impl Problem {
    /// Returns the error for requests that a failed engine computed.
    pub(super) fn of(lost: &EngineError) -> Self {
        match lost {
            EngineError::Late(time) => Self::Hung { seconds: time.as_secs() },
            EngineError::Ended(failure) => Self::Lost { cause: failure.to_string() },
        }
    }

    pub(super) fn status(&self) -> u16 {
        match self {
            Self::NotFound { .. } | Self::NoStreams | Self::Stream { .. } => 404,
            Self::StreamBusy => 409,
            Self::Method { .. } => 405,
            Self::Token => 401,
            Self::Host { .. } => 403,
            Self::Kind { .. } => 415,
            Self::Large { .. } | Self::Unpacked { .. } | Self::Rows { .. } => 413,
            Self::Slow { .. } => 408,
            Self::Cut(_) | Self::Body(_) | Self::Encode(_) | Self::Stage(..) => 400,
            Self::Scratch(_) => 500,
            Self::Busy | Self::Streams { .. } => 429,
            Self::NoWorker { .. } | Self::Lost { .. } | Self::Closing | Self::Connections { .. } => 503,
            Self::Late { .. } | Self::Hung { .. } => 504,
        }
    }

    pub(super) fn header(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Method { allowed, .. } => Some(("allow", allowed)),
            Self::Token => Some(("www-authenticate", "Bearer")),
            Self::Busy
            | Self::Connections { .. }
            | Self::NoWorker { .. }
            | Self::Lost { .. }
            | Self::Hung { .. }
            | Self::Streams { .. } => Some(("retry-after", "1")),
            _ => None,
        }
    }

    /// Returns the sentence as JSON.
    pub(super) fn body(&self) -> Vec<u8> {
        let text = self.to_string().replace("\n  hint:", "; hint:").replace('\n', " ");
        format!("{}\n", serde_json::json!({ "error": text })).into_bytes()
    }
}

impl From<EncodeError> for Problem {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error.into())
    }
}

/// Returns an error of staging without the path of a temporary file.
fn without(error: &StageError, path: &str) -> String {
    error.to_string().replace(path, "the request")
}
