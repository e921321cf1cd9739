//! From the elements after a step back to those before it, without a copy of them.
//!
//! A detector tells which elements changed and what they were, mostly for certain, now and then as one of two
//! neighbours. A tile's base is its elements after, with the old ones put back. That it is the base, and so
//! that no change was missed, is proven by the digests of its pieces that are kept from the version before;
//! they also tell which of two neighbours it was. A tile that cannot be proven is sent whole.

use deltawire_kernels::digest::{self, Words};
use deltawire_kernels::{Block, Digest, Matrix, Word};

use crate::error::{Error, Kind, Result};
use crate::scratch::{Reusable, KEPT_BYTES};
use crate::settle::{settle, Doubt};
use crate::shard::start_within;
use crate::table::Tensor;
use crate::tile::{picks, TilePick};

/// Most elements of a piece, unless one row has more.
const PIECE_ELEMENTS: usize = 1 << 13;

/// Elements of a piece of which nothing is known, at most, that are tried with every value.
const FEW: usize = 2;

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
    entry: Tensor,
    held: Block,
    picks: Vec<TilePick>,
    sure: Vec<Sure>,
    old: Vec<u8>,
    other: Vec<u8>,
    blind: bool,
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
    words: Words,
}

impl Reusable for Scratch {
    fn keep(&self) -> bool {
        self.base.capacity() <= KEPT_BYTES
    }
}

