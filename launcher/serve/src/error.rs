//! Why a server cannot start.

use super::{engine::Failure, token::TokenError};
use std::{io, net::SocketAddr};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken or does not belong to this host.
    #[error("cannot listen on {address}: {source}\n  hint: --addr 0 takes a free port")]
    Listen { address: SocketAddr, source: io::Error },
    /// The address can be reached by other hosts, and there is no token.
    #[error(
        "{address} can be reached by others, and there is no token\n  hint: --token-file FILE with a secret in it, or a loopback address"
    )]
    Open { address: SocketAddr },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Stage(#[from] enn_data::stage::StageError),
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("{0}")]
    Engine(#[source] Failure),
}
