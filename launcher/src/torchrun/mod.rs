//! torchrun's command line as values: flags, their variables (`PET_…`) and defaults, and what they ask for as a
//! [`GroupSpec`](enn_cluster::supervise::GroupSpec).
//!
//! **Invariant:** nothing is started here, except a Python that lists its plug-ins, and nothing is written, except the user's
//! own token file when several nodes need one and it does not exist.

mod dialect;
mod endpoint;
mod enn_flags;
mod error;
mod failure_policy;
mod flags;
mod preload;
mod program;
mod rendezvous_flags;
mod replace;
mod resolve;
mod token;
mod torch_plug_in;
mod unknown;
mod values;

pub use dialect::Dialect;
pub use enn_flags::EnnFlags;
pub use error::RunError;
pub use failure_policy::FailurePolicy;
pub use flags::{Flags, RendezvousFlags};
pub use resolve::{Launch, rendezvous, resolve};
pub use torch_plug_in::{TorchPlugIn, requested_plug_in};
pub use unknown::{RecognizedWords, remove_unknown_flags};

#[cfg(test)]
mod tests;
