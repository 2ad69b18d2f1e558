//! Finds tensors and values in a file of any form that `torch.save` or `pickle.dump` wrote.

use super::walk::{StateFileParts, Walk};
use crate::{
    checkpoint::{
        form::FileForm,
        metadata::StoredPlace,
        sequence::{Nowhere, Sequence, mentioned_inside},
        storages::Storages,
        stored::{ItemError, StoredItem},
        torch::FILE_GLOBALS,
        tree::Tree,
        unpickle::{UnpickleError, unpickle_any},
        zip::ZipError,
    },
    fs::RelPath,
};
use std::{fs::File, os::unix::fs::FileExt};

/// Bytes of pickles that are read at first; the storages behind them are not needed.
const PICKLES_BYTES: u64 = 16 << 20;
/// How many times more are read when those were too few.
const GROWTH: u64 = 8;
/// Most bytes of pickles: a bare one holds its arrays itself.
const PICKLES_BYTES_MAX: u64 = 1 << 30;

/// Reads the content of a file of `length` bytes.
pub(super) fn contents(file: &File, form: FileForm, length: u64) -> Result<StateFileParts, ItemError> {
    let unsupported = |what: &str| Err(ItemError::Unsupported { what: what.to_owned() });
    match form {
        FileForm::Zip => zip(file, length),
        FileForm::Sequence => growing(file, length, |bytes| {
            let found = Sequence::read(bytes)?;
            walk(&found.tree, &found.storages(length))
        }),
        FileForm::Pickle => growing(file, length, |bytes| {
            let tree = unpickle_any(bytes, FILE_GLOBALS)?;
            walk(&tree, &Nowhere)
        }),
        FileForm::Empty => Err(ItemError::Cut),
        FileForm::Blank => Err(ZipError::NoEnd.into()),
        FileForm::Tar => unsupported("a tar archive, as torch.save wrote before PyTorch 0.1.10"),
        FileForm::Safetensors => unsupported("a safetensors file"),
        FileForm::Foreign(Some(what)) => unsupported(what),
        FileForm::Foreign(None) => {
            unsupported("a file of no form that is read: neither an archive nor a pickle nor safetensors")
        }
    }
}

fn zip(file: &File, length: u64) -> Result<StateFileParts, ItemError> {
    let place = StoredPlace { file: RelPath::own("data.pkl"), offset: 0, length, transforms: Vec::new() };
    let item = StoredItem::open(file, length, &place)?;
    let pickle = item.pickle()?;
    walk(&unpickle_any(&pickle, FILE_GLOBALS)?, &item)
}

/// Reads as much of the beginning of a file as its pickles need.
fn growing(
    file: &File,
    length: u64,
    read: impl Fn(&[u8]) -> Result<StateFileParts, ItemError>,
) -> Result<StateFileParts, ItemError> {
    let mut wanted = PICKLES_BYTES;
    loop {
        let taken = wanted.min(length).min(PICKLES_BYTES_MAX);
        let mut bytes = vec![0; usize::try_from(taken).map_err(|_| ItemError::Cut)?];
        file.read_exact_at(&mut bytes, 0)?;
        match read(&bytes) {
            Err(ItemError::Pickle(UnpickleError::Short { .. })) if taken < length => {
                if taken == PICKLES_BYTES_MAX {
                    let what = format!("a pickle of more than {PICKLES_BYTES_MAX} bytes");
                    return Err(ItemError::Unsupported { what });
                }
                wanted = wanted.saturating_mul(GROWTH);
            }
            found => return found,
        }
    }
}

fn walk(tree: &Tree<'_>, storages: &dyn Storages) -> Result<StateFileParts, ItemError> {
    let mut found = Walk::over(tree, storages)?;
    mentioned_inside(tree, &mut found.mentions);
    Ok(found)
}
