//! The options of serving a model.

use crate::api::Override;
use enn_common::config::train::Precision;
use enn_serve::Limits;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

#[derive(Debug, Clone)]
pub struct ServeOptions {
    pub address: SocketAddr,
    /// The file with the bearer token that clients must send.
    pub token_file: Option<PathBuf>,
    pub limits: Limits,
    pub workers: u32,
    /// Maximum time to finish open requests at the end.
    pub grace: Duration,
    /// The number format of the encoder.
    pub precision: Precision,
    /// Whether clients may open streams, whose state is carried from row to row; an artifact exported with `stream` supports them anyway.
    pub stream: bool,
    pub overrides: Vec<Override>,
}
