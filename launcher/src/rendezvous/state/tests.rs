//! The state, event by event.
