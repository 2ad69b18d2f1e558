//! Blocking calls to object stores. The asynchronous runtime is confined to this file.

use super::{RemoteError, error::scrub};
use enn_common::{checkpoint::name, fs::FileError};
use object_store::{
    GetOptions, GetRange, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem,
    multipart::MultipartStore,
    path::{Path as Key, PathPart},
};
use std::{error::Error as _, fs::File, io::Write, ops::Range, path::Path, sync::Arc, time::Duration};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// Maximum number of retries of a request, which ends by itself after 30 s, and their total time.
const RETRIES_MAX: usize = 6;
const RETRY_TIMEOUT: Duration = Duration::from_secs(120);
/// Minimum size of a part in bytes.
pub(super) const PART_BYTES_MIN: u64 = 8 << 20;
const NAMES_MAX: usize = 100_000;

/// All objects below one prefix of a store.
#[derive(Clone)]
pub struct Store {
    /// The runtime that all prefixes of a store share: a connection works only in the runtime that made it.
    runtime: Arc<Runtime>,
    pub(super) store: Arc<dyn ObjectStore>,
    /// The store's multipart interface, if it has one.
    pub(super) multi: Option<Arc<dyn MultipartStore>>,
    is_local: bool,
    prefix: Key,
    place: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) bytes: u64,
}

fn of_disk(error: &object_store::Error) -> Option<std::io::Error> {
    let mut cause = error.source();
    while let Some(one) = cause {
        if let Some(code) = one.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return Some(std::io::Error::from_raw_os_error(code));
        }
        cause = one.source();
    }
    None
}

impl Store {
    pub fn is_address(text: &str) -> bool {
        text.contains("://")
    }

