//! What a run leaves behind: `gather` joins what ranks wrote, `convert` writes other formats and reads foreign ones, `remote` moves
//! checkpoints to and from object stores.

pub mod convert;
pub mod gather;
pub mod remote;
