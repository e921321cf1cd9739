//! Writing what a detector found, tile by tile, without the elements before.

use std::io::Write;
use std::sync::Arc;

use deltawire_kernels::{Digest, Matrix, Word};
use rayon::prelude::*;

use crate::codec::{classes, Partition};
use crate::error::{Error, Kind, Result};
use crate::rewind::{Findings, Outcome};
use crate::shard::start_within;
use crate::tile::{self, EncodedTile, Work};
use crate::with_word;
use crate::writer::{Partitioned, Writer};

/// A tile after a step, and what is known of it from before.
#[derive(Clone, Copy, Debug)]
pub struct After<'a> {
    /// Index in the tensor table.
    pub tensor: u32,
    /// Tile of the tensor.
    pub tile: u32,
    /// The tile's elements, as that box of the tensor's matrix or a larger one.
    pub new: Matrix<'a>,
    /// Digest of each piece before ([`rewind::pieces`]).
    pub before: &'a [Digest],
}

/// A tile whose changes somebody else has proven and put into classes, such as on a device.
#[derive(Clone, Copy, Debug)]
pub struct Proven<'a, W> {
    /// Tile of the tensor.
    pub tile: u32,
    /// The changes, if there are any.
    pub partition: Option<&'a Partition<W>>,
    /// Digests of the tile before and after, without start values.
    pub digests: [Digest; 2],
}

/// How a tile was encoded of which only changes are known.
#[derive(Clone, Debug)]
pub struct Told {
    /// How its base was found.
    pub outcome: Outcome,
    /// Digest of each piece after.
    pub after: Vec<Digest>,
}

impl<W: Write> Writer<W> {
    /// Begins a tensor, or a box of it, of which a detector has told the changes: all tiles of the box follow, in
    /// order, through [`Writer::add_after`].
    ///
    /// # Errors
    /// `Layout` where the findings are of another tensor, or tiles of the one before are missing.
    pub fn begin(&mut self, tensor: u32, findings: &Findings) -> Result<()> {
        self.check_complete()?;
        let entry = self.check_new(tensor)?;
        if entry != *findings.tensor() {
            let message = "the findings are of another tensor, or with other tiles";
            return Err(Error::new(Kind::Layout, message).of(&entry.name));
        }
        let held = findings.held();
        self.note_shard(&entry, &held)?;
        self.digests[tensor as usize] = Some([start_within(&entry, &held); 2]);
        let tiles = findings.tiles().map(|(tile, _)| tile);
        self.awaited = tiles.map(|tile| (tensor, tile)).collect();
        Ok(())
    }

    /// Finds the base of tiles again ([`rewind`](crate::rewind)) and writes their changes; those without one
    /// whole. Tiles are encoded in parallel, so give some at once.
    ///
    /// # Errors
    /// `Layout` where these are not the next tiles of the tensor that was begun.
    pub fn add_after(&mut self, findings: &Findings, items: &[After<'_>]) -> Result<Vec<Told>> {
        for item in items {
            if self.awaited.pop_front() != Some((item.tensor, item.tile)) {
                let message = format!("tile {} is not the next one", item.tile);
                return Err(Error::new(Kind::Layout, message).of(&findings.tensor().name));
            }
        }
        let (permits, scratch) = (Arc::clone(&self.permits), Arc::clone(&self.scratch));
        let work = Work {
            profile: self.profile,
            permits: &permits,
            scratch: &scratch,
        };
        let width = findings.tensor().width;
        let encoded: Vec<Result<(EncodedTile, Told)>> = self.pool.install(|| {
            items
                .par_iter()
                .map(|item| with_word!(width, T => tile::rewound::<T>(&work, findings, item)))
                .collect()
        });
        let mut told = Vec::with_capacity(items.len());
        for one in encoded {
            let (tile, how) = one?;
            self.write_tile(tile)?;
            told.push(how);
        }
        Ok(told)
    }

    /// Writes tiles that were proven elsewhere, in place of [`Writer::add_after`]; costs O(changes).
    ///
    /// # Errors
    /// `Layout` where these are not the next tiles, or a partition does not fit its tile.
    pub fn add_proven<T: Word>(&mut self, tensor: u32, items: &[Proven<'_, T>]) -> Result<()> {
        let entry = self.tensors().get(tensor as usize).cloned();
        let wrong = |message: String| Error::new(Kind::Layout, message);
        let entry = entry.ok_or_else(|| wrong(format!("tensor {tensor} is not in the table")))?;
        let mut scratch = classes::Scratch::default();
        for item in items {
            if self.awaited.pop_front() != Some((tensor, item.tile)) {
                let message = format!("tile {} is not the next one", item.tile);
                return Err(wrong(message).of(&entry.name));
            }
            let mut encoded = EncodedTile::new(tensor, item.tile);
            if let Some(partition) = item.partition {
                let item = Partitioned {
                    tile: item.tile,
                    partition,
                    result: item.digests[1].lanes[0],
                };
                let check = if self.profile.is_relative() {
                    tile::check_partition(&entry, &item)
                } else {
                    Err(wrong(
                        "the overwrite profile has no base for classes".into(),
                    ))
                };
                check.map_err(|e| e.of(&entry.name))?;
                encoded = tile::partitioned(tensor, &item, &mut scratch);
            }
            [encoded.base, encoded.result] = item.digests;
            self.write_tile(encoded)?;
        }
        Ok(())
    }
}
