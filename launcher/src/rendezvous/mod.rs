//! Nodes meet, agree on rounds and learn of each other's end.

mod news;
mod settings;

pub use news::{Member, News, RoundEnd, RoundPlan, RunEnd};
pub use settings::{Place, Settings, Token, TokenSource};
