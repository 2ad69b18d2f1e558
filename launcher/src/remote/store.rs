//! The object stores themselves, as calls that return when they are done. The asynchronous runtime ends here.
//!
//! **Invariant:** every request has a time limit and a number of retries; at most `PARTS_MAX` parts of a file are in memory.

use super::{RemoteError, error::scrub};
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig, WriteMultipart, aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, local::LocalFileSystem, path::Path as Key,
};
use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::runtime::{Builder, Runtime};

/// A part of a multi-part upload. S3 takes 10,000 of them.
const PART_BYTES_MIN: u64 = 8 << 20;
const PARTS_OF_A_FILE: u64 = 9_000;
/// Parts of a file on their way at one time.
const PARTS_MAX: usize = 4;
/// Retries of a request, which ends by itself after 30 s, and the time they have together.
const RETRIES_MAX: usize = 6;
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);
/// Names listed in a place.
const NAMES_MAX: usize = 100_000;

/// A place in a store: everything below one prefix.
pub struct Store {
    runtime: Runtime,
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    /// As the user wrote it, for messages.
    place: String,
}

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    /// Name below the place.
    pub(super) name: String,
    pub(super) bytes: u64,
}

impl Store {
    /// Whether a text is an address and not a path.
    pub fn is_address(text: &str) -> bool {
        text.contains("://")
    }

