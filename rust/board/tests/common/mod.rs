//! What the tests share: scratch directories, manifests, and a store that misbehaves on demand.
#![allow(dead_code, unreachable_pub)]

pub mod boards;
pub mod tap;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use deltawire_board::commit::commit;
use deltawire_board::{
    Blake3, ChainStart, Hex, Manifest, ObjectRef, Part, State, Store, VersionRef,
};
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::*;

/// A directory that is removed at the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "deltawire-board-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn store(&self) -> Store {
        Store::open(self.0.join("board").to_str().unwrap(), true).unwrap()
    }

    pub fn board(&self) -> PathBuf {
        self.0.join("board")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

pub fn memory(name: &str) -> Store {
    Store::open(&format!("memory://{name}/run"), true).unwrap()
}

pub fn state(version: u64) -> State {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    Hex(bytes)
}

/// The first version: an anchor with one file, which is uploaded.
pub fn first(store: &Store, version: u64, epoch: u64) -> Manifest {
    let directory = format!("anchors/{version}");
    let mut upload = store
        .upload(&format!("{directory}/model.safetensors"))
        .unwrap();
    upload.write(b"weights").unwrap();
    let file = upload.finish().unwrap();
    Manifest {
        format: 1,
        requires: Vec::new(),
        run: "test".into(),
        version,
        parent: None,
        base_state: None,
        result_state: state(version),
        objects: Vec::new(),
        anchor: Some(deltawire_board::AnchorFiles {
            path: directory,
            files: vec![deltawire_board::AnchorFile {
                object: file,
                blocks: None,
            }],
        }),
        last_anchor: None,
        elements: 10,
        changed: 0,
        dense_bytes: 20,
        epoch,
        write_id: Hex([1; 16]),
        time_ms: 1_700_000_000_000,
        skips: Vec::new(),
        meta: BTreeMap::new(),
        signature: None,
    }
}

/// A version with a delta; the object is only named, not uploaded.
pub fn next(parent: &ChainStart, epoch: u64, write_id: u8) -> Manifest {
    let version = parent.version + 1;
    let write_id = Hex([write_id; 16]);
    Manifest {
        format: 1,
        requires: Vec::new(),
        run: "test".into(),
        version,
        parent: Some(VersionRef {
            version: parent.version,
            digest: parent.digest,
        }),
        base_state: Some(parent.state),
        result_state: state(version),
        objects: vec![Part {
            object: ObjectRef {
                path: deltawire_board::layout::object(version, 0, write_id),
                bytes: 5,
                blake3: Blake3::of(b"delta"),
            },
            records: None,
        }],
        anchor: None,
        last_anchor: None,
        elements: 10,
        changed: 1,
        dense_bytes: 20,
        epoch,
        write_id,
        time_ms: 1_700_000_000_000,
        skips: Vec::new(),
        meta: BTreeMap::new(),
        signature: None,
    }
}

pub fn after(manifest: &Manifest, digest: Blake3) -> ChainStart {
    ChainStart {
        version: manifest.version,
        digest,
        state: manifest.result_state,
        epoch: manifest.epoch,
        run: Some(manifest.run.clone()),
    }
}

/// Commits versions `from..=to` and returns the start for the next.
pub fn fill(store: &Store, from: u64, to: u64, epoch: u64) -> ChainStart {
    let manifest = first(store, from, epoch);
    let mut start = after(&manifest, commit(store, &manifest).unwrap());
    for _ in from..to {
        let manifest = next(&start, epoch, 7);
        start = after(&manifest, commit(store, &manifest).unwrap());
    }
    start
}

pub fn files_below(directory: &FilePath) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found
}

/// What to do to the next conditional put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It succeeds, but the reply is lost and reads as an error.
    LoseReply,
    /// It succeeds, the reply is lost, and a retry below us collides with it.
    CollideWithItself,
    /// It fails and nothing is written.
    Fail,
}

/// A memory store that counts what it is asked and fails as told.
#[derive(Debug, Default, Clone)]
pub struct FaultyStore {
    inner: InMemory,
    pub faults: Arc<Mutex<Vec<Fault>>>,
    pub lists: Arc<AtomicU64>,
    pub gets: Arc<AtomicU64>,
    pub fail_parts: Arc<AtomicU64>,
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FaultyStore")
    }
}

fn lost() -> Error {
    Error::Generic {
        store: "FaultyStore",
        source: "connection reset".into(),
    }
}

#[derive(Debug)]
struct FaultyUpload(Box<dyn MultipartUpload>, Arc<AtomicU64>);

#[async_trait::async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        if self.1.load(Ordering::SeqCst) > 0 {
            return Box::pin(async { Err(lost()) });
        }
        self.0.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.0.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.abort().await
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let fault = match options.mode {
            PutMode::Create => self.faults.lock().unwrap().pop(),
            _ => None,
        };
        match fault {
            None => self.inner.put_opts(location, payload, options).await,
            Some(Fault::Fail) => Err(lost()),
            Some(Fault::LoseReply) => {
                self.inner.put_opts(location, payload, options).await?;
                Err(lost())
            }
            Some(Fault::CollideWithItself) => {
                self.inner
                    .put_opts(location, payload.clone(), options.clone())
                    .await?;
                self.inner.put_opts(location, payload, options).await
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(FaultyUpload(upload, Arc::clone(&self.fail_parts))))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

pub fn faulty() -> (Store, FaultyStore) {
    let faults = FaultyStore::default();
    let store = Store::over(Arc::new(faults.clone()), "run", "faulty").unwrap();
    (store, faults)
}
