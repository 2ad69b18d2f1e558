//! Groups of parameters by their weight decay.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Parameters with weight decay: matrices.
    Decay,
    /// Parameters without weight decay: norms, biases, embeddings, latents, β, gate.
    NoDecay,
}
