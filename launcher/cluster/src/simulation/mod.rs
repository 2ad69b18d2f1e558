//! The three machines of a run in virtual time, with faults.
