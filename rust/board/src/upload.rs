//! Writing one object front to back while its bytes are still being made.

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::task::JoinSet;

use crate::error::{store_error, Error, ErrorKind, Result};
use crate::hex::Blake3;
use crate::manifest::ObjectRef;
use crate::runtime::{block_on, runtime};
use crate::store::Store;

/// Bytes of a part. Object stores want equal parts of at least 5 MiB.
const PART: usize = 8 << 20;
/// Parts on their way at once; with the one being filled they bound the memory of an upload.
const IN_FLIGHT: usize = 3;

/// An object being written. It is not visible under its name before [`Upload::finish`] returns;
/// dropped or aborted, it never will be.
#[derive(Debug)]
pub struct Upload {
    store: Store,
    path: String,
    part: Vec<u8>,
    hasher: blake3::Hasher,
    length: u64,
    multipart: Option<Multipart>,
    failed: bool,
}

#[derive(Debug)]
struct Multipart {
    upload: Box<dyn MultipartUpload>,
    parts: JoinSet<object_store::Result<()>>,
}

impl Upload {
    pub(crate) fn begin(store: &Store, path: &str) -> Result<Self> {
        store.full_path(path)?;
        Ok(Self {
            store: store.clone(),
            path: path.to_owned(),
            part: Vec::new(),
            hasher: blake3::Hasher::new(),
            length: 0,
            multipart: None,
            failed: false,
        })
    }

    /// The object's name on the board.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Bytes accepted so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends `data`, waiting while too many parts are on their way.
    ///
    /// # Errors
    /// [`ErrorKind::Store`]; the upload is then over and only to be dropped.
    pub fn write(&mut self, mut data: &[u8]) -> Result<()> {
        self.check_usable()?;
        self.hasher.update(data);
        self.length += data.len() as u64;
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(PART - self.part.len()));
            self.part.extend_from_slice(now);
            data = later;
            if self.part.len() == PART {
                if let Err(error) = self.send_part() {
                    self.abort();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Makes the object durable and visible under its name.
    ///
    /// # Errors
    /// [`ErrorKind::Store`]; nothing is then left under the name, as far as the store can tell.
    pub fn finish(mut self) -> Result<ObjectRef> {
        self.check_usable()?;
        let finished = if self.multipart.is_some() {
            self.complete_parts()
        } else {
            self.put_whole()
        };
        if let Err(error) = finished {
            self.abort();
            return Err(error);
        }
        self.multipart = None;
        Ok(ObjectRef {
            path: std::mem::take(&mut self.path),
            bytes: self.length,
            blake3: Blake3::from(self.hasher.finalize()),
        })
    }

    /// Gives up; removes what was uploaded as far as the store allows.
    pub fn abort(&mut self) {
        self.failed = true;
        self.part = Vec::new();
        let multipart = self.multipart.take();
        if let Some(mut multipart) = multipart {
            // What cannot be removed now is an orphan for collection; the first error matters more.
            drop(block_on(async {
                multipart.parts.shutdown().await;
                multipart.upload.abort().await
            }));
        }
        self.remove_staged_files();
    }

    /// The error for a use after the end.
    #[must_use]
    pub fn closed() -> Error {
        Error::new(ErrorKind::Store, "this upload is over; begin another")
    }

    fn check_usable(&self) -> Result<()> {
        if self.failed {
            return Err(Self::closed().at(&self.path));
        }
        Ok(())
    }

    fn put_whole(&mut self) -> Result<()> {
        let location = self.store.full_path(&self.path)?;
        let payload = PutPayload::from(std::mem::take(&mut self.part));
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        match block_on(
            self.store
                .object_store()
                .put_opts(&location, payload, options),
        )? {
            Ok(_) => Ok(()),
            // The name is unique, so this is an earlier try of the same put that did succeed,
            // unless the bytes say otherwise.
            Err(object_store::Error::AlreadyExists { .. }) => {
                let expected = (self.length, Blake3::from(self.hasher.finalize()));
                let mut found = self.store.download(&self.path, Some(expected))?;
                while found.next()?.is_some() {}
                Ok(())
            }
            Err(error) => Err(store_error(&error, &self.path)),
        }
    }

    fn send_part(&mut self) -> Result<()> {
        let fail = |error: object_store::Error| store_error(&error, &self.path);
        let runtime = runtime()?;
        let data = Bytes::from(std::mem::take(&mut self.part));
        let mut multipart = match self.multipart.take() {
            Some(multipart) => multipart,
            None => {
                let location = self.store.full_path(&self.path)?;
                let store = self.store.object_store();
                let upload = runtime
                    .block_on(store.put_multipart(&location))
                    .map_err(fail)?;
                Multipart {
                    upload,
                    parts: JoinSet::new(),
                }
            }
        };
        let sent = runtime.block_on(async {
            multipart
                .parts
                .spawn(multipart.upload.put_part(data.into()));
            multipart.wait_until(IN_FLIGHT).await
        });
        self.multipart = Some(multipart);
        sent.map_err(fail)?;
        self.part.reserve_exact(PART);
        Ok(())
    }

    fn complete_parts(&mut self) -> Result<()> {
        if !self.part.is_empty() {
            self.send_part()?;
        }
        let Some(multipart) = self.multipart.as_mut() else {
            return Ok(());
        };
        block_on(async {
            multipart.wait_until(0).await?;
            multipart.upload.complete().await
        })?
        .map(drop)
        .map_err(|error| store_error(&error, &self.path))
    }

    /// A local completion that fails at its sync forgets its staging file (`<name>#<digits>`).
    fn remove_staged_files(&self) {
        let Some(root) = self.store.root() else {
            return;
        };
        let path = root.join(&self.path);
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return;
        };
        let prefix = format!("{}#", name.to_string_lossy());
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                drop(std::fs::remove_file(entry.path()));
            }
        }
    }
}

impl Multipart {
    async fn wait_until(&mut self, at_most: usize) -> object_store::Result<()> {
        while self.parts.len() > at_most {
            if let Some(done) = self.parts.join_next().await {
                done??;
            }
        }
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.multipart.is_some() {
            self.abort();
        }
    }
}
