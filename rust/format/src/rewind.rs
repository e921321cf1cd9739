//! From the elements after a step back to those before it, without a copy of them.
//!
//! A detector tells which elements changed and what they were, mostly for certain, now and then as one of two
//! neighbours. A tile's base is its elements after, with the old ones put back. That it is the base, and so
//! that no change was missed, is proven by the digests of its pieces that are kept from the version before;
//! they also tell which of two neighbours it was. A tile that cannot be proven is sent whole.

use deltawire_kernels::{digest, Block, Digest, Matrix, Word};

use crate::error::{Error, Kind, Result};
use crate::scratch::{Reusable, KEPT_BYTES};
use crate::shard::start_within;
use crate::table::Tensor;
use crate::tile::{picks, TilePick};

/// Most elements of a piece, unless one row has more.
const PIECE_ELEMENTS: usize = 1 << 13;

/// The rows of a tile in pieces that each have a digest of their own: few elements in doubt each.
pub fn pieces(block: Block, width: u8) -> impl Iterator<Item = Block> {
    let step = (PIECE_ELEMENTS * usize::from(width) / block.bytes.max(1)).max(1);
    (0..block.rows).step_by(step).map(move |first| Block {
        row: block.row + first,
        rows: step.min(block.rows - first),
        ..block
    })
}

/// How sure a detector is of an old element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sure {
    /// It was this one.
    Certain,
    /// It was this one or another one.
    Either,
    /// Not at all: whatever is told, perhaps the element did not change.
    Unknown,
}

impl Sure {
    /// From its number in lists.
    pub fn from_code(code: u8) -> Option<Self> {
        [Self::Certain, Self::Either, Self::Unknown]
            .get(usize::from(code))
            .copied()
    }
}

/// How the base of a tile was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It is as the detector told.
    Told,
    /// The digests chose among what the detector told.
    Settled,
    /// Open: too much was in doubt. The tile goes whole.
    Open,
    /// What the detector told for certain is not so: it missed or made up a change. The tile goes whole.
    Wrong,
}

impl Outcome {
    /// Whether there is no base, and all elements are sent.
    pub fn is_whole(self) -> bool {
        self >= Self::Open
    }
}

/// What a detector found in one tensor, or in the box of it that it holds.
#[derive(Clone, Debug)]
pub struct Findings {
    pub(crate) entry: Tensor,
    held: Block,
    picks: Vec<TilePick>,
    pub(crate) sure: Vec<Sure>,
    old: Vec<u8>,
    pub(crate) other: Vec<u8>,
    pub(crate) blind: bool,
}

/// Elements that a detector names: parallel lists.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// Ascending element numbers, row-major in the box.
    pub positions: &'a [i64],
    /// [`Sure`] as numbers.
    pub sure: &'a [u8],
    /// Elements before, contiguous, little-endian.
    pub old: &'a [u8],
    /// What they were otherwise, likewise; used where `sure` says so.
    pub other: &'a [u8],
    /// Whether there may be changes that are not named: what does not prove right was then open.
    pub blind: bool,
}

/// A piece of a tile, and what was named in it.
pub(crate) struct Place<'a> {
    pub(crate) piece: Block,
    /// Elements of the tile before it.
    pub(crate) offset: u32,
    pub(crate) picked: &'a [TilePick],
}

/// A tile with its base found again.
#[derive(Clone, Debug)]
pub struct Rewound<W> {
    /// How it went.
    pub outcome: Outcome,
    /// Digest of each piece after.
    pub after: Vec<Digest>,
    /// Elements that differ, within the tile; empty if it goes whole.
    pub positions: Vec<u32>,
    /// Their elements before.
    pub old: Vec<W>,
    /// Their elements after.
    pub new: Vec<W>,
}

/// Memory that rewinding a tile reuses.
#[derive(Default)]
pub struct Scratch {
    /// The tile's elements before, row after row.
    pub base: Vec<u8>,
}

impl Reusable for Scratch {
    fn keep(&self) -> bool {
        self.base.capacity() <= KEPT_BYTES
    }
}

impl Scratch {
    /// The tile that was rewound last, as that box of its tensor.
    pub(crate) fn matrix(&self, entry: &Tensor, block: &Block) -> Result<Matrix<'_>> {
        boxed(entry, block, &self.base)
            .ok_or_else(|| Error::new(Kind::Layout, "another tile was rewound"))
    }
}

