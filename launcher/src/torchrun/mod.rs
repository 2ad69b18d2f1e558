//! torchrun's command line as values: flags, their variables (`PET_…`) and defaults, and what they ask for as a
//! [`GroupSpec`](crate::group::GroupSpec).
//!
//! **Invariant:** nothing is started here, but for a Python that is asked for its plug-ins, and nothing is made, but for the user's
//! own token file when several nodes need one and there is none.

mod elsewhere;
mod endpoint;
mod error;
mod flags;
mod own;
mod places;
mod preload;
mod program;
mod resolve;
mod token;
mod unknown;
mod values;

pub use elsewhere::{Elsewhere, elsewhere};
pub use error::RunError;
pub use flags::{Flags, Meeting};
pub use own::Own;
pub use resolve::{Launch, Manner, rendezvous, resolve};
pub use unknown::{Known, set_aside};

#[cfg(test)]
mod tests;
