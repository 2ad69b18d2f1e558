//! Uploads a file: small ones in one request, large ones in parts. With a multipart interface (S3, GCS, Azure) an interrupted upload
//! resumes after the existing parts.
//!
//! A note, `.pushed/FILE.parts`, lists the parts and is written after every few parts, because stores list parts in different ways. The
//! note contains the file's digest, so that parts of different files are never combined.
//!
//! **Invariant:** at most `PARTS_MAX` parts are in memory; the object appears when it is complete.

use super::{
    RemoteError, notes,
    store::{PART_BYTES_MIN, Store},
};
use enn_common::fs::FileError;
use object_store::{
    ObjectStoreExt, WriteMultipart,
    multipart::{MultipartStore, PartId},
};
use serde_json::{Value, json};
use std::{fs::File, io::Read, os::unix::fs::FileExt, path::Path, sync::Arc};

/// Maximum number of parts of a file; S3 takes 10,000.
const PARTS_OF_A_FILE: u64 = 9_000;
const PARTS_MAX: usize = 4;
const NOTE_BYTES_MAX: u64 = 4 << 20;

struct UploadFile<'a> {
    path: &'a Path,
    file: File,
    bytes: u64,
    part: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct UploadedParts {
    id: String,
    there: Vec<String>,
}

impl UploadFile<'_> {
    fn count(&self) -> usize {
        usize::try_from(self.bytes.div_ceil(self.part)).unwrap_or(usize::MAX)
    }

    fn read(&self, index: usize) -> Result<Vec<u8>, RemoteError> {
        let at = index as u64 * self.part;
        let mut bytes = vec![0; usize::try_from(self.part.min(self.bytes - at)).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut bytes, at).map_err(FileError::of("read", self.path))?;
        Ok(bytes)
    }
}

impl UploadedParts {
    fn note(name: &str) -> String {
        notes::note(&format!("{name}.parts"))
    }

    fn write(&self, store: &Store, name: &str, digest: &str, part: u64) -> Result<(), RemoteError> {
        let note = json!({"digest": digest, "part_bytes": part, "upload": self.id, "parts": self.there});
        store.put(&Self::note(name), note.to_string().into_bytes())
    }

    /// Reads the note on the parts of this file; `None` for another file.
    fn read(store: &Store, name: &str, digest: &str, part: u64) -> Result<Option<Self>, RemoteError> {
        let Some(text) = store.small(&Self::note(name), NOTE_BYTES_MAX)? else { return Ok(None) };
        let Ok(note) = serde_json::from_slice::<Value>(&text) else { return Ok(None) };
        if note["digest"].as_str() != Some(digest) || note["part_bytes"].as_u64() != Some(part) {
            return Ok(None);
        }
        let texts = |value: &Value| value.as_str().map(str::to_owned);
        let there = note["parts"].as_array().and_then(|parts| parts.iter().map(texts).collect::<Option<Vec<_>>>());
        Ok(texts(&note["upload"]).zip(there).map(|(id, there)| Self { id, there }))
    }
}

/// Uploads a file. Parts are resumed by `digest`; without one they are not kept. Returns the bytes that existed from an interrupted upload.
/// The object appears when it is complete.
pub(super) fn upload(
    store: &Store,
    path: &Path,
    name: &str,
    digest: Option<&str>,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, RemoteError> {
    let file = File::open(path).map_err(FileError::of("open", path))?;
    let bytes = file.metadata().map_err(FileError::of("look at", path))?.len();
    let part = PART_BYTES_MIN.max(bytes.div_ceil(PARTS_OF_A_FILE));
    let mut source = UploadFile { path, file, bytes, part };
    if bytes <= part {
        let mut all = Vec::new();
        source.file.read_to_end(&mut all).map_err(FileError::of("read", path))?;
        store.put(name, all)?;
        progress(bytes);
        return Ok(0);
    }
    match (&store.multi, digest) {
        (Some(multi), Some(digest)) => PartUpload { store, multi, source: &source, name, digest }.run(progress),
        _ => at_once(store, &mut source, name, progress).map(|()| 0),
    }
}

/// The upload of a file in parts, which a note lists.
struct PartUpload<'a> {
    store: &'a Store,
    multi: &'a Arc<dyn MultipartStore>,
    source: &'a UploadFile<'a>,
    name: &'a str,
    digest: &'a str,
}