impl Scratch {
    /// The tile that was rewound last, as that box of its tensor.
    pub(crate) fn matrix(&self, entry: &Tensor, block: &Block) -> Result<Matrix<'_>> {
        let row_bytes = entry.cols as usize * usize::from(entry.width);
        Matrix::new(&self.base, block.rows, block.bytes)
            .and_then(|m| m.within(entry.rows as usize, row_bytes, block.row, block.byte))
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
        let entry = &self.entry;
        let wrong = |message: String| Error::new(Kind::Layout, message).of(&entry.name);
        let Some(place) = entry.tile_box(tile) else {
            return Err(wrong(format!("there is no tile {tile}")));
        };
        let block = place.block(entry.width);
        let row_bytes = entry.cols as usize * usize::from(entry.width);
        let shape = (after.rows(), after.row_bytes());
        if shape != (entry.rows as usize, row_bytes) || !after.held().contains(&block) {
            return Err(wrong(format!("tile {tile} is not in what is given of it")));
        }
        if before.len() != pieces(block, entry.width).count() {
            let n = before.len();
            return Err(wrong(format!("{n} digests for the pieces of tile {tile}")));
        }
        let first = self.picks.partition_point(|pick| pick.0 < tile);
        let count = self.picks[first..].partition_point(|pick| pick.0 == tile);
        let picked = &self.picks[first..first + count];
        let mut out = Rewound {
            outcome: Outcome::Told,
            after: Vec::with_capacity(before.len()),
            positions: picked.iter().map(|pick| pick.1).collect(),
            old: picked
                .iter()
                .map(|p| W::read(&self.old[p.2 * W::WIDTH..]))
                .collect(),
            new: Vec::with_capacity(count),
        };
        let Scratch { base, words } = scratch;
        fill(after, &block, base);
        for (pick, old) in picked.iter().zip(&mut out.old) {
            let at = pick.1 as usize * W::WIDTH;
            let new = W::read(&base[at..]);
            out.new.push(new);
            if self.sure[pick.2] == Sure::Unknown {
                *old = new;
            }
            put(base, at, *old);
        }
        let mut done = 0;
        for (piece, &goal) in pieces(block, entry.width).zip(before) {
            let offset = (piece.row - block.row) * block.bytes / W::WIDTH;
            let end = (offset + piece.len() / W::WIDTH) as u32;
            let upto = done + out.positions[done..].partition_point(|&p| p < end);
            let here: Vec<u32> = (out.positions[done..upto].iter())
                .map(|&p| p - offset as u32)
                .collect();
            let sum = digest::block(entry.key(), after, &piece);
            let old = &out.old[done..upto];
            let back = digest::change::<W, true>(entry.key(), after, &piece, &here, old, words);
            out.after.push(sum);
            let missing = goal.minus(sum.plus(back));
            if missing != Digest::default() {
                let found = self.find(&block, base, &picked[done..upto], missing);
                match found {
                    Ok(chosen) => {
                        for (i, value) in chosen {
                            out.old[done + i] = value;
                            let at = out.positions[done + i] as usize * W::WIDTH;
                            put(base, at, value);
                        }
                        out.outcome = out.outcome.max(Outcome::Settled);
                    }
                    Err(outcome) => out.outcome = out.outcome.max(outcome),
                }
            }
            done = upto;
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

    /// Which old elements of a piece are others than what `base` holds, so that its digest changes by
    /// `missing`: their indices in `picked`, and values.
    fn find<W: Word>(
        &self,
        block: &Block,
        base: &[u8],
        picked: &[TilePick],
        missing: Digest,
    ) -> std::result::Result<Vec<(usize, W)>, Outcome> {
        let doubts: Vec<(Sure, Doubt<W>)> = (picked.iter().enumerate())
            .filter_map(|(index, &(_, position, at))| {
                let other = match self.sure[at] {
                    Sure::Certain => return None,
                    Sure::Either => W::read(&self.other[at * W::WIDTH..]),
                    // What starts at zero takes on values that say nothing of where they came from.
                    Sure::Unknown => W::default(),
                };
                let others = vec![other];
                Some((
                    self.sure[at],
                    Doubt {
                        index,
                        position,
                        others,
                    },
                ))
            })
            .collect();
        if doubts.is_empty() {
            return Err(if self.blind {
                Outcome::Open
            } else {
                Outcome::Wrong
            });
        }
        let of = |wanted: Sure| {
            let some = doubts.iter().filter(move |(sure, _)| *sure == wanted);
            some.map(|(_, doubt)| doubt.clone()).collect::<Vec<_>>()
        };
        let (known, unknown) = (of(Sure::Either), of(Sure::Unknown));
        let settled = |doubts: &[Doubt<W>], base: &[u8], missing| {
            settle(&self.entry, block, base, doubts, missing)
        };
        let all: Vec<Doubt<W>> = doubts.iter().map(|(_, doubt)| doubt.clone()).collect();
        // Those that nobody knows of were zero, or what they are now.
        if let Some(chosen) = settled(&all, base, missing) {
            return Ok(chosen);
        }
        if unknown.is_empty() {
            return Err(Outcome::Open);
        }
        // Too many to tell one by one: perhaps none of them has changed, or all were zero.
        if let Some(chosen) = settled(&known, base, missing) {
            return Ok(chosen);
        }
        let mut emptied = base.to_vec();
        for doubt in &unknown {
            put(
                &mut emptied,
                doubt.position as usize * W::WIDTH,
                W::default(),
            );
        }
        let change = self.change_to(block, base, &unknown, &emptied);
        if let Some(mut chosen) = settled(&known, &emptied, missing.minus(change)) {
            chosen.extend(unknown.iter().map(|doubt| (doubt.index, W::default())));
            return Ok(chosen);
        }
        // A few near zero: any value at all.
        if W::WIDTH > 2 {
            return Err(Outcome::Open);
        }
        let any: Vec<W> = (0..1u64 << (8 * W::WIDTH)).map(W::from_u64).collect();
        let open = |(sure, doubt): &(Sure, Doubt<W>)| match sure {
            Sure::Unknown => Doubt {
                others: any.clone(),
                ..doubt.clone()
            },
            _ => doubt.clone(),
        };
        if unknown.len() > FEW {
            return Err(Outcome::Open);
        }
        let wide: Vec<Doubt<W>> = doubts.iter().map(open).collect();
        settled(&wide, base, missing).ok_or(Outcome::Open)
    }

    /// What the digest of a tile changes by where `after` has other elements than `before`.
    fn change_to<W: Word>(
        &self,
        block: &Block,
        before: &[u8],
        doubts: &[Doubt<W>],
        after: &[u8],
    ) -> Digest {
        let row_bytes = self.entry.cols as usize * W::WIDTH;
        let positions: Vec<u32> = doubts.iter().map(|doubt| doubt.position).collect();
        let matrix = |bytes| {
            Matrix::new(bytes, block.rows, block.bytes)
                .and_then(|m| m.within(self.entry.rows as usize, row_bytes, block.row, block.byte))
        };
        match (matrix(before), matrix(after)) {
            (Some(a), Some(b)) => {
                digest::change_between::<W>(self.entry.key(), &a, &b, block, &positions)
            }
            _ => Digest::default(),
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

fn put<W: Word>(bytes: &mut [u8], at: usize, value: W) {
    bytes[at..at + W::WIDTH].copy_from_slice(&value.to_u64().to_le_bytes()[..W::WIDTH]);
}

/// A block's rows back to back.
fn fill(matrix: &Matrix<'_>, block: &Block, out: &mut Vec<u8>) {
    out.clear();
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