    /// Opens s3://, gs://, az:// or file://, or a directory by its path. Credentials are those of the environment:
    /// `AWS_ACCESS_KEY_ID` and its like, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` and its like.
    pub fn open(place: &str) -> Result<Self, RemoteError> {
        let Some((scheme, rest)) = place.split_once("://") else {
            return Self::local(place, Path::new(place));
        };
        let wrong = |what: &str| RemoteError::Place { place: scrub(place), what: what.to_owned() };
        if rest.contains('@') || rest.contains('?') {
            let place = format!("{scheme}://…");
            let what =
                "an address holds no credentials and no question; they are taken from the environment".to_owned();
            return Err(RemoteError::Place { place, what });
        }
        if scheme == "file" {
            return Self::local(place, Path::new(rest));
        }
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(wrong("it names no bucket"));
        }
        let failed =
            |error: object_store::Error| RemoteError::Place { place: scrub(place), what: scrub(&error.to_string()) };
        // Time limits, proxies and whether plain HTTP is allowed are the environment's too, e.g. AWS_ALLOW_HTTP.
        let retry = RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let store: Arc<dyn ObjectStore> = match scheme {
            "s3" | "s3a" => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
                Arc::new(builder.build().map_err(failed)?)
            }
            "gs" => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
                Arc::new(builder.build().map_err(failed)?)
            }
            "az" | "azure" => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
                Arc::new(builder.build().map_err(failed)?)
            }
            _ => return Err(wrong("it is of a store that is not known")),
        };
        let prefix = Key::parse(path.trim_matches('/')).map_err(|error| wrong(&error.to_string()))?;
        Self::of(store, prefix, place)
    }

    fn local(place: &str, path: &Path) -> Result<Self, RemoteError> {
        let wrong = |what: String| RemoteError::Place { place: place.to_owned(), what };
        let path = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
        let prefix = Key::from_absolute_path(&path).map_err(|error| wrong(error.to_string()))?;
        Self::of(Arc::new(LocalFileSystem::new().with_fsync(true).with_automatic_cleanup(true)), prefix, place)
    }

    /// A place in a store of the caller's: for tests.
    pub(super) fn of(store: Arc<dyn ObjectStore>, prefix: Key, place: &str) -> Result<Self, RemoteError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(RemoteError::Runtime)?;
        Ok(Self { runtime, store, prefix, place: place.trim_end_matches('/').to_owned() })
    }

    /// A place below this one, in the same store.
    pub(super) fn below(&self, name: &str) -> Result<Self, RemoteError> {
        Self::of(self.store.clone(), self.key(name), &self.name_of(name))
    }

    /// The address of an object, for messages.
    pub(super) fn name_of(&self, name: &str) -> String {
        if name.is_empty() { self.place.clone() } else { format!("{}/{name}", self.place) }
    }

    fn key(&self, name: &str) -> Key {
        name.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), |key, part| key.join(part))
    }

    fn error(&self, action: &'static str, name: &str) -> impl Fn(object_store::Error) -> RemoteError {
        let place = self.name_of(name);
        move |error| RemoteError::Store { action, place: place.clone(), what: scrub(&error.to_string()) }
    }

    /// Bytes of an object; `None` when it is not there.
    pub(super) fn length(&self, name: &str) -> Result<Option<u64>, RemoteError> {
        match self.runtime.block_on(self.store.head(&self.key(name))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.error("look at", name)(error)),
        }
    }

    /// A small object; `None` when it is not there. One above `bytes_max` is an error.
    pub(super) fn small(&self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, RemoteError> {
        let Some(length) = self.length(name)? else { return Ok(None) };
        if length > bytes_max {
            let what = format!("it has {length} bytes, at most {bytes_max} are read");
            return Err(RemoteError::Store { action: "read", place: self.name_of(name), what });
        }
        let error = self.error("read", name);
        let key = self.key(name);
        let read = async { self.store.get(&key).await?.bytes().await };
        self.runtime.block_on(read).map(|bytes| Some(bytes.to_vec())).map_err(error)
    }

    /// Writes a small object in one request.
    pub(super) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), RemoteError> {
        let written = self.runtime.block_on(self.store.put(&self.key(name), bytes.into()));
        written.map(|_| ()).map_err(self.error("write", name))
    }

    /// Removes an object. One that is not there is no error.
    pub(super) fn remove(&self, name: &str) -> Result<(), RemoteError> {
        match self.runtime.block_on(self.store.delete(&self.key(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("remove", name)(error)),
        }
    }

    /// Uploads a file in parts. It appears under its name when all are there; an error leaves nothing.
    pub(super) fn upload(&self, path: &Path, name: &str, progress: &mut dyn FnMut(u64)) -> Result<(), RemoteError> {
        let local = |action| move |source| enn_common::fs::FileError::of(action, path)(source);
        let mut file = File::open(path).map_err(local("open"))?;
        let length = file.metadata().map_err(local("look at"))?.len();
        let part = usize::try_from(PART_BYTES_MIN.max(length.div_ceil(PARTS_OF_A_FILE))).unwrap_or(usize::MAX);
        let error = self.error("write", name);
        let key = self.key(name);
        self.runtime.block_on(async {
            let upload = self.store.put_multipart(&key).await.map_err(&error)?;
            let mut parts = WriteMultipart::new_with_chunk_size(upload, part);
            let mut block = vec![0; part.min(usize::try_from(length.max(1)).unwrap_or(part))];
            loop {
                if let Err(failed) = parts.wait_for_capacity(PARTS_MAX).await {
                    // The first error is told; a store that cannot even abort cleans up by its own rule.
                    let _ = parts.abort().await;
                    return Err(error(failed));
                }
                let count = match file.read(&mut block) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(source) => {
                        let _ = parts.abort().await;
                        return Err(local("read")(source).into());
                    }
                };
                parts.write(&block[..count]);
                progress(count as u64);
            }
            parts.finish().await.map(|_| ()).map_err(error)
        })
    }

    /// Appends an object's bytes from `begin` on to a file.
    pub(super) fn download(
        &self,
        name: &str,
        begin: u64,
        (file, path): (&mut File, &Path),
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RemoteError> {
        let Some(length) = self.length(name)? else {
            let what = "it is not there".to_owned();
            return Err(RemoteError::Store { action: "read", place: self.name_of(name), what });
        };
        let error = self.error("read", name);
        let key = self.key(name);
        let mut at = begin;
        while at < length {
            let end = length.min(at + PART_BYTES_MIN);
            let range = GetOptions { range: Some(GetRange::Bounded(at..end)), ..GetOptions::default() };
            let read = async { self.store.get_opts(&key, range).await?.bytes().await };
            let bytes = self.runtime.block_on(read).map_err(&error)?;
            if bytes.is_empty() {
                let what = format!("it ended at byte {at} of {length}");
                return Err(RemoteError::Store { action: "read", place: self.name_of(name), what });
            }
            file.write_all(&bytes).map_err(|source| enn_common::fs::FileError::of("write", path)(source))?;
            at += bytes.len() as u64;
            progress(bytes.len() as u64);
        }
        Ok(())
    }

    /// Names directly below the place: objects, and the first parts of the names of others.
    pub(super) fn list(&self) -> Result<(Vec<Object>, Vec<String>), RemoteError> {
        let listed = self.runtime.block_on(self.store.list_with_delimiter(Some(&self.prefix)));
        let listed = listed.map_err(self.error("list", ""))?;
        let last = |key: &Key| key.filename().map(str::to_owned);
        let objects =
            listed.objects.iter().filter_map(|meta| Some(Object { name: last(&meta.location)?, bytes: meta.size }));
        let folders = listed.common_prefixes.iter().filter_map(last);
        Ok((objects.take(NAMES_MAX).collect(), folders.take(NAMES_MAX).collect()))
    }
}
