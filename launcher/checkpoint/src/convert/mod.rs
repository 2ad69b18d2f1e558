//! Models in exchange formats: .safetensors, .pt (`torch.load(weights_only=True)`) and DCP directories.
//!
//! **Invariant:** a file is complete or absent; a loaded model matches its model card exactly, or the error lists the differences.

mod cast;
mod copy;
mod diff;
mod error;
mod load;
mod native;
mod python;
mod safetensors;
mod save;
mod select;
mod sharded;
mod show;
mod source;
mod transcode;
mod verify;

pub use diff::{Differences, Pair, ValueDifference, diff};
pub use error::ConvertError;
pub use load::{load_model, load_native};
pub use safetensors::Tensor;
pub use save::{Saved, save_model};
pub use select::Selection;
pub use show::{Contents, Mapped, contents};
pub use transcode::{ConvertOptions, Converted, SHARD_BYTES, Target, convert};
pub use verify::{Outcome, Verified, verify};

use enn_common::checkpoint::form::FileForm;
use std::path::Path;

const MODEL: &str = "model";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `.safetensors`: weights and buffers, the card in `__metadata__`.
    Safetensors,
    /// `.pt` or `.pth`: weights and buffers under "model", the card under "enn".
    Pt,
    /// No extension: a whole checkpoint, with the state of the optimizer.
    Directory,
}

impl Form {
    /// Returns the form of an existing saved model; a file is recognised by its content.
    pub fn of_source(path: &Path) -> Result<Self, ConvertError> {
        if !path.is_file() {
            return Self::of(path);
        }
        match FileForm::of(path)? {
            FileForm::Safetensors => Ok(Self::Safetensors),
            FileForm::Zip | FileForm::Sequence | FileForm::Pickle => Ok(Self::Pt),
            // The reader of the file reports what is wrong with it.
            _ => Self::of(path),
        }
    }

    pub fn of(path: &Path) -> Result<Self, ConvertError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => Ok(Self::Safetensors),
            Some("pt" | "pth") => Ok(Self::Pt),
            _ if path.is_dir() => Ok(Self::Directory),
            None if path.file_name().is_some() => Ok(Self::Directory),
            _ => Err(ConvertError::Form { path: path.to_path_buf() }),
        }
    }
}

#[cfg(test)]
mod forms_tests;
#[cfg(test)]
mod tests;
