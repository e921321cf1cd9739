//! Hashes of the blocks of a file, with which parts of it are checked.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::hex::Blake3;
use crate::manifest::{untrusted, ObjectRef};

/// Least bytes of a block: hashes are to be a small part of what they are of.
pub const MIN_BLOCK: u64 = 4 << 10;
/// Most bytes of a block: a reader holds some of them in memory.
pub const MAX_BLOCK: u64 = 64 << 20;
/// Bytes of a hash.
const HASH: u64 = 32;

/// An object that holds the BLAKE3 of each block of a file, 32 bytes each, in order.
///
/// Blocks begin at multiples of `block_bytes`; the last one may be shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// The object.
    #[serde(flatten)]
    pub object: ObjectRef,
    /// Bytes of a block, a power of two from [`MIN_BLOCK`] to [`MAX_BLOCK`].
    pub block_bytes: u64,
}

impl Blocks {
    /// Checks that these can be the hashes of a file.
    pub(crate) fn check(&self, file: &ObjectRef) -> Result<()> {
        let size = self.block_bytes;
        if !size.is_power_of_two() || !(MIN_BLOCK..=MAX_BLOCK).contains(&size) {
            return Err(untrusted(format!(
                "blocks of {size} bytes; they have a power of two, from {MIN_BLOCK} to {MAX_BLOCK}"
            )));
        }
        let blocks = file.bytes.div_ceil(size);
        if blocks == 0 || blocks.checked_mul(HASH) != Some(self.object.bytes) {
            return Err(untrusted(format!(
                "{} bytes of hashes for the {blocks} blocks of {:?}; they take {HASH} bytes each",
                self.object.bytes, file.path
            )));
        }
        Ok(())
    }
}

/// Hashes blocks of what is written piece by piece.
#[derive(Debug)]
pub(crate) struct BlockHasher {
    size: usize,
    hasher: blake3::Hasher,
    /// Bytes of the block that is not full yet.
    filled: usize,
    done: Vec<u8>,
}

impl BlockHasher {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size: size.max(1),
            hasher: blake3::Hasher::new(),
            filled: 0,
            done: Vec::new(),
        }
    }

    pub(crate) fn update(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(self.size - self.filled));
            self.hasher.update(now);
            self.filled += now.len();
            data = later;
            if self.filled == self.size {
                self.end_block();
            }
        }
    }

    /// The hashes of all blocks, the last one as short as it is.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.filled > 0 {
            self.end_block();
        }
        self.done
    }

    fn end_block(&mut self) {
        let hash: Blake3 = self.hasher.finalize().into();
        self.done.extend_from_slice(&hash.0);
        self.hasher.reset();
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_of_any_length_give_the_hashes_of_the_blocks(
            data in prop::collection::vec(any::<u8>(), 0..600),
            size in 1_usize..90,
            cuts in prop::collection::vec(0_usize..600, 0..9),
        ) {
            let mut hasher = BlockHasher::new(size);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
            cuts.sort_unstable();
            let mut begin = 0;
            for end in cuts.into_iter().chain([data.len()]) {
                hasher.update(&data[begin..end]);
                begin = end;
            }
            let expected: Vec<u8> = data.chunks(size).flat_map(|block| Blake3::of(block).0).collect();
            prop_assert_eq!(hasher.finish(), expected);
        }
    }

    #[test]
    fn what_cannot_be_the_hashes_of_a_file_is_refused() {
        let object = |bytes| ObjectRef {
            path: "anchors/0/x".into(),
            bytes,
            blake3: Blake3::of(b""),
        };
        let check = |file: u64, hashes: u64, block_bytes: u64| {
            let object_of_hashes = object(hashes);
            Blocks {
                object: object_of_hashes,
                block_bytes,
            }
            .check(&object(file))
            .is_ok()
        };
        assert!(check(1, 32, MIN_BLOCK));
        assert!(check(MIN_BLOCK, 32, MIN_BLOCK));
        assert!(check(MIN_BLOCK + 1, 64, MIN_BLOCK));
        assert!(check(u64::MAX, (u64::MAX / MAX_BLOCK + 1) * 32, MAX_BLOCK));
        for (file, hashes, block) in [
            (0, 0, MIN_BLOCK),
            (0, 32, MIN_BLOCK),
            (MIN_BLOCK + 1, 32, MIN_BLOCK),
            (MIN_BLOCK, 64, MIN_BLOCK),
            (MIN_BLOCK, 33, MIN_BLOCK),
            (1, 32, MIN_BLOCK / 2),
            (1, 32, MAX_BLOCK * 2),
            (1, 32, MIN_BLOCK + 1),
            (1, 32, 0),
        ] {
            assert!(!check(file, hashes, block), "{file} {hashes} {block}");
        }
    }
}
