//! JSON that knows its own digest: the last field is the blake3 of every byte before it.
//!
//! ```text
//! {⏎  "first": …,⏎  …⏎  "last": …,⏎  "digest": "<64 hex digits>"⏎}⏎
//!  └────────── digested ─────────┘
//! ```
//! The digest is over text, not over values, so that checking needs no second serializer that agrees on every float.

use crate::fs::{FileError, Storage, atomic, regular};
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};

const MANIFEST_BYTES_MAX: u64 = 1 << 30;

const BEFORE_DIGEST: &str = ",\n  \"digest\": \"";
const AFTER_DIGEST: &str = "\"\n}\n";
const DIGEST_CHARS: usize = 64;

/// Why a sealed file could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The digest is missing or not that of the text: the file was cut, changed or is another file.
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: &'static str },
    /// The digest is right, but the JSON is not what was expected: a newer or older writer.
    #[error("{} cannot be understood: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
}

/// The sealed text of a value. It must serialize to an object with at least one field.
pub fn seal<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, SealError> {
    let json = |source| SealError::Json { path: path.to_path_buf(), source };
    let mut text = serde_json::to_string_pretty(value).map_err(json)?;
    let body = text.strip_suffix("\n}").map(str::len);
    text.truncate(body.ok_or(SealError::Damaged { path: path.to_path_buf(), what: "only an object can be sealed" })?);
    let digest = blake3::hash(text.as_bytes()).to_hex();
    text.push_str(BEFORE_DIGEST);
    text.push_str(&digest);
    text.push_str(AFTER_DIGEST);
    Ok(text.into_bytes())
}

/// Checks the digest of a sealed text and reads it. `path` is only named in errors.
pub fn unseal<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, SealError> {
    let damaged = |what| SealError::Damaged { path: path.to_path_buf(), what };
    let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
    let end = text.len().checked_sub(BEFORE_DIGEST.len() + DIGEST_CHARS + AFTER_DIGEST.len());
    let (body, rest) = end.and_then(|end| text.split_at_checked(end)).ok_or(damaged("it is too short"))?;
    let digest = rest.strip_prefix(BEFORE_DIGEST).and_then(|rest| rest.strip_suffix(AFTER_DIGEST));
    let digest = digest.ok_or(damaged("it does not end with its digest; it was cut or is not one of ours"))?;
    if blake3::hash(body.as_bytes()).to_hex().as_str() != digest {
        return Err(damaged("its text was changed after it was written"));
    }
    serde_json::from_str(text).map_err(|source| SealError::Json { path: path.to_path_buf(), source })
}

pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, SealError> {
    let length = std::fs::metadata(path).map_err(FileError::of("read", path))?.len();
    if length > MANIFEST_BYTES_MAX {
        return Err(SealError::Damaged { path: path.to_path_buf(), what: "it is larger than any manifest" });
    }
    unseal(path, &regular::read(path, MANIFEST_BYTES_MAX)?)
}

/// Writes a sealed file atomically.
pub fn write<T: Serialize>(storage: &dyn Storage, path: &Path, value: &T) -> Result<(), SealError> {
    Ok(atomic::write_on(storage, path, &seal(path, value)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn sealed() -> Vec<u8> {
        seal(Path::new("m"), &json!({"step": 12, "loss": 0.1, "name": "Zürich", "files": [1, 2]})).unwrap()
    }

    #[test]
    fn sealed_text_is_json_with_a_digest() {
        let bytes = sealed();
        let value: Value = unseal(Path::new("m"), &bytes).unwrap();
        assert_eq!(value["name"], "Zürich");
        assert_eq!(value["digest"].as_str().unwrap().len(), 64);
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_seen(place in any::<prop::sample::Index>(), flip in 1u8..=255) {
            let mut bytes = sealed();
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            prop_assert!(unseal::<Value>(Path::new("m"), &bytes).is_err());
        }

        #[test]
        fn any_cut_is_seen(place in any::<prop::sample::Index>()) {
            let bytes = sealed();
            prop_assert!(unseal::<Value>(Path::new("m"), &bytes[..place.index(bytes.len())]).is_err());
        }
    }

    #[test]
    fn only_objects_can_be_sealed() {
        assert!(seal(Path::new("m"), &json!({})).is_err());
        assert!(seal(Path::new("m"), &json!([1])).is_err());
    }
}
