//! Storage operations of leases and collection: listings with dates, and emptying directories.

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::error::{store_error, Result};
use crate::runtime::block_on;
use crate::store::Store;

/// Directories emptied at once.
const IN_FLIGHT: usize = 16;
/// Directories within directories that are removed with them; a checkpoint has one, or two.
const DEEPEST: usize = 8;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dated {
    /// Name within the directory listed, or path from the board's root.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// When the store says that it was written, milliseconds since 1970.
    pub modified_ms: u64,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Freed {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Freed {
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

fn milliseconds(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0)
}

impl Store {
    /// The objects directly in a directory, by name.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Store`].
    pub fn list_dated(&self, directory: &str) -> Result<Vec<Dated>> {
        self.check_lists()?;
        let location = self.full_path(directory)?;
        let store = self.object_store()?;
        let found = match block_on(store.list_with_delimiter(Some(&location)))? {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(store_error(&error, directory)),
        };
        let dated = |meta: ObjectMeta| {
            Some(Dated {
                path: meta.location.filename()?.to_owned(),
                bytes: meta.size,
                modified_ms: milliseconds(&meta),
            })
        };
        Ok(found.objects.into_iter().filter_map(dated).collect())
    }

    /// All objects below a directory, by path from the board's root.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Store`].
    pub fn list_below(&self, directory: &str) -> Result<Vec<Dated>> {
        block_on(self.below(directory))?
    }

    async fn below(&self, directory: &str) -> Result<Vec<Dated>> {
        self.check_lists()?;
        let location = self.full_path(directory)?;
        let root = self.full_path("")?;
        let store = self.object_store()?;
        let mut listing = store.list(Some(&location));
        let mut found = Vec::new();
        loop {
            let meta = match listing.try_next().await {
                Ok(Some(meta)) => meta,
                Ok(None) => return Ok(found),
                // Gone while it was listed.
                Err(object_store::Error::NotFound { .. }) => continue,
                Err(error) => return Err(store_error(&error, directory)),
            };
            let path = meta.location.prefix_match(&root).map(Path::from_iter);
            found.extend(path.map(|path| Dated {
                path: path.to_string(),
                bytes: meta.size,
                modified_ms: milliseconds(&meta),
            }));
        }
    }

    /// When the store says that an object was written, milliseconds since 1970; `None` if it is not
    /// there.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Store`].
    pub fn modified_ms(&self, path: &str) -> Result<Option<u64>> {
        let location = self.full_path(path)?;
        match block_on(self.object_store()?.head(&location))? {
            Ok(meta) => Ok(Some(milliseconds(&meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(store_error(&error, path)),
        }
    }

    /// Removes all objects below some directories, several at once; with `dry_run` only counts them.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Store`]; some may then be gone.
    pub fn empty_directories(&self, directories: &[String], dry_run: bool) -> Result<Freed> {
        let each = block_on(
            futures::stream::iter(directories)
                .map(|directory| self.empty(directory, dry_run))
                .buffer_unordered(IN_FLIGHT)
                .try_collect::<Vec<_>>(),
        )??;
        let mut freed = Freed::default();
        for directory in each {
            freed += directory;
        }
        Ok(freed)
    }

    async fn empty(&self, directory: &str, dry_run: bool) -> Result<Freed> {
        let mut freed = Freed::default();
        for object in self.below(directory).await? {
            if !dry_run {
                let location = self.full_path(&object.path)?;
                match self.object_store()?.delete(&location).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(store_error(&error, &object.path)),
                }
            }
            freed += Freed {
                objects: 1,
                bytes: object.bytes,
            };
        }
        if !dry_run {
            self.remove_local_directory(directory);
        }
        Ok(freed)
    }

    /// On a local board a directory, those in it, and what a crash left of uploads into it
    /// (`<name>#<digits>`), are not objects. What cannot be removed is of no consequence.
    fn remove_local_directory(&self, directory: &str) {
        let Some(path) = self.root().map(|root| root.join(directory)) else {
            return;
        };
        remove_empty(&path, DEEPEST);
    }

    /// Removes what crashes left of writes into a directory of a local board, if older than
    /// `before_ms`; returns their number.
    pub(crate) fn remove_staged_before(&self, directory: &str, before_ms: u64) -> u64 {
        let Some(path) = self.root().map(|root| root.join(directory)) else {
            return 0;
        };
        let mut removed = 0;
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let old = entry
                .metadata()
                .and_then(|metadata| metadata.modified())
                .ok()
                .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
                .is_some_and(|age| age.as_millis() < u128::from(before_ms));
            let staged = is_staged(&entry.file_name().to_string_lossy());
            if old && staged && std::fs::remove_file(entry.path()).is_ok() {
                removed += 1;
            }
        }
        removed
    }

    /// Makes removals in a directory of a local board durable; elsewhere they are.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Store`].
    pub(crate) fn sync_removals(&self, directory: &str) -> Result<()> {
        let Some(path) = self.root().map(|root| root.join(directory)) else {
            return Ok(());
        };
        match std::fs::File::open(path).and_then(|file| file.sync_all()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(
                crate::error::Error::new(crate::ErrorKind::Store, error.to_string()).at(directory),
            ),
            _ => Ok(()),
        }
    }
}

/// Removes a directory in which there is nothing but staged files and directories of that kind.
fn remove_empty(path: &std::path::Path, deepest: usize) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory && deepest > 0 {
            remove_empty(&entry.path(), deepest - 1);
        } else if !is_directory && is_staged(&entry.file_name().to_string_lossy()) {
            drop(std::fs::remove_file(entry.path()));
        }
    }
    drop(std::fs::remove_dir(path));
}

fn is_staged(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, digits)| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}
