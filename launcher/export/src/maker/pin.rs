//! Packages with their only accepted versions.

/// A package and its only accepted version.
pub type Pin = (&'static str, &'static str);

/// PyTorch, of libtorch's release.
pub const TORCH: Pin = ("torch", "2.11.0");

/// The release that was built with our PyTorch: others convert, but cannot run.
pub(super) const EXECUTORCH: Pin = ("executorch", "1.2.0");
