//! Downloaded objects in a local directory, whole or begun, shared by processes.
//!
//! A file is named by the BLAKE3 of its object and holds it in blocks, each followed by a BLAKE3 of its
//! own: what a crash, or anything else, did to a file shows before its bytes are used, and reading
//! goes on from the store at the first block that is not there. The object as a whole is still
//! checked by whoever reads it. A file has its full (sparse) length from the start, so that others see
//! the space that it will take.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::hex::Blake3;
use crate::options::CacheOptions;

/// Bytes of a block.
const BLOCK: usize = 1 << 20;
/// Bytes of the BLAKE3 after each.
const SUM: u64 = 32;
/// Held while room is made.
const LOCK: &str = ".lock";

/// One object's file, locked: shared while a whole one is read, else exclusively.
#[derive(Debug)]
pub(crate) struct Cached {
    file: Option<File>,
    path: PathBuf,
    length: u64,
    /// Bytes read or written, a whole number of blocks, or all.
    at: u64,
    writable: bool,
    reading: bool,
    block: Vec<u8>,
}

/// Makes the directory.
///
/// # Errors
/// [`ErrorKind::Store`] if it cannot be made.
pub(crate) fn prepare(options: &CacheOptions) -> Result<()> {
    std::fs::create_dir_all(&options.directory).map_err(|error| {
        let message = format!(
            "cannot make the cache directory {}: {error}; choose another",
            options.directory.display()
        );
        Error::new(ErrorKind::Store, message)
    })
}

impl Cached {
    /// The file for an object, or `None` where the cache is of no use: the object is too large for it,
    /// another process is fetching it, or the directory fails.
    pub(crate) fn open(options: &CacheOptions, digest: Blake3, length: u64) -> Option<Self> {
        let size = stored(length)?;
        if length == 0 || size > options.most_bytes {
            return None;
        }
        let path = options.directory.join(digest.to_string());
        let mut cached = Self {
            file: None,
            path,
            length,
            at: 0,
            writable: false,
            reading: true,
            block: Vec::new(),
        };
        cached.file = cached.open_whole(size);
        if cached.file.is_none() {
            cached.file = Some(cached.open_partial(size, options)?);
            cached.writable = true;
        }
        Some(cached)
    }

    fn open_whole(&self, size: u64) -> Option<File> {
        let file = File::open(&self.path).ok()?;
        file.try_lock_shared().ok()?;
        let last = (self.length - 1) / BLOCK as u64 * BLOCK as u64;
        let whole = file.metadata().ok()?.len() == size && self.read(&file, last).is_some();
        whole.then_some(file)
    }

    fn open_partial(&self, size: u64, options: &CacheOptions) -> Option<File> {
        let mut open = OpenOptions::new();
        let open = open.read(true).write(true).create(true).truncate(false);
        let file = open.open(&self.path).ok()?;
        file.try_lock().ok()?;
        if file.metadata().ok()?.len() == size {
            return Some(file);
        }
        // New, or not ours.
        let guard = File::create(options.directory.join(LOCK)).ok()?;
        lock(&guard)?;
        if !make_room(options, size, &self.path) {
            drop(std::fs::remove_file(&self.path));
            return None;
        }
        file.set_len(0).and_then(|()| file.set_len(size)).ok()?;
        Some(file)
    }

    /// The block at `at`, if its BLAKE3 is right.
    fn read(&self, file: &File, at: u64) -> Option<Vec<u8>> {
        let mut block = vec![0; block_length(self.length, at)];
        let mut sum = [0; SUM as usize];
        let place = place(at);
        file.read_exact_at(&mut block, place).ok()?;
        file.read_exact_at(&mut sum, place + block.len() as u64)
            .ok()?;
        (blake3::hash(&block).as_bytes() == &sum).then_some(block)
    }

