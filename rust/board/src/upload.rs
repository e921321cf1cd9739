//! Writing one object front to back while its bytes are still being made.

use bytes::Bytes;
use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::task::JoinSet;

use crate::blocks::BlockHasher;
use crate::error::{store_error, Error, ErrorKind, Result};
use crate::hex::Blake3;
use crate::manifest::ObjectRef;
use crate::runtime::{block_on, runtime};
use crate::store::Store;

/// After so many parts they double, so that 10,000 of them, which is all that stores take, hold an object
/// of any size, while those of up to a few GiB, as nearly all are, consist of equal, small parts.
const PARTS_PER_SIZE: u64 = 900;
/// Most bytes of a part that stores take.
const MAX_PART: u64 = 5 << 30;

/// An object being written. It is not visible under its name before [`Upload::finish`] returns;
/// dropped or aborted, it never will be.
#[derive(Debug)]
pub struct Upload {
    store: Store,
    path: String,
    part: Vec<u8>,
    hasher: blake3::Hasher,
    blocks: Option<BlockHasher>,
    length: u64,
    multipart: Option<Multipart>,
    failed: bool,
}

#[derive(Debug)]
struct Multipart {
    upload: Box<dyn MultipartUpload>,
    parts: JoinSet<object_store::Result<()>>,
    /// Parts begun.
    begun: u64,
}

impl Upload {
    pub(crate) fn begin(store: &Store, path: &str) -> Result<Self> {
        store.check_writable()?;
        store.full_path(path)?;
        Ok(Self {
            store: store.clone(),
            path: path.to_owned(),
            part: Vec::new(),
            hasher: blake3::Hasher::new(),
            blocks: None,
            length: 0,
            multipart: None,
            failed: false,
        })
    }

    /// Also hashes blocks of `size` bytes of what is written from here on, see
    /// [`Upload::finish_with_blocks`].
    #[must_use]
    pub fn hashing_blocks(mut self, size: usize) -> Self {
        self.blocks = Some(BlockHasher::new(size));
        self
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
        if let Some(blocks) = &mut self.blocks {
            blocks.update(data);
        }
        self.length += data.len() as u64;
        while !data.is_empty() {
            let size = self.part_size();
            let (now, later) = data.split_at(data.len().min(size - self.part.len()));
            self.part.extend_from_slice(now);
            data = later;
            if self.part.len() == size {
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
    pub fn finish(self) -> Result<ObjectRef> {
        self.finish_with_blocks().map(|(object, _)| object)
    }

    /// As [`Upload::finish`], with the BLAKE3 of each block, 32 bytes each; none unless
    /// [`Upload::hashing_blocks`] was asked for.
    ///
    /// # Errors
    /// As [`Upload::finish`].
    pub fn finish_with_blocks(mut self) -> Result<(ObjectRef, Vec<u8>)> {
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
        let object = ObjectRef {
            path: std::mem::take(&mut self.path),
            bytes: self.length,
            blake3: Blake3::from(self.hasher.finalize()),
        };
        let hashes = self.blocks.take().map(BlockHasher::finish);
        Ok((object, hashes.unwrap_or_default()))
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
                .object_store()?
                .put_opts(&location, payload, options),
        )? {
            Ok(_) => Ok(()),
            Err(object_store::Error::AlreadyExists { .. }) => self.check_landed(),
            Err(error) => self
                .check_landed()
                .map_err(|_| store_error(&error, &self.path)),
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
                let store = self.store.object_store()?;
                let upload = runtime
                    .block_on(store.put_multipart(&location))
                    .map_err(fail)?;
                Multipart {
                    upload,
                    parts: JoinSet::new(),
                    begun: 0,
                }
            }
        };
        let sent = runtime.block_on(async {
            multipart
                .parts
                .spawn(multipart.upload.put_part(data.into()));
            multipart.begun += 1;
            // With the part that is filled meanwhile they bound the memory of an upload.
            let most = self.store.options().parallel.saturating_sub(1).max(1);
            multipart.wait_until(most).await
        });
        self.multipart = Some(multipart);
        sent.map_err(fail)?;
        self.part.reserve_exact(self.part_size());
        Ok(())
    }

    /// Bytes of the part that is being filled.
    fn part_size(&self) -> usize {
        let first = self.store.options().part_bytes;
        let bytes = match &self.multipart {
            // A local file may have any number of parts.
            Some(multipart) if self.store.is_remote() => part_bytes(first, multipart.begun),
            _ => first,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Whether the object is there with these very bytes, whatever the store has answered: the name is
    /// unique, so then an earlier try below us has succeeded.
    fn check_landed(&self) -> Result<()> {
        let expected = (self.length, Blake3::from(self.hasher.finalize()));
        let mut found = self.store.download(&self.path, Some(expected))?;
        while found.next()?.is_some() {}
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
        .or_else(|error| {
            self.check_landed()
                .map_err(|_| store_error(&error, &self.path))
        })
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

/// Bytes of a part after `begun` others.
fn part_bytes(first: u64, begun: u64) -> u64 {
    let doublings = u32::try_from(begun / PARTS_PER_SIZE).unwrap_or(u32::MAX);
    let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
    first.saturating_mul(factor).min(MAX_PART)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{StoreOptions, MIN_PART};

    #[test]
    fn ten_thousand_parts_hold_an_object_of_any_size() {
        for first in [MIN_PART, StoreOptions::default().part_bytes] {
            let total: u64 = (0..10_000).map(|begun| part_bytes(first, begun)).sum();
            assert!(total > 8 << 40, "{total}");
        }
        assert_eq!(part_bytes(MIN_PART, 899), MIN_PART);
        assert_eq!(part_bytes(MIN_PART, 900), 2 * MIN_PART);
        assert_eq!(part_bytes(MIN_PART, u64::MAX), MAX_PART);
    }
}
