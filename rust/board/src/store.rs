//! The storage operations that the protocol needs, synchronous and with this crate's errors.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::backend::Backend;
use crate::cache;
use crate::download::Download;
use crate::error::{explain, root_cause, store_error, Error, ErrorKind, Result};
use crate::faults::FaultPlan;
use crate::hex::Blake3;
use crate::layout::LATEST;
use crate::location::{Bucket, Cloud, Location};
use crate::options::StoreOptions;
use crate::pieces::{Patience, Source};
use crate::ranges;
use crate::remote::RemoteClient;
use crate::runtime::block_on;
use crate::upload::Upload;

/// Memory boards live as long as the process, so that a name means one board throughout.
static MEMORY: Mutex<Option<HashMap<String, Arc<InMemory>>>> = Mutex::new(None);

/// What became of a create-only write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// The object exists with these bytes and was not there before.
    Now,
    /// An attempt was reported as failed, but reading back showed these very bytes.
    Recovered,
    /// The name was taken by other bytes; they are given unless they are too large to be a record, or
    /// gone already.
    Taken(Option<Vec<u8>>),
}

/// A board's storage: an object store and a prefix within it.
#[derive(Debug, Clone)]
pub struct Store {
    backend: Backend,
    prefix: Path,
    url: String,
    root: Option<PathBuf>,
    settles: bool,
    web: bool,
    options: Arc<StoreOptions>,
}

impl Store {
    /// Opens the board at a path or URL.
    ///
    /// With `create` a missing directory, or memory store, is made; without, it is an error.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for a scheme this build does not know and for a board that is not there
    /// or cannot be opened.
    pub fn open(url: &str, create: bool) -> Result<Self> {
        Self::open_with(url, create, StoreOptions::default())
    }

    /// As [`Store::open`], with settings for a remote store, which is asked once whether it can be read.
    /// An empty board there needs no `create`: a prefix exists when something lies below it.
    ///
    /// # Errors
    /// [`ErrorKind::Store`], also for settings out of range, a missing bucket, and where permission is
    /// denied.
    pub fn open_with(url: &str, create: bool, options: StoreOptions) -> Result<Self> {
        match Location::parse(url)? {
            Location::Local(path) => Self::open_local(&path, url, create),
            Location::Memory { name, prefix } => Self::open_memory(name, &prefix, url, create),
            Location::Remote { bucket, prefix } => Self::open_remote(bucket, &prefix, url, options),
        }
    }

    /// A board on any store. `url` is only for messages.
    ///
    /// A create that failed on such a store may still land later, so its objects are never removed
    /// on the strength of a read-back alone.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for a prefix that is not a valid path.
    pub fn over(inner: Arc<dyn ObjectStore>, prefix: &str, url: &str) -> Result<Self> {
        Ok(Self {
            backend: Backend::Near(inner),
            prefix: parse_path(prefix)?,
            url: url.to_owned(),
            root: None,
            settles: false,
            web: false,
            options: Arc::default(),
        })
    }

    /// The same board, with faults before its store, from the next operation on. It then counts as one
    /// that others run: writes that failed may still land.
    #[must_use]
    pub fn with_faults(mut self, plan: Arc<FaultPlan>) -> Self {
        self.backend = Backend::Faulty(Box::new(self.backend), plan);
        self.settles = false;
        self
    }

    fn open_remote(bucket: Bucket, prefix: &str, url: &str, options: StoreOptions) -> Result<Self> {
        let web = bucket.cloud == Cloud::Http;
        if let Some(cache) = &options.cache {
            cache::prepare(cache).map_err(|error| error.at(url))?;
        }
        let client = RemoteClient::new(bucket, options.clone()).map_err(|error| error.at(url))?;
        let store = Self {
            backend: Backend::Remote(Arc::new(client)),
            prefix: parse_path(prefix)?,
            url: url.to_owned(),
            root: None,
            settles: false,
            web,
            options: Arc::new(options),
        };
        let location = store.full_path(LATEST)?;
        match block_on(store.object_store()?.get(&location))? {
            Ok(_) => Ok(store),
            Err(error @ object_store::Error::NotFound { .. }) => {
                let text = explain(&error);
                if ["NoSuchBucket", "ContainerNotFound"]
                    .iter()
                    .any(|code| text.contains(code))
                {
                    let message = "there is no such bucket; make it first, or check its name, \
                                   region and endpoint";
                    return Err(Error::new(ErrorKind::Store, message).at(url));
                }
                Ok(store)
            }
            Err(error) => Err(store_error(&error, LATEST)),
        }
    }