impl Findings {
    /// For the box `held` of a tensor, which cuts no tile.
    ///
    /// # Errors
    /// `Layout` where the lists do not fit together, or positions do not ascend within the box.
    pub fn new(entry: Tensor, held: Block, named: &Named<'_>) -> Result<Self> {
        let wrong = |message: String| Err(Error::new(Kind::Layout, message).of(&entry.name));
        let width = usize::from(entry.width);
        let n = named.positions.len();
        if named.sure.len() != n || named.old.len() != n * width || named.other.len() != n * width {
            return wrong(format!(
                "{n} positions with {} flags, {} and {} bytes of {} elements",
                named.sure.len(),
                named.old.len(),
                named.other.len(),
                entry.dtype
            ));
        }
        let ascending = named.positions.windows(2).all(|w| w[0] < w[1]);
        let elements = (held.len() / width) as u64;
        let inside = named.positions.first().is_none_or(|&p| p >= 0)
            && (named.positions.last()).is_none_or(|&p| (p as u64) < elements);
        if !ascending || !inside {
            return wrong(format!(
                "positions must ascend strictly within 0 and {elements}"
            ));
        }
        let Some(sure) = named.sure.iter().map(|&c| Sure::from_code(c)).collect() else {
            return wrong("flags are 0, 1 or 2".into());
        };
        Ok(Self {
            picks: picks(&entry, &held, named.positions),
            entry,
            held,
            sure,
            old: named.old.to_vec(),
            other: named.other.to_vec(),
            blind: named.blind,
        })
    }

    /// The tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.entry
    }

    /// The box that is held.
    pub fn held(&self) -> Block {
        self.held
    }

    /// What the digest of the box begins with; those of its pieces are added.
    pub fn start(&self) -> Digest {
        start_within(&self.entry, &self.held)
    }

    /// Tiles in the box, with their places, ascending.
    pub fn tiles(&self) -> impl Iterator<Item = (u32, Block)> + '_ {
        let place = |tile| self.entry.tile_box(tile).map(|b| b.block(self.entry.width));
        (0..self.entry.tiles())
            .filter_map(move |tile| Some((tile, place(tile)?)))
            .filter(|(_, block)| self.held.contains(block))
    }

    /// Finds the base of a tile again, and leaves it in `scratch`.
    ///
    /// `after` holds the tile, `before` has the digest of each of its pieces.
    ///
    /// # Errors
    /// `Layout` where there is no such tile, or either argument is not of it.
    pub fn rewind<W: Word>(
        &self,
        tile: u32,
        after: &Matrix<'_>,
        before: &[Digest],
        scratch: &mut Scratch,
    ) -> Result<Rewound<W>> {
        let block = self.place(tile)?;
        self.check_held(tile, &block, after)?;
        let width = self.entry.width;
        if before.len() != pieces(block, width).count() {
            let n = before.len();
            return Err(self.wrong(format!("{n} digests for the pieces of tile {tile}")));
        }
        let mut rest = self.picked(tile);
        let mut out = Rewound {
            outcome: Outcome::Told,
            after: Vec::with_capacity(before.len()),
            positions: rest.iter().map(|pick| pick.1).collect(),
            old: Vec::with_capacity(rest.len()),
            new: Vec::with_capacity(rest.len()),
        };
        let Scratch { base } = scratch;
        base.clear();
        let mut offset = 0;
        for (piece, &goal) in pieces(block, width).zip(before) {
            let end = offset + (piece.len() / W::WIDTH) as u32;
            let (picked, later) = rest.split_at(rest.partition_point(|pick| pick.1 < end));
            // Piece by piece, so that what follows finds it in the cache.
            let begun = base.len();
            fill(after, &piece, base);
            let place = Place {
                piece,
                offset,
                picked,
            };
            let here = &mut base[begun..];
            let (outcome, sum) = self.piece(&place, after, goal, here, &mut out);
            out.outcome = out.outcome.max(outcome);
            out.after.push(sum);
            (rest, offset) = (later, end);
        }
        if out.outcome.is_whole() {
            out.positions.clear();
            out.old.clear();
            out.new.clear();
        } else {
            out.drop_unchanged();
        }
        Ok(out)
    }

    /// Finds the base of one piece of a tile again: how it went, and where and what its named elements were.
    ///
    /// `after` holds the piece, `before` is its digest.
    ///
    /// # Errors
    /// `Layout` where there is no such piece, or the matrix does not hold it.
    pub fn rewind_piece<W: Word>(
        &self,
        (tile, number): (u32, usize),
        after: &Matrix<'_>,
        before: Digest,
        scratch: &mut Scratch,
    ) -> Result<Rewound<W>> {
        let block = self.place(tile)?;
        let Some(piece) = pieces(block, self.entry.width).nth(number) else {
            return Err(self.wrong(format!("tile {tile} has no piece {number}")));
        };
        self.check_held(tile, &piece, after)?;
        let offset = ((piece.row - block.row) * block.bytes / W::WIDTH) as u32;
        let end = offset + (piece.len() / W::WIDTH) as u32;
        let all = self.picked(tile);
        let picked = &all[all.partition_point(|pick| pick.1 < offset)..];
        let picked = &picked[..picked.partition_point(|pick| pick.1 < end)];
        let mut out = Rewound {
            outcome: Outcome::Told,
            after: Vec::new(),
            positions: picked.iter().map(|pick| pick.1).collect(),
            old: Vec::with_capacity(picked.len()),
            new: Vec::with_capacity(picked.len()),
        };
        let Scratch { base } = scratch;
        base.clear();
        fill(after, &piece, base);
        let place = Place {
            piece,
            offset,
            picked,
        };
        let (outcome, sum) = self.piece(&place, after, before, base, &mut out);
        out.outcome = outcome;
        out.after.push(sum);
        Ok(out)
    }

    fn wrong(&self, message: String) -> Error {
        Error::new(Kind::Layout, message).of(&self.entry.name)
    }

    fn place(&self, tile: u32) -> Result<Block> {
        let place = self.entry.tile_box(tile);
        place
            .map(|place| place.block(self.entry.width))
            .ok_or_else(|| self.wrong(format!("there is no tile {tile}")))
    }

    fn check_held(&self, tile: u32, block: &Block, after: &Matrix<'_>) -> Result<()> {
        let row_bytes = self.entry.cols as usize * usize::from(self.entry.width);
        let shape = (after.rows(), after.row_bytes());
        if shape == (self.entry.rows as usize, row_bytes) && after.held().contains(block) {
            return Ok(());
        }
        Err(self.wrong(format!("tile {tile} is not in what is given of it")))
    }

    /// What was named in a tile.
    fn picked(&self, tile: u32) -> &[TilePick] {
        let first = self.picks.partition_point(|pick| pick.0 < tile);
        let count = self.picks[first..].partition_point(|pick| pick.0 == tile);
        &self.picks[first..first + count]
    }

    /// Puts the old elements of a piece into `base`, which holds those after, and appends both to `out`. How it
    /// went, and the digest after.
    fn piece<W: Word>(
        &self,
        place: &Place<'_>,
        after: &Matrix<'_>,
        goal: Digest,
        base: &mut [u8],
        out: &mut Rewound<W>,
    ) -> (Outcome, Digest) {
        let begun = out.old.len();
        let mut here = Vec::with_capacity(place.picked.len());
        for pick in place.picked {
            let position = pick.1 - place.offset;
            let at = position as usize * W::WIDTH;
            let new = W::read(&base[at..]);
            let old = match self.sure[pick.2] {
                Sure::Unknown => new,
                _ => W::read(&self.old[pick.2 * W::WIDTH..]),
            };
            here.push(position);
            out.new.push(new);
            out.old.push(old);
            put(base, at, old);
        }
        let key = self.entry.key();
        let sum = digest::block(key, after, &place.piece);
        let (old, new) = (&out.old[begun..], &out.new[begun..]);
        let back = digest::change(key, after, &place.piece, &here, new, old);
        let missing = goal.minus(sum.plus(back));
        if missing == Digest::default() {
            return (Outcome::Told, sum);
        }
        match self.find(place, base, missing) {
            Ok(chosen) => {
                for (i, value) in chosen {
                    out.old[begun + i] = value;
                    put(base, here[i] as usize * W::WIDTH, value);
                }
                (Outcome::Settled, sum)
            }
            Err(outcome) => (outcome, sum),
        }
    }
}

