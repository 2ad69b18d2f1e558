//! The two command lines of a launch.

/// Program whose command line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `enn run`.
    Enn,
    /// `enn-torchrun`, which follows torchrun where the two differ.
    Torchrun,
}
