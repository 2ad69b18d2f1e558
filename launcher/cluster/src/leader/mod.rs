//! The services of the leader of a run besides deciding.
