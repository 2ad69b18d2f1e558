//! A disk cache of compiled modules, keyed by a hash of everything that went into them.
//!
//! **Invariant:** the cache returns exactly what was stored, or nothing: a torn, foreign or changed file is compiled again.
//! Errors of the cache never fail a launch; they are logged.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

const MAGIC: &[u8; 8] = b"ENNCUBN1";
const HASH_BYTES: usize = 32;
/// Largest file that is read; our modules are far smaller.
const FILE_BYTES_MAX: u64 = 64 << 20;

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// Sets the cache folder of this process, once; a second call changes nothing. Without a folder nothing is kept on disk.
pub fn set_folder(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

pub(super) fn folder() -> Option<&'static Path> {
    FOLDER.get().map(PathBuf::as_path)
}

/// Returns the cache key of a module, which is the stem of its file.
pub fn key(text: &str, options: &[String], compiler: (i32, i32)) -> String {
    let mut hasher = blake3::Hasher::new();
    // Lengths first, so that no two lists of parts give the same bytes.
    for part in options.iter().map(String::as_str).chain([text]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(&compiler.0.to_le_bytes());
    hasher.update(&compiler.1.to_le_bytes());
    hasher.finalize().to_hex().to_string()
}

fn path(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{key}.cubin"))
}

/// Returns the module stored under `key`, if its file is intact.
pub fn read(folder: &Path, key: &str) -> Option<Vec<u8>> {
    let path = path(folder, key);
    if fs::metadata(&path).ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut bytes = fs::read(&path).ok()?;
    let head = MAGIC.len() + HASH_BYTES;
    let whole = bytes.len() > head
        && bytes.starts_with(MAGIC)
        && blake3::hash(&bytes[head..]).as_bytes() == &bytes[MAGIC.len()..head];
    if !whole {
        tracing::warn!("{} is torn or foreign; the kernels in it are compiled again", path.display());
        return None;
    }
    Some(bytes.split_off(head))
}

/// Stores `cubin` under `key`.
pub fn write(folder: &Path, key: &str, cubin: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Ranks of one node may compile the same module at once: each writes a file of its own, and the last rename wins.
    let torn = folder.join(format!("{key}.{}.tmp", std::process::id()));
    let put = || {
        let mut file = fs::File::create(&torn)?;
        file.write_all(MAGIC)?;
        file.write_all(blake3::hash(cubin).as_bytes())?;
        file.write_all(cubin)?;
        fs::rename(&torn, path(folder, key))
    };
    put().inspect_err(|_| {
        let _ = fs::remove_file(&torn);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("kernels");
        write(&inner, "a", b"cubin of a").unwrap();
        assert_eq!(read(&inner, "a").unwrap(), b"cubin of a");
        assert_eq!(read(&inner, "b"), None);
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
    }

    #[test]
    fn a_torn_or_foreign_file_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a", b"cubin of a").unwrap();
        let file = path(folder.path(), "a");
        let whole = fs::read(&file).unwrap();
        for length in 0..whole.len() {
            fs::write(&file, &whole[..length]).unwrap();
            assert_eq!(read(folder.path(), "a"), None, "cut at {length}");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&file, &changed).unwrap();
            assert_eq!(read(folder.path(), "a"), None, "changed at {at}");
        }
        write(folder.path(), "a", b"again").unwrap();
        assert_eq!(read(folder.path(), "a").unwrap(), b"again");
    }

    #[test]
    fn everything_that_changes_the_code_changes_the_key() {
        let options = |arch: &str| vec![format!("--gpu-architecture={arch}"), "-DX=1".to_owned()];
        let base = key("text", &options("sm_90"), (13, 0));
        assert_eq!(base, key("text", &options("sm_90"), (13, 0)));
        for other in [
            key("text ", &options("sm_90"), (13, 0)),
            key("text", &options("sm_80"), (13, 0)),
            key("text", &options("sm_90"), (13, 1)),
            key("text", &options("sm_90")[..1], (13, 0)),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(write(&file, "a", b"cubin").is_err());
        assert_eq!(read(&file, "a"), None);
    }
}