    /// The next bytes, or `None` where the store must be asked: from where this has come.
    pub(crate) fn next(&mut self) -> Option<Bytes> {
        if !self.reading || self.at >= self.length {
            return None;
        }
        let block = self.file.as_ref().and_then(|file| self.read(file, self.at));
        match block {
            Some(block) => {
                self.at += block.len() as u64;
                Some(Bytes::from(block))
            }
            None => {
                self.reading = false;
                if !self.writable {
                    // Altered in the middle, while others may be reading it.
                    self.discard();
                }
                None
            }
        }
    }

    /// Keeps bytes that follow those read or kept so far. A failure ends the caching, nothing else.
    pub(crate) fn append(&mut self, mut data: &[u8]) {
        while !data.is_empty() && self.file.is_some() && self.at < self.length {
            let wanted = block_length(self.length, self.at);
            let (now, later) = data.split_at(data.len().min(wanted - self.block.len()));
            self.block.extend_from_slice(now);
            data = later;
            if self.block.len() == wanted {
                self.keep();
            }
        }
    }

    fn keep(&mut self) {
        let sum = blake3::hash(&self.block);
        let place = place(self.at);
        let written = self.file.as_ref().map(|file| {
            file.write_all_at(&self.block, place)?;
            file.write_all_at(sum.as_bytes(), place + self.block.len() as u64)
        });
        if matches!(written, Some(Err(_))) {
            self.discard();
        }
        self.at += self.block.len() as u64;
        self.block.clear();
    }

