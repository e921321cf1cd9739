//! The storage operations that the protocol needs, synchronous and with this crate's errors.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};

use crate::download::Download;
use crate::error::{root_cause, store_error, Error, ErrorKind, Result};
use crate::hex::Blake3;
use crate::location::Location;
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
    inner: Arc<dyn ObjectStore>,
    prefix: Path,
    url: String,
    root: Option<PathBuf>,
    settles: bool,
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
        match Location::parse(url)? {
            Location::Local(path) => Self::open_local(&path, url, create),
            Location::Memory { name, prefix } => Self::open_memory(name, &prefix, url, create),
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
            inner,
            prefix: parse_path(prefix)?,
            url: url.to_owned(),
            root: None,
            settles: false,
        })
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
            inner: Arc::new(local),
            prefix: Path::default(),
            url: url.to_owned(),
            root: Some(root),
            settles: true,
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

    pub(crate) fn object_store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.inner)
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
        match block_on(self.inner.head(&location))? {
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
        block_on(self.read_async(path, limit))?
    }

    pub(crate) async fn read_async(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let location = self.full_path(path)?;
        let found = match self.inner.get(&location).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(store_error(&error, path)),
        };
        if found.meta.size > limit {
            return Err(Error::new(
                ErrorKind::Limit,
                format!(
                    "{} bytes, more than the {limit} accepted here",
                    found.meta.size
                ),
            )
            .at(path));
        }
        let bytes = found
            .bytes()
            .await
            .map_err(|error| store_error(&error, path))?;
        Ok(Some(bytes.to_vec()))
    }

    /// Writes an object that must not exist yet.
    ///
    /// `data` must hold something unique to this attempt (a write id): after any failure the object
    /// is read back, and equal bytes mean that this attempt, or a retry of it below us, succeeded.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] if the write failed and the object is not there.
    pub fn create(&self, path: &str, data: &[u8]) -> Result<Created> {
        let location = self.full_path(path)?;
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let payload = PutPayload::from(data.to_vec());
        let error = match block_on(self.inner.put_opts(&location, payload, options))? {
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
        let location = self.full_path(path)?;
        let payload = PutPayload::from(data.to_vec());
        block_on(self.inner.put(&location, payload))?
            .map(drop)
            .map_err(|error| store_error(&error, path))
    }

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn delete(&self, path: &str) -> Result<()> {
        let location = self.full_path(path)?;
        match block_on(self.inner.delete(&location))? {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(store_error(&error, path)),
        }
    }

    /// Names and lengths of the objects directly in a directory.
    ///
    /// # Errors
    /// [`ErrorKind::Store`].
    pub fn list(&self, directory: &str) -> Result<Vec<(String, u64)>> {
        let location = self.full_path(directory)?;
        let found = match block_on(self.inner.list_with_delimiter(Some(&location)))? {
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
        let location = self.full_path(directory)?;
        let found = block_on(self.inner.list(Some(&location)).try_collect::<Vec<_>>())?
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
        let location = self.full_path(path)?;
        let wanted = range.end - range.start;
        let options = GetOptions {
            range: Some(range.clone().into()),
            ..GetOptions::default()
        };
        block_on(async {
            let found = self
                .inner
                .get_opts(&location, options)
                .await
                .map_err(|error| store_error(&error, path))?;
            // The claimed length is checked against the real one before anything is allocated.
            if found.range != range {
                return Err(Error::new(
                    ErrorKind::Untrusted,
                    format!(
                        "wanted the {wanted} bytes at {}, but the object has {} in all",
                        range.start, found.meta.size
                    ),
                )
                .at(path));
            }
            let bytes = found
                .bytes()
                .await
                .map_err(|error| store_error(&error, path))?;
            Ok(bytes.to_vec())
        })?
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
