//! Messages between the supervisor and node agents.
