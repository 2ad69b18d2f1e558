//! Layers: the smallest trainable parts. A layer owns `ParamId`s, never tensors; values come from `Cx` at each call.
//!
//! A layer fails, with an `OpError`, where a tensor does not have the shape that its documentation says.
//!
//! **Invariant:** a layer sees `Cx` and tensors, and nothing of ranks, files, clocks or logs. The output for a sample never
//! depends on the other samples of the batch.

pub mod attention;
pub mod crosses;
pub mod dilated;
pub mod embedding;
pub mod feed_forward;
pub mod gate;
pub mod gated_ema;
pub mod linear;
pub mod mixing;
pub mod norm;
pub mod retention;
pub mod scaler;
pub mod width;

pub use attention::Attention;
pub use crosses::Crosses;
pub use dilated::{Dilated, Pattern};
pub use embedding::Embedding;
pub use feed_forward::FeedForward;
pub use gate::SigmoidGate;
pub use gated_ema::GatedEma;
pub use linear::Linear;
pub use mixing::{Mixing, TokenMixer};
pub use norm::Normalise;
pub use retention::Retention;
pub use scaler::Scaler;
pub use width::Width;