    fn open_local(path: &FilePath, url: &str, create: bool) -> Result<Self> {
        let fail = |message: String| Error::new(ErrorKind::Store, message).at(url);
        if create {
            create_directory(path)
                .map_err(|error| fail(format!("cannot create the board's directory: {error}")))?;
        }
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(fail("this is a file; a board is a directory".to_owned())),
            Err(error) => {
                return Err(fail(format!(
                    "no board here ({error}); check the path, or create it by publishing"
                )))
            }
        }
        // Files and directories are synced before a write is reported done.
        let local = LocalFileSystem::new_with_prefix(path)
            .map_err(|error| fail(root_cause(&error)))?
            .with_fsync(true)
            // An empty directory stays: another writer may be about to fill it.
            .with_automatic_cleanup(false);
        let root = std::fs::canonicalize(path).map_err(|error| fail(error.to_string()))?;
        Ok(Self {
            backend: Backend::Near(Arc::new(local)),
            prefix: Path::default(),
            url: url.to_owned(),
            root: Some(root),
            settles: true,
            web: false,
            options: Arc::default(),
        })
    }

    fn open_memory(name: String, prefix: &str, url: &str, create: bool) -> Result<Self> {
        let mut stores = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        let stores = stores.get_or_insert_default();
        if !create && !stores.contains_key(&name) {
            return Err(Error::new(
                ErrorKind::Store,
                "no memory board of this name in this process; create it by publishing",
            )
            .at(url));
        }
        let inner: Arc<InMemory> = Arc::clone(stores.entry(name).or_default());
        let mut store = Self::over(inner, prefix, url)?;
        store.settles = true;
        Ok(store)
    }

    /// The path or URL that the board was opened with.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The board's directory, if it is a local one.
    #[must_use]
    pub fn root(&self) -> Option<&FilePath> {
        self.root.as_deref()
    }

    /// Whether a write that failed, and is not there right after, can no longer land.
    #[must_use]
    pub fn settles(&self) -> bool {
        self.settles
    }

    /// Whether its objects can be listed; those of a web server cannot.
    #[must_use]
    pub fn lists(&self) -> bool {
        !self.web
    }

    /// Checks that this kind of store is not read-only.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for a web server.
    pub fn check_writable(&self) -> Result<()> {
        if self.web {
            return Err(Error::new(
                ErrorKind::Store,
                "a board on a web server is read-only; publish to the store behind it",
            )
            .at(&self.url));
        }
        Ok(())
    }

    pub(crate) fn is_remote(&self) -> bool {
        self.backend.is_remote()
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    pub(crate) fn object_store(&self) -> Result<Arc<dyn ObjectStore>> {
        self.backend.client()
    }

    /// An object to be read in ranges.
    pub(crate) fn source(&self, path: &str, length: Option<u64>) -> Result<Source> {
        Ok(Source {
            store: self.object_store()?,
            location: self.full_path(path)?,
            path: path.to_owned(),
            length,
            patience: Patience::new(&self.options),
        })
    }

    pub(crate) fn full_path(&self, path: &str) -> Result<Path> {
        let path = parse_path(path)?;
        Ok(self.prefix.parts().chain(path.parts()).collect())
    }

    /// Whether an object is there: one small request.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn exists(&self, path: &str) -> Result<bool> {
        let location = self.full_path(path)?;
        match block_on(self.object_store()?.head(&location))? {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(store_error(&error, path)),
        }
    }

    /// The bytes of a small object, or `None` if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if it is larger than `limit` bytes, before any is read;
    /// [`ErrorKind::Store`].
    pub fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        block_on(self.read_soon(path, limit))?
    }

    /// [`Store::read`], for several at once.
    pub(crate) async fn read_soon(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let location = self.full_path(path)?;
        let found = match self.object_store()?.get(&location).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(store_error(&error, path)),
        };
        let length = found.meta.size;
        if length > limit {
            return Err(Error::new(
                ErrorKind::Limit,
                format!("{length} bytes, more than the {limit} accepted here"),
            )
            .at(path));
        }
        let broken = match found.bytes().await {
            Ok(bytes) if bytes.len() as u64 == length => return Ok(Some(bytes.to_vec())),
            Ok(_) => Error::new(ErrorKind::Store, "the answer was cut short; try again").at(path),
            Err(error) => store_error(&error, path),
        };
        if !self.is_remote() || length == 0 {
            return Err(broken);
        }
        // Once more, with the patience of a download.
        let bytes = self.source(path, Some(length))?.fetch(0..length).await;
        bytes.map(Some).map_err(|trouble| trouble.into_error(path))
    }

    /// Writes an object that must not exist yet.
    ///
    /// `data` must hold something unique to this attempt (a write id): after any failure the object
    /// is read back, and equal bytes mean that this attempt, or a retry of it below us, succeeded.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] if the write failed and the object is not there.
    pub fn create(&self, path: &str, data: &[u8]) -> Result<Created> {
        self.check_writable()?;
        let location = self.full_path(path)?;
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let payload = PutPayload::from(data.to_vec());
        let error = match block_on(self.object_store()?.put_opts(&location, payload, options))? {
            Ok(_) => return Ok(Created::Now),
            Err(error) => error,
        };
        match self.read(path, data.len() as u64) {
            Ok(Some(found)) if found == data => Ok(Created::Recovered),
            Ok(Some(found)) => Ok(Created::Taken(Some(found))),
            // Larger than ours, so not ours.
            Err(Error {
                kind: ErrorKind::Limit,
                ..
            }) => Ok(Created::Taken(None)),
            // It was there, and was collected since.
            Ok(None) if matches!(error, object_store::Error::AlreadyExists { .. }) => {
                Ok(Created::Taken(None))
            }
            Ok(None) | Err(_) => Err(store_error(&error, path)),
        }
    }

    /// Writes an object, replacing any other. Only for hints.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn overwrite(&self, path: &str, data: &[u8]) -> Result<()> {
        self.check_writable()?;
        let location = self.full_path(path)?;
        let payload = PutPayload::from(data.to_vec());
        block_on(self.object_store()?.put(&location, payload))?
            .map(drop)
            .map_err(|error| store_error(&error, path))
    }

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn delete(&self, path: &str) -> Result<()> {
        self.check_writable()?;
        let location = self.full_path(path)?;
        match block_on(self.object_store()?.delete(&location))? {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(store_error(&error, path)),
        }
    }

    /// Names and lengths of the objects directly in a directory.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn list(&self, directory: &str) -> Result<Vec<(String, u64)>> {
        self.check_lists()?;
        let location = self.full_path(directory)?;
        let found = match block_on(self.object_store()?.list_with_delimiter(Some(&location)))? {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(store_error(&error, directory)),
        };
        Ok(found
            .objects
            .into_iter()
            .filter_map(|meta| Some((meta.location.filename()?.to_owned(), meta.size)))
            .collect())
    }

    /// Paths and lengths of all objects below a directory, relative to the board.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn list_all(&self, directory: &str) -> Result<Vec<(String, u64)>> {
        self.check_lists()?;
        let location = self.full_path(directory)?;
        let store = self.object_store()?;
        let found = block_on(store.list(Some(&location)).try_collect::<Vec<_>>())?
            .map_err(|error| store_error(&error, directory))?;
        Ok(found
            .into_iter()
            .filter_map(|meta| {
                let parts = meta.location.prefix_match(&self.prefix)?;
                Some((parts.collect::<Path>().to_string(), meta.size))
            })
            .collect())
    }

    /// The bytes `range` of an object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Untrusted`] if the object ends before the range does;
    /// [`ErrorKind::Store`].
    pub fn read_range(&self, path: &str, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let source = self.source(path, None)?;
        let bytes = block_on(source.fetch(range))?;
        bytes.map_err(|trouble| trouble.into_error(path))
    }

    /// The bytes of many ranges of an object, in the order of `ranges`. Near ones share a request, and
    /// several requests are on their way at once.
    ///
    /// # Errors
    /// As [`Store::read_range`]; nothing is returned unless all of them could be read.
    pub fn read_ranges(&self, path: &str, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let source = self.source(path, None)?;
        ranges::read(
            &source,
            ranges,
            self.options.parallel,
            self.options.part_bytes,
        )
    }

    pub(crate) fn check_lists(&self) -> Result<()> {
        if self.lists() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Store, "a web server's objects cannot be listed").at(&self.url))
    }

    /// Reads a whole object front to back. With `expected`, its length and BLAKE3 are checked on
    /// the way.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Untrusted`] for another length; [`ErrorKind::Store`].
    pub fn download(&self, path: &str, expected: Option<(u64, Blake3)>) -> Result<Download> {
        Download::open(self, path, expected)
    }

    /// Begins to write an object of any size, front to back.
    ///
    /// The name must be unique to this upload.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for an invalid name.
    pub fn upload(&self, path: &str) -> Result<Upload> {
        Upload::begin(self, path)
    }
}

fn parse_path(path: &str) -> Result<Path> {
    Path::parse(path).map_err(|error| Error::new(ErrorKind::Store, root_cause(&error)).at(path))
}

/// Makes a directory and its parents, durably.
fn create_directory(path: &FilePath) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => FilePath::new("."),
    };
    create_directory(parent)?;
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    std::fs::File::open(parent)?.sync_all()
}
