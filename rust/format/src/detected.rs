//! Writing what a detector found, tile by tile, without the elements before.

use std::io::Write;
use std::sync::Arc;

use deltawire_kernels::{Digest, Matrix};
use rayon::prelude::*;

use crate::error::{Error, Kind, Result};
use crate::rewind::{Findings, Outcome};
use crate::shard::start_within;
use crate::tile::{self, EncodedTile, Work};
use crate::with_word;
use crate::writer::Writer;

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
            both: true,
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
}
