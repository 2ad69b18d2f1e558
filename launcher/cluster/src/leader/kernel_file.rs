//! kernels.json of a run directory: kernels that earlier launches of the run quarantined.
//!
//! **Invariant:** a file that cannot be read costs its entries, never the run.

use enn_common::kernels::{self, KernelBook};
use std::{fs::File, path::Path};

/// Reads what earlier launches of the run left, as far as it is of this worker program.
pub(crate) fn read_kernels(run_dir: &Path, program: &Path) -> KernelBook {
    let mut book = read(&run_dir.join(kernels::FILE));
    if !book.quarantine.is_empty() {
        book.keep_build(&program_digest(program));
    }
    book
}

fn read(path: &Path) -> KernelBook {
    let Ok(text) = std::fs::read(path) else { return KernelBook::default() };
    match serde_json::from_slice::<KernelBook>(&text) {
        Ok(book) if book.version == kernels::VERSION => book,
        Ok(book) => {
            let found = book.version;
            let expected = kernels::VERSION;
            tracing::warn!("{}: version {found}, expected {expected}; it is begun anew", path.display());
            KernelBook::default()
        }
        Err(error) => {
            tracing::warn!("{}: {error}; it is begun anew", path.display());
            KernelBook::default()
        }
    }
}

/// Returns the digest of a program. A program that cannot be read has an empty one, and is then taken for the same.
pub(crate) fn program_digest(program: &Path) -> String {
    let mut hasher = blake3::Hasher::new();
    match File::open(program).and_then(|file| hasher.update_reader(file).map(|_| ())) {
        Ok(()) => hasher.finalize().to_hex().to_string(),
        Err(error) => {
            tracing::warn!("{}: {error}", program.display());
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::kernels::{Fault, KernelFault};

    #[test]
    fn the_book_outlives_the_launcher_but_not_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("worker");
        std::fs::write(&program, "one").unwrap();
        let mut book = read_kernels(dir.path(), &program);
        let fault = Fault::Crash { how: "SIGABRT".into() };
        let fault =
            KernelFault { op: "sdpa".into(), kernel: "flash".into(), sig: 7, operands: "f32".into(), fault, step: 3 };
        assert!(book.enter(fault, &program_digest(&program)).is_some());
        let path = dir.path().join(kernels::FILE);
        std::fs::write(&path, serde_json::to_vec(&book).unwrap()).unwrap();
        assert_eq!(read_kernels(dir.path(), &program).quarantined(), book.quarantined());
        std::fs::write(&program, "another").unwrap();
        assert!(read_kernels(dir.path(), &program).quarantined().entries.is_empty());
        std::fs::write(&path, "not JSON").unwrap();
        assert!(read_kernels(dir.path(), &program).quarantine.is_empty());
        assert_eq!(program_digest(&dir.path().join("none")), "");
    }
}
