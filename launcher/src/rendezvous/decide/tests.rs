//! Each reason.