impl PartUpload<'_> {
    /// Resumes after the existing parts. If the store has dropped them, all are sent.
    fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<u64, RemoteError> {
        let Self { store, multi, source, name, digest } = self;
        let known = UploadedParts::read(store, name, digest, source.part)?;
        if let Some(parts) = known.filter(|parts| parts.there.len() <= source.count()) {
            let there = (parts.there.len() as u64 * source.part).min(source.bytes);
            let mut reported = 0;
            let sent = self.send(parts, &mut |bytes| {
                reported += bytes;
                progress(bytes);
            });
            match sent {
                Ok(()) => {
                    progress(source.bytes.saturating_sub(reported));
                    store.remove(&UploadedParts::note(name))?;
                    return Ok(there);
                }
                Err(error @ RemoteError::File(_)) => return Err(error),
                // The store has dropped the upload, or it was completed and then removed.
                Err(error) => tracing::info!("{}: {error}; all parts are sent again", store.name_of(name)),
            }
        }
        let id = store.wait(multi.create_multipart(&store.key(name))).map_err(store.error("write", name))?;
        self.send(UploadedParts { id, there: Vec::new() }, progress)?;
        store.remove(&UploadedParts::note(name))?;
        Ok(0)
    }

    /// Sends the missing parts, a few at a time, and completes the upload.
    fn send(&self, mut parts: UploadedParts, progress: &mut dyn FnMut(u64)) -> Result<(), RemoteError> {
        let Self { store, multi, source, name, digest } = self;
        let key = store.key(name);
        while parts.there.len() < source.count() {
            let first = parts.there.len();
            let group = first..(first + PARTS_MAX).min(source.count());
            let payloads = group.map(|index| source.read(index)).collect::<Result<Vec<_>, _>>()?;
            let bytes: u64 = payloads.iter().map(|payload| payload.len() as u64).sum();
            let sent = store.put_parts(multi, &key, &parts.id, first, payloads);
            parts.there.extend(sent.map_err(store.error("write", name))?);
            parts.write(store, name, digest, source.part)?;
            progress(bytes);
        }
        let all = parts.there.iter().map(|id| PartId { content_id: id.clone() }).collect();
        let done = store.wait(multi.complete_multipart(&key, &parts.id, all));
        done.map(|_| ()).map_err(store.error("write", name))
    }
}

/// Sends all parts; an error leaves no object.
fn at_once(
    store: &Store,
    source: &mut UploadFile<'_>,
    name: &str,
    progress: &mut dyn FnMut(u64),
) -> Result<(), RemoteError> {
    let error = store.error("write", name);
    let key = store.key(name);
    let part = usize::try_from(source.part).unwrap_or(usize::MAX);
    store.wait(async {
        let upload = store.store.put_multipart(&key).await.map_err(&error)?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, part);
        for index in 0..source.count() {
            let capacity = parts.wait_for_capacity(PARTS_MAX).await.map_err(&error);
            let block = match capacity.and_then(|()| source.read(index)) {
                Ok(block) => block,
                Err(failed) => {
                    // The first error is returned; a store that cannot abort cleans up by its own rule.
                    let _ = parts.abort().await;
                    return Err(failed);
                }
            };
            parts.write(&block);
            progress(block.len() as u64);
        }
        parts.finish().await.map(|_| ()).map_err(&error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::{PutPayload, memory::InMemory, path::Path as Key};

    const PARTS: u64 = 3;

    /// A file of three parts, the last one short, and a place in memory.
    fn file() -> (tempfile::NamedTempFile, Vec<u8>, Arc<InMemory>, Store) {
        let bytes: Vec<u8> = (0..PART_BYTES_MIN * 2 + 1000).map(|at| (at / 1000) as u8).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let memory = Arc::new(InMemory::new());
        let store = Store::of(memory.clone(), Some(memory.clone()), Key::from("runs/a"), "memory://runs/a").unwrap();
        (file, bytes, memory, store)
    }

    /// Leaves the first part as an upload that was cut off leaves it.
    fn cut_off(store: &Store, memory: &Arc<InMemory>, digest: &str, first: &[u8]) {
        let key = store.key("f");
        let id = store.wait(memory.create_multipart(&key)).unwrap();
        let part = store.wait(memory.put_part(&key, &id, 0, PutPayload::from(first.to_vec()))).unwrap();
        UploadedParts { id, there: vec![part.content_id] }.write(store, "f", digest, PART_BYTES_MIN).unwrap();
    }

    #[test]
    fn parts_that_are_there_are_not_sent_again() {
        let (file, mut bytes, memory, store) = file();
        // A first part that differs shows in the object that it is not the file's: it was not sent again.
        bytes[5] ^= 1;
        cut_off(&store, &memory, "d", &bytes[..PART_BYTES_MIN as usize]);
        let mut told = 0;
        let there = upload(&store, file.path(), "f", Some("d"), &mut |bytes| told += bytes).unwrap();
        assert_eq!((there, told), (PART_BYTES_MIN, bytes.len() as u64));
        assert!(store.small("f", u64::MAX).unwrap().unwrap() == bytes);
        assert_eq!(store.small(&UploadedParts::note("f"), u64::MAX).unwrap(), None, "the note is gone");
    }

    #[test]
    fn parts_of_another_file_and_forgotten_ones_are_sent() {
        let (file, bytes, memory, store) = file();
        let other = vec![7; PART_BYTES_MIN as usize];
        cut_off(&store, &memory, "another", &other);
        assert_eq!(upload(&store, file.path(), "f", Some("d"), &mut |_| {}).unwrap(), 0);
        assert!(store.small("f", u64::MAX).unwrap().unwrap() == bytes);
        let forgotten = UploadedParts { id: "77".into(), there: vec!["x".into()] };
        forgotten.write(&store, "f", "d", PART_BYTES_MIN).unwrap();
        assert_eq!(upload(&store, file.path(), "f", Some("d"), &mut |_| {}).unwrap(), 0);
        assert!(store.small("f", u64::MAX).unwrap().unwrap() == bytes);
        std::fs::write(file.path(), b"small").unwrap();
        assert_eq!(upload(&store, file.path(), "g", Some("d"), &mut |_| {}).unwrap(), 0);
        assert_eq!(store.small("g", 10).unwrap().unwrap(), b"small");
        assert_eq!(bytes.len() as u64 / PART_BYTES_MIN + 1, PARTS);
    }
}