    /// Opens s3://, gs://, az:// or file://, or a directory by its path. Credentials come from the environment: `AWS_ACCESS_KEY_ID`,
    /// `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` and similar variables.
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
        // The environment also sets time limits, proxies and whether plain HTTP is allowed, e.g. AWS_ALLOW_HTTP.
        let retry = RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let (store, multi): (Arc<dyn ObjectStore>, Arc<dyn MultipartStore>) = match scheme {
            "s3" | "s3a" => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
                both(builder.build().map_err(failed)?)
            }
            "gs" => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retry);
                both(builder.build().map_err(failed)?)
            }
            "az" | "azure" => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_retry(retry);
                both(builder.build().map_err(failed)?)
            }
            _ => return Err(wrong("it is of a store that is not known")),
        };
        let prefix = Key::parse(path.trim_matches('/')).map_err(|error| wrong(&error.to_string()))?;
        Self::of(store, Some(multi), prefix, place)
    }

    fn local(place: &str, path: &Path) -> Result<Self, RemoteError> {
        let wrong = |what: String| RemoteError::Place { place: place.to_owned(), what };
        let path = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
        let prefix = Key::from_absolute_path(&path).map_err(|error| wrong(error.to_string()))?;
        let store = LocalFileSystem::new().with_fsync(true).with_automatic_cleanup(true);
        Ok(Self { is_local: true, ..Self::of(Arc::new(store), None, prefix, place)? })
    }

    pub(super) fn of(
        store: Arc<dyn ObjectStore>,
        multi: Option<Arc<dyn MultipartStore>>,
        prefix: Key,
        place: &str,
    ) -> Result<Self, RemoteError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(RemoteError::Runtime)?;
        let runtime = Arc::new(runtime);
        Ok(Self { runtime, store, multi, is_local: false, prefix, place: place.trim_end_matches('/').to_owned() })
    }

    /// Returns a prefix below this one, in the same store.
    pub(super) fn below(&self, name: &str) -> Self {
        Self { prefix: self.key(name), place: self.name_of(name), ..self.clone() }
    }

    pub(super) fn name_of(&self, name: &str) -> String {
        if name.is_empty() { self.place.clone() } else { format!("{}/{name}", self.place) }
    }

    /// Removes unfinished files that killed processes left here, as far as possible: in a directory they are called NAME#NUMBER, and no
    /// listing contains them.
    pub(super) fn sweep(&self) {
        let is_left = |name: &str| name.rsplit_once('#').is_some_and(|(_, number)| number.parse::<u32>().is_ok());
        // own path: the place that the user named.
        let dir = Path::new("/").join(self.prefix.as_ref());
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten().filter(|_| self.is_local) {
            if entry.file_name().to_str().is_some_and(is_left) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Sends parts of an upload concurrently, starting with number `first`; returns the store's identifiers of the parts.
    pub(super) fn put_parts(
        &self,
        multi: &Arc<dyn MultipartStore>,
        key: &Key,
        upload: &str,
        first: usize,
        payloads: Vec<Vec<u8>>,
    ) -> object_store::Result<Vec<String>> {
        self.wait(async {
            let mut tasks = JoinSet::new();
            for (index, payload) in (first..).zip(payloads) {
                let multi = Arc::clone(multi);
                let key = key.clone();
                let upload = upload.to_owned();
                tasks.spawn(async move { (index, multi.put_part(&key, &upload, index, payload.into()).await) });
            }
            let mut sent = tasks.join_all().await;
            sent.sort_by_key(|(index, _)| *index);
            sent.into_iter().map(|(_, part)| part.map(|part| part.content_id)).collect()
        })
    }

    pub(super) fn wait<T>(&self, requests: impl Future<Output = T>) -> T {
        self.runtime.block_on(requests)
    }

    /// Returns an object's key. Names are not changed except for characters that no key may contain.
    pub(super) fn key(&self, name: &str) -> Key {
        let part = |part| PathPart::parse(part).unwrap_or_else(|_| PathPart::from(part));
        name.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), |key, name| key.join(part(name)))
    }

    pub(super) fn error(&self, action: &'static str, name: &str) -> impl Fn(object_store::Error) -> RemoteError {
        let place = self.name_of(name);
        // own path: it is only named in the error.
        let path = Path::new("/").join(self.key(name).as_ref());
        let is_local = self.is_local;
        move |error| match of_disk(&error).filter(|_| is_local) {
            // Errors of a directory are errors of its disk, with the same hints.
            Some(source) => FileError::of(action, &path)(source).into(),
            None => RemoteError::Store { action, place: place.clone(), what: scrub(&error.to_string()) },
        }
    }

    /// Returns the size of an object in bytes; `None` if it does not exist.
    pub(super) fn length(&self, name: &str) -> Result<Option<u64>, RemoteError> {
        match self.runtime.block_on(self.store.head(&self.key(name))) {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.error("look at", name)(error)),
        }
    }

    /// Reads a small object; `None` if it does not exist. An object above `bytes_max` is an error.
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

    pub(super) fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), RemoteError> {
        let written = self.runtime.block_on(self.store.put(&self.key(name), bytes.into()));
        written.map(|_| ()).map_err(self.error("write", name))
    }

    /// Removes an object. A missing object is no error.
    pub(super) fn remove(&self, name: &str) -> Result<(), RemoteError> {
        match self.runtime.block_on(self.store.delete(&self.key(name))) {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("remove", name)(error)),
        }
    }

    /// Removes a checkpoint, its manifest first.
    pub(super) fn remove_checkpoint(&self) -> Result<(), RemoteError> {
        self.remove(name::MANIFEST)?;
        let (objects, folders) = self.list()?;
        for folder in folders {
            let below = self.below(&folder);
            below.list()?.0.iter().try_for_each(|object| below.remove(&object.name))?;
        }
        objects.iter().try_for_each(|object| self.remove(&object.name))
    }

    /// Appends an object's bytes from `begin` on to a file.
    pub(super) fn download(
        &self,
        name: &str,
        begin: u64,
        file: &mut File,
        path: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), RemoteError> {
        let Some(length) = self.length(name)? else { return Err(RemoteError::Missing { place: self.name_of(name) }) };
        self.read(name, begin..length, &mut |bytes| {
            file.write_all(bytes).map_err(FileError::of("write", path))?;
            progress(bytes.len() as u64);
            Ok(())
        })
    }

    /// Passes a byte range of an object to `take`, one part at a time.
    pub(super) fn read(
        &self,
        name: &str,
        stretch: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let error = self.error("read", name);
        let key = self.key(name);
        let Range { start: mut at, end: length } = stretch;
        while at < length {
            let end = length.min(at + PART_BYTES_MIN);
            let range = GetOptions { range: Some(GetRange::Bounded(at..end)), ..GetOptions::default() };
            let read = async { self.store.get_opts(&key, range).await?.bytes().await };
            let bytes = self.runtime.block_on(read).map_err(&error)?;
            if bytes.is_empty() {
                let what = format!("it ended at byte {at} of {length}");
                return Err(RemoteError::Store { action: "read", place: self.name_of(name), what });
            }
            take(&bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Lists the names directly below the prefix: objects and folders.
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

fn both<T: ObjectStore + MultipartStore>(store: T) -> (Arc<dyn ObjectStore>, Arc<dyn MultipartStore>) {
    let store = Arc::new(store);
    (store.clone(), store)
}
