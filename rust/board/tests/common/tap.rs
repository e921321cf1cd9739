//! A memory store that counts operations and can stop for good at any one of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::*;

/// Never reached.
pub const NEVER: u64 = u64::MAX;

/// The path after which, the path, and the bytes.
pub type Planted = (Path, Path, Vec<u8>);

/// Clones share everything.
#[derive(Debug, Clone)]
pub struct TapStore {
    pub inner: Arc<InMemory>,
    /// Operations so far; deletions count each, listings once.
    pub operations: Arc<AtomicU64>,
    pub lists: Arc<AtomicU64>,
    /// The operation from which on all fail, counted from 0.
    pub crash_at: Arc<AtomicU64>,
    /// Whether that operation itself still takes effect.
    pub crash_after: bool,
    /// An object that is gone after so many looks at it.
    pub hidden: Arc<Mutex<Option<(Path, u64)>>>,
    /// An object that somebody else writes right after one with the first path.
    pub planted: Arc<Mutex<Option<Planted>>>,
}

impl TapStore {
    pub fn over(inner: Arc<InMemory>, crash_at: u64, crash_after: bool) -> Self {
        Self {
            inner,
            operations: Arc::default(),
            lists: Arc::default(),
            crash_at: Arc::new(AtomicU64::new(crash_at)),
            crash_after,
            hidden: Arc::default(),
            planted: Arc::default(),
        }
    }

    /// Hides an object after so many looks at it.
    pub fn hide(&self, path: &str, looks: u64) {
        *self.hidden.lock().unwrap() = Some((Path::from(path), looks));
    }

    pub fn count(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    /// Operations since the last call of this.
    pub fn take(&self) -> u64 {
        self.operations.swap(0, Ordering::SeqCst)
    }

    /// Counts an operation; says whether it takes effect, and whether it is reported as done.
    fn tap(&self) -> (bool, bool) {
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        let limit = self.crash_at.load(Ordering::SeqCst);
        (
            number < limit || (self.crash_after && number == limit),
            number < limit,
        )
    }
}

fn stopped() -> Error {
    Error::Generic {
        store: "TapStore",
        source: "stopped".into(),
    }
}

impl std::fmt::Display for TapStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TapStore")
    }
}

#[async_trait::async_trait]
impl ObjectStore for TapStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (works, reported) = self.tap();
        if !works {
            return Err(stopped());
        }
        let done = self.inner.put_opts(location, payload, options).await;
        let planted = self.planted.lock().unwrap().clone();
        if let Some((_, path, data)) = planted.filter(|(after, ..)| after == location) {
            self.inner.put(&path, data.into()).await?;
        }
        if reported {
            done
        } else {
            Err(stopped())
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !self.tap().1 {
            return Err(stopped());
        }
        if let Some((path, looks)) = self.hidden.lock().unwrap().as_mut() {
            if path == location && *looks == 0 {
                return Err(Error::NotFound {
                    path: path.to_string(),
                    source: "hidden".into(),
                });
            } else if path == location {
                *looks -= 1;
            }
        }
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let (works, reported) = store.tap();
                    if works {
                        store.inner.delete(&location).await?;
                    }
                    if reported {
                        Ok(location)
                    } else {
                        Err(stopped())
                    }
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        if !self.tap().1 {
            return futures::stream::once(async { Err(stopped()) }).boxed();
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        if !self.tap().1 {
            return Err(stopped());
        }
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