impl<W: Word> Rewound<W> {
    /// What a detector named although it is what it was.
    fn drop_unchanged(&mut self) {
        let mut kept = 0;
        for i in 0..self.positions.len() {
            if self.old[i] != self.new[i] {
                self.positions[kept] = self.positions[i];
                self.old[kept] = self.old[i];
                self.new[kept] = self.new[i];
                kept += 1;
            }
        }
        self.positions.truncate(kept);
        self.old.truncate(kept);
        self.new.truncate(kept);
    }
}

pub(crate) fn put<W: Word>(bytes: &mut [u8], at: usize, value: W) {
    bytes[at..at + W::WIDTH].copy_from_slice(&value.to_u64().to_le_bytes()[..W::WIDTH]);
}

/// Rows that lie back to back, as that block of a tensor.
pub(crate) fn boxed<'a>(entry: &Tensor, block: &Block, bytes: &'a [u8]) -> Option<Matrix<'a>> {
    let row_bytes = entry.cols as usize * usize::from(entry.width);
    Matrix::new(bytes, block.rows, block.bytes)?.within(
        entry.rows as usize,
        row_bytes,
        block.row,
        block.byte,
    )
}

/// Appends a block's rows.
fn fill(matrix: &Matrix<'_>, block: &Block, out: &mut Vec<u8>) {
    for row in 0..block.rows {
        out.extend_from_slice(matrix.row(block, row));
    }
}

/// Digest of each piece of a tile: what [`Findings::rewind`] takes after the next step.
///
/// # Errors
/// `Layout` where there is no such tile, or the matrix does not hold it.
pub fn digests(entry: &Tensor, tile: u32, matrix: &Matrix<'_>) -> Result<Vec<Digest>> {
    let block = entry.tile_box(tile).map(|place| place.block(entry.width));
    let row_bytes = entry.cols as usize * usize::from(entry.width);
    let fits = (matrix.rows(), matrix.row_bytes()) == (entry.rows as usize, row_bytes);
    let Some(block) = block.filter(|block| fits && matrix.held().contains(block)) else {
        let message = format!("tile {tile} is not in what is given of it");
        return Err(Error::new(Kind::Layout, message).of(&entry.name));
    };
    Ok(pieces(block, entry.width)
        .map(|piece| digest::block(entry.key(), matrix, &piece))
        .collect())
}
