//! Each flag of torchrun: spelling, variable, default, values, and what is wrong with a wrong one.
