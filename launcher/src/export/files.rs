//! The digests of an artifact's files: computed at export, and compared before use.

use enn_common::{
    artifact::export::ArtifactFile,
    fs::{FileError, RelPath, regular},
};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

/// Bytes hashed at a time.
const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Size of all files together in bytes.
    pub bytes: u64,
    /// blake3 of their names and contents as hexadecimal digits; of a single file its own.
    pub blake3: String,
    pub files: Vec<ArtifactFile>,
}

/// Reads the files of an artifact; `parts` are files and directories that lie beside each other.
///
/// # Errors
/// Any error of the system.
pub fn digest(parts: &[PathBuf]) -> Result<Digest, FileError> {
    let base = parts.first().and_then(|part| part.parent()).unwrap_or(Path::new(""));
    let mut files = Vec::new();
    let mut digests = Vec::new();
    for path in all(parts)? {
        let mut own = blake3::Hasher::new();
        let mut sha256 = Sha256::new();
        let bytes = read(&path, &mut |block| {
            own.update(block);
            sha256.update(block);
        })?;
        let name = path.strip_prefix(base).unwrap_or(&path).to_string_lossy().into_owned();
        let name =
            RelPath::parse(name).map_err(|error| FileError::of("describe", &path)(std::io::Error::other(error)))?;
        digests.push(own.finalize().to_hex().to_string());
        files.push(ArtifactFile { path: name, bytes, sha256: hex(sha256) });
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    let blake3 = match digests.as_slice() {
        [only] => only.clone(),
        several => {
            let lines = several.iter().zip(&files).map(|(digest, file)| format!("{digest}  {}", file.path));
            blake3::hash(lines.collect::<Vec<_>>().join("\n").as_bytes()).to_hex().to_string()
        }
    };
    Ok(Digest { bytes, blake3, files })
}

/// Returns the first difference between an artifact and its described files, in words; `None` without one. The artifact may have been
/// renamed from `name`.
///
/// # Errors
/// Any error of the system.
pub(super) fn difference(artifact: &Path, name: &str, described: &[ArtifactFile]) -> Result<Option<String>, FileError> {
    let place = |file: &ArtifactFile| {
        let mut place = artifact.as_os_str().to_owned();
        place.push(file.path.strip_prefix(name).unwrap_or(&file.path));
        PathBuf::from(place)
    };
    let places: Vec<PathBuf> = described.iter().map(place).collect();
    if let Some(other) = all(&[artifact.to_owned()])?.into_iter().find(|path| !places.contains(path)) {
        return Ok(Some(format!("{} is not described beside it", other.display())));
    }
    for (file, place) in described.iter().zip(&places) {
        let found = match fs::metadata(place) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Some(format!("its file {} is not there", place.display())));
            }
            found => found.map_err(FileError::of("read", place))?.len(),
        };
        if found != file.bytes {
            let why = format!("its file {} has {found} bytes, expected {}", place.display(), file.bytes);
            return Ok(Some(why));
        }
    }
    for (file, place) in described.iter().zip(&places) {
        let mut sha256 = Sha256::new();
        read(place, &mut |block| sha256.update(block))?;
        let found = hex(sha256);
        if found != file.sha256 {
            let why = format!("its file {} has the sha256 {found}, expected {}", place.display(), file.sha256);
            return Ok(Some(why));
        }
    }
    Ok(None)
}

fn hex(sha256: Sha256) -> String {
    sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Passes the bytes of a file to `take`; returns their number.
fn read(path: &Path, take: &mut dyn FnMut(&[u8])) -> Result<u64, FileError> {
    let mut file = regular::open(path)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(bytes),
            Ok(count) => {
                take(&block[..count]);
                bytes += count as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(FileError::of("read", path)(error)),
        }
    }
}

/// Returns the files among `parts` and below them, in order.
fn all(parts: &[PathBuf]) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    let mut left = parts.to_vec();
    while let Some(path) = left.pop() {
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        for entry in fs::read_dir(&path).map_err(FileError::of("read", &path))? {
            left.push(entry.map_err(FileError::of("read", &path))?.path());
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of several files, and what is said of it.
    fn model(dir: &Path) -> (PathBuf, Vec<ArtifactFile>) {
        let model = dir.join("m.savedmodel");
        fs::create_dir_all(model.join("variables")).unwrap();
        fs::write(model.join("saved_model.pb"), "graph").unwrap();
        fs::write(model.join("variables/data"), "weights").unwrap();
        let digest = digest(std::slice::from_ref(&model)).unwrap();
        assert_eq!(digest.bytes, 12);
        (model, digest.files)
    }

    #[test]
    fn each_file_has_its_digest_as_sha256sum_tells_it() {
        let dir = tempfile::tempdir().unwrap();
        let (_, files) = model(dir.path());
        let told: Vec<(&str, u64)> = files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
        assert_eq!(told, [("m.savedmodel/saved_model.pb", 5), ("m.savedmodel/variables/data", 7)]);
        assert_eq!(files[1].sha256, "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c");
        let one = dir.path().join("m.savedmodel/saved_model.pb");
        assert_eq!(digest(&[one]).unwrap().blake3, blake3::hash(b"graph").to_hex().to_string());
    }

    #[test]
    fn the_file_that_differs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (path, files) = model(dir.path());
        let differs = |path: &Path| difference(path, "m.savedmodel", &files).unwrap();
        assert_eq!(differs(&path), None);
        let moved = dir.path().join("other");
        fs::rename(&path, &moved).unwrap();
        assert_eq!(differs(&moved), None, "it may be called otherwise");
        let changes = [
            ("variables/data", Some("weightz"), "has the sha256 "),
            ("variables/data", Some("weight"), "has 6 bytes, expected 7"),
            ("saved_model.pb", None, "is not there"),
            ("assets", Some("more"), "is not described beside it"),
        ];
        for (name, content, said) in changes {
            let dir = tempfile::tempdir().unwrap();
            let (path, files) = model(dir.path());
            let file = path.join(name);
            content.map_or_else(|| fs::remove_file(&file), |content| fs::write(&file, content)).unwrap();
            let found = difference(&path, "m.savedmodel", &files).unwrap().unwrap();
            assert!(found.contains(&format!("m.savedmodel/{name} {said}")), "{found}");
        }
    }

    #[test]
    fn tensors_beside_an_artifact_are_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.onnx");
        let data = dir.path().join("m.onnx.0123456789abcdef.data");
        fs::write(&path, "graph").unwrap();
        fs::write(&data, "tensors").unwrap();
        let files = digest(&[path.clone(), data.clone()]).unwrap().files;
        // Those of the artifact before may still lie there.
        fs::write(dir.path().join("m.onnx.fedcba9876543210.data"), "old").unwrap();
        assert_eq!(difference(&path, "m.onnx", &files).unwrap(), None);
        fs::write(&data, "tensorz").unwrap();
        assert!(difference(&path, "m.onnx", &files).unwrap().unwrap().contains("cdef.data has the sha256"));
    }
}