    /// Removes the file: its object is not the one that names it.
    pub(crate) fn discard(&mut self) {
        if self.file.take().is_some() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Locks for the time of a listing. Not for ever: the holder may have been stopped.
fn lock(guard: &File) -> Option<()> {
    for _ in 0..100 {
        match guard.try_lock() {
            Ok(()) => return Some(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

fn block_length(length: u64, at: u64) -> usize {
    // Lossless: at most a block.
    (length - at).min(BLOCK as u64) as usize
}

/// Where the block with byte `at` begins in the file.
fn place(at: u64) -> u64 {
    at + at / BLOCK as u64 * SUM
}

/// Bytes of the file of an object.
fn stored(length: u64) -> Option<u64> {
    length.checked_add(length.div_ceil(BLOCK as u64).checked_mul(SUM)?)
}

/// Removes the oldest files that nobody uses until `size` more bytes fit. The caller holds the lock.
fn make_room(options: &CacheOptions, size: u64, own: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(&options.directory) else {
        return false;
    };
    let mut files = Vec::new();
    let mut total = size;
    for entry in entries.flatten() {
        let named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| Blake3::parse(name).is_ok());
        let path = entry.path();
        if let (true, Ok(metadata)) = (named && path != own, entry.metadata()) {
            total = total.saturating_add(metadata.len());
            files.push((metadata.modified().ok(), path, metadata.len()));
        }
    }
    files.sort();
    for (_, path, bytes) in files {
        if total <= options.most_bytes {
            break;
        }
        let unused = File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if unused && std::fs::remove_file(&path).is_ok() {
            total -= bytes;
        }
    }
    total <= options.most_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(CacheOptions);

    impl Scratch {
        fn new(name: &str, most_bytes: u64) -> Self {
            let name = format!("deltawire-cache-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let options = CacheOptions {
                directory,
                most_bytes,
            };
            prepare(&options).unwrap();
            Self(options)
        }

        fn open(&self, data: &[u8]) -> Option<Cached> {
            Cached::open(&self.0, Blake3::of(data), data.len() as u64)
        }

        fn path(&self, data: &[u8]) -> PathBuf {
            self.0.directory.join(Blake3::of(data).to_string())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0.directory).unwrap();
        }
    }

    fn data(length: usize, seed: u8) -> Vec<u8> {
        (0..length)
            .map(|i| (i / 251) as u8 ^ i as u8 ^ seed)
            .collect()
    }

    /// What is there from the start on, at the file's word.
    fn drain(cached: &mut Cached) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(block) = cached.next() {
            all.extend_from_slice(&block);
        }
        all
    }

    #[test]
    fn kept_whole_or_begun_and_read_again() {
        let scratch = Scratch::new("again", 1 << 30);
        for length in [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
            let data = data(length, 0);
            for kept in [0, length / 2, length] {
                let mut cached = scratch.open(&data).unwrap();
                let there = drain(&mut cached);
                assert_eq!(there, data[..there.len()]);
                // As pieces of any size come.
                for piece in data[there.len()..kept.max(there.len())].chunks(700_001) {
                    cached.append(piece);
                }
                drop(cached);
                let there = drain(&mut scratch.open(&data).unwrap());
                let whole_blocks = if kept == length {
                    length
                } else {
                    kept / BLOCK * BLOCK
                };
                assert_eq!(there.len(), whole_blocks, "{length} {kept}");
            }
        }
    }

    #[test]
    fn what_was_altered_is_not_used() {
        let scratch = Scratch::new("altered", 1 << 30);
        let data = data(3 * BLOCK, 1);
        let mut cached = scratch.open(&data).unwrap();
        drain(&mut cached);
        cached.append(&data);
        drop(cached);
        let path = scratch.path(&data);
        let sound = std::fs::read(&path).unwrap();
        for (at, usable) in [(5, 0), (BLOCK + 40, BLOCK), (sound.len() - 1, 2 * BLOCK)] {
            let mut altered = sound.clone();
            altered[at] ^= 1;
            std::fs::write(&path, &altered).unwrap();
            let mut cached = scratch.open(&data).unwrap();
            assert_eq!(drain(&mut cached), data[..usable]);
            cached.append(&data[usable..]);
            drop(cached);
            // Repaired, or removed because others may have been reading it.
            let there = drain(&mut scratch.open(&data).unwrap());
            assert!(there.is_empty() || there == data);
        }
        // Another length is another file.
        std::fs::write(&path, &sound[..100]).unwrap();
        assert!(drain(&mut scratch.open(&data).unwrap()).is_empty());
    }

    #[test]
    fn one_writes_and_many_read() {
        let scratch = Scratch::new("many", 1 << 30);
        let data = data(BLOCK + 9, 2);
        let mut writer = scratch.open(&data).unwrap();
        assert!(scratch.open(&data).is_none());
        drain(&mut writer);
        writer.append(&data);
        drop(writer);
        let mut readers = [scratch.open(&data).unwrap(), scratch.open(&data).unwrap()];
        for reader in &mut readers {
            assert_eq!(drain(reader), data);
        }
    }

    #[test]
    fn the_oldest_unused_go_first() {
        let room = stored(BLOCK as u64).unwrap() * 2 + 10;
        let scratch = Scratch::new("room", room);
        let objects = [10, 11, 12, 13].map(|seed| data(BLOCK, seed));
        let keep = |object: &[u8]| {
            let mut cached = scratch.open(object)?;
            drain(&mut cached);
            cached.append(object);
            std::thread::sleep(std::time::Duration::from_millis(20));
            Some(cached)
        };
        drop(keep(&objects[0]).unwrap());
        drop(keep(&objects[1]).unwrap());
        drop(keep(&objects[2]).unwrap());
        let there = |object| scratch.path(object).exists();
        assert_eq!(
            objects.each_ref().map(|o| there(o)),
            [false, true, true, false]
        );
        // The older of the two is in use.
        let used = scratch.open(&objects[1]).unwrap();
        let newest = keep(&objects[3]).unwrap();
        assert_eq!(
            objects.each_ref().map(|o| there(o)),
            [false, true, false, true]
        );
        assert!(keep(&objects[0]).is_none());
        drop((used, newest));
        // Larger than everything.
        assert!(scratch.open(&data(3 * BLOCK, 3)).is_none());
    }
}
