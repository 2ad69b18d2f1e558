//! Tables in, staged arrays out, and what a model is compared with.
//!
//! `evaluation`, `cv` → `baselines`, `survey` → `stage`. Nothing here starts a worker of a run; `cv` runs whole trainings as processes.

pub mod baselines;
pub mod cv;
pub mod evaluation;
pub mod stage;
pub mod survey;
