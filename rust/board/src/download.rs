//! Reading one object front to back, its length and BLAKE3 checked on the way.
//!
//! Of a remote store several pieces are on their way at once, and what was downloaded may be kept.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::StreamExt;
use object_store::{GetResultPayload, ObjectStoreExt};

use crate::cache::Cached;
use crate::error::{store_error, Error, ErrorKind, Result};
use crate::hex::Blake3;
use crate::options::StoreOptions;
use crate::pieces::{wrong_length, Pieces, Source as RemoteSource};
use crate::runtime::block_on;
use crate::store::Store;

/// Bytes of one read from a local file.
const BLOCK: usize = 1 << 20;

/// An object being read. What [`Download::next`] hands out is only trustworthy once it has
/// returned `None`: a mismatch shows at the end.
pub struct Download {
    path: String,
    source: Source,
    hasher: Option<blake3::Hasher>,
    expected: Option<Blake3>,
    length: u64,
    received: u64,
}

enum Source {
    File(File),
    Stream(BoxStream<'static, object_store::Result<Bytes>>),
    Remote(Box<Remote>),
}

/// First what the cache has, then the rest from the store.
struct Remote {
    source: RemoteSource,
    options: StoreOptions,
    cached: Option<Cached>,
    pieces: Option<Pieces>,
}

impl Remote {
    /// The bytes from `at` on.
    fn next(&mut self, at: u64, length: u64) -> Result<Option<Bytes>> {
        let pieces = match &mut self.pieces {
            Some(pieces) => pieces,
            None => {
                if let Some(block) = self.cached.as_mut().and_then(Cached::next) {
                    return Ok(Some(block));
                }
                let pieces = Pieces::new(self.source.clone(), length, at, &self.options);
                self.pieces.insert(pieces)
            }
        };
        let block = pieces.next()?;
        if let (Some(block), Some(cached)) = (&block, &mut self.cached) {
            cached.append(block);
        }
        Ok(block)
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download")
            .field("path", &self.path)
            .field("length", &self.length)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl Download {
    pub(crate) fn open(store: &Store, path: &str, expected: Option<(u64, Blake3)>) -> Result<Self> {
        if let Some((length, digest)) = expected {
            // An empty object has no ranges.
            if store.is_remote() && length > 0 {
                return Self::open_remote(store, path, length, digest);
            }
        }
        let location = store.full_path(path)?;
        let found = block_on(store.object_store()?.get(&location))?
            .map_err(|error| store_error(&error, path))?;
        let length = found.meta.size;
        if let Some((expected, _)) = expected {
            if length != expected {
                return Err(wrong_length(path, length, expected));
            }
        }
        let source = match found.payload {
            GetResultPayload::File(mut file, _) => {
                file.seek(SeekFrom::Start(found.range.start))
                    .map_err(|error| io_error(&error, path))?;
                Source::File(file)
            }
            GetResultPayload::Stream(stream) => Source::Stream(stream),
        };
        Ok(Self {
            path: path.to_owned(),
            source,
            hasher: expected.map(|_| blake3::Hasher::new()),
            expected: expected.map(|(_, digest)| digest),
            length,
            received: 0,
        })
    }

    fn open_remote(store: &Store, path: &str, length: u64, digest: Blake3) -> Result<Self> {
        let options = store.options().clone();
        let cache = options.cache.as_ref();
        let remote = Remote {
            source: store.source(path, Some(length))?,
            cached: cache.and_then(|cache| Cached::open(cache, digest, length)),
            pieces: None,
            options,
        };
        Ok(Self {
            path: path.to_owned(),
            source: Source::Remote(Box::new(remote)),
            hasher: Some(blake3::Hasher::new()),
            expected: Some(digest),
            length,
            received: 0,
        })
    }

    /// The object's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the object has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The next bytes, or `None` at the end, after the checks have passed.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] if the object has another length or BLAKE3 than expected;
    /// [`ErrorKind::Store`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Bytes>> {
        let block = match &mut self.source {
            Source::File(file) => {
                let wanted = (self.length - self.received).min(BLOCK as u64);
                // One byte more than the length shows a file that has grown.
                let mut block = Vec::with_capacity(wanted as usize + 1);
                file.take(wanted.max(1))
                    .read_to_end(&mut block)
                    .map_err(|error| io_error(&error, &self.path))?;
                (!block.is_empty()).then(|| Bytes::from(block))
            }
            Source::Stream(stream) => block_on(stream.next())?
                .transpose()
                .map_err(|error| store_error(&error, &self.path))?,
            Source::Remote(remote) => remote.next(self.received, self.length)?,
        };
        match block {
            Some(block) => {
                self.received += block.len() as u64;
                if self.received > self.length {
                    return Err(self.altered(format!("more than {} bytes arrived", self.length)));
                }
                if let Some(hasher) = &mut self.hasher {
                    hasher.update(&block);
                }
                Ok(Some(block))
            }
            None => {
                let checked = self.check();
                if let (Err(_), Source::Remote(remote)) = (&checked, &mut self.source) {
                    if let Some(cached) = &mut remote.cached {
                        cached.discard();
                    }
                }
                checked.map(|()| None)
            }
        }
    }

    fn check(&self) -> Result<()> {
        if self.received != self.length {
            return Err(self.altered(format!(
                "ended after {} of {} bytes",
                self.received, self.length
            )));
        }
        if let (Some(hasher), Some(expected)) = (&self.hasher, self.expected) {
            if Blake3::from(hasher.finalize()) != expected {
                return Err(self.altered(
                    "its BLAKE3 is not the one in its manifest; fetch it again, or tell the \
                     publisher that the object was altered"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn altered(&self, message: String) -> Error {
        Error::new(ErrorKind::Untrusted, message).at(&self.path)
    }
}

fn io_error(error: &std::io::Error, path: &str) -> Error {
    Error::new(ErrorKind::Store, error.to_string()).at(path)
}
