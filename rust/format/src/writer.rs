//! Writing a delta front to back.

use std::io::Write;
use std::sync::Arc;

use deltawire_kernels::{digest, scan, Block, Digest, Matrix, Word};
use rayon::prelude::*;

use crate::classify::classify;
use crate::encode::{self, Profile, TileChanges};
use crate::error::{Error, Kind, Result};
use crate::header::{check_unique, Header};
use crate::index::{check_order, encode_trailer, sum, ChunkPlace, Index};
use crate::limits::Limits;
use crate::permits::Permits;
use crate::table::Tensor;
use crate::with_word;

/// Tiles that each thread encodes before their records are written in order.
const TILES_PER_THREAD: usize = 16;
/// Dense bytes of the tiles that are encoded before their records are written: records are never much
/// larger, so this bounds memory whatever the number of threads.
const WINDOW_BYTES: u64 = 32 << 20;

/// Bytes of one side that are compared before they are digested.
const CACHED_BYTES: usize = 128 << 10;

/// Both states of one tensor.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// Index in the tensor table.
    pub tensor: u32,
    /// Elements before.
    pub base: Matrix<'a>,
    /// Elements after.
    pub new: Matrix<'a>,
}

/// Changes of one tensor that somebody else has found.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Index in the tensor table.
    pub tensor: u32,
    /// Ascending element numbers in the tensor.
    pub positions: &'a [i64],
    /// New elements, contiguous, little-endian.
    pub values: &'a [u8],
    /// Elements before, where known; without them chunks are absolute.
    pub base: Option<Matrix<'a>>,
}

/// What a finished writer reports.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Bytes of the delta.
    pub bytes: u64,
    /// Changed elements.
    pub changed: u64,
    /// Chunks.
    pub chunks: u64,
    /// State digest of the base, where every tensor's is known.
    pub base_state: Option<Digest>,
    /// State digest of the result, where every tensor's is known.
    pub result_state: Option<Digest>,
}

/// Streams a delta into a sink: header at once, chunks as tensors are added, the rest at the end.
pub struct Writer<W: Write> {
    sink: W,
    profile: Profile,
    permits: Arc<Permits>,
    limits: Limits,
    pool: Arc<rayon::ThreadPool>,
    header: Header,
    offset: u64,
    index: Index,
    base_digests: Vec<Option<Digest>>,
    seen: Vec<bool>,
}

/// A tile as encoded: no record where nothing changed.
struct EncodedTile {
    tensor: u32,
    tile: u32,
    record: Vec<u8>,
    changed: u64,
    base: Digest,
    result: Digest,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn new(
        mut sink: W,
        header: Header,
        profile: Profile,
        limits: Limits,
        pool: Arc<rayon::ThreadPool>,
    ) -> Result<Self> {
        check_unique(&header.tensors)?;
        let bytes = header.encode(&limits)?;
        sink.write_all(&bytes)?;
        let n = header.tensors.len();
        let index = Index {
            digests: vec![None; n],
            ..Index::default()
        };
        Ok(Self {
            sink,
            profile,
            permits: Arc::new(Permits::new()),
            limits,
            pool,
            offset: bytes.len() as u64,
            header,
            index,
            base_digests: vec![None; n],
            seen: vec![false; n],
        })
    }

    /// The tensor table.
    pub fn tensors(&self) -> &[Tensor] {
        &self.header.tensors
    }

    fn check_new(&mut self, tensor: u32) -> Result<Tensor> {
        let Some(entry) = self.header.tensors.get(tensor as usize) else {
            let message = format!("tensor {tensor} is not in the table");
            return Err(Error::new(Kind::Layout, message));
        };
        if std::mem::replace(&mut self.seen[tensor as usize], true) {
            let message = "was added before; a tensor is added once";
            return Err(Error::new(Kind::Layout, message).of(&entry.name));
        }
        Ok(entry.clone())
    }

    /// Compares pairs of tensors and writes their changes. `progress` gets dense bytes done.
    ///
    /// Tiles are encoded in parallel, several tensors at a time, and written in order.
    pub fn add(
        &mut self,
        pairs: &[Pair<'_>],
        mut progress: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let mut entries = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let entry = self.check_new(pair.tensor)?;
            check_matrix(&entry, &pair.base)?;
            check_matrix(&entry, &pair.new)?;
            entries.push(entry);
        }
        let (profile, permits) = (self.profile, Arc::clone(&self.permits));
        let pool = Arc::clone(&self.pool);
        let tiles = pairs
            .iter()
            .zip(&entries)
            .flat_map(|(pair, entry)| (0..entry.tiles()).map(move |tile| (pair, entry, tile)));
        for (pair, entry) in pairs.iter().zip(&entries) {
            self.index.digests[pair.tensor as usize] = Some(entry.start());
            self.base_digests[pair.tensor as usize] = Some(entry.start());
        }
        let window = TILES_PER_THREAD * pool.current_num_threads();
        let mut tiles = tiles.peekable();
        while tiles.peek().is_some() {
            let mut batch = Vec::with_capacity(window);
            let mut dense = 0;
            while batch.len() < window && dense < WINDOW_BYTES {
                let Some((pair, entry, tile)) = tiles.next() else {
                    break;
                };
                dense += tile_bytes(entry, tile);
                batch.push((pair, entry, tile));
            }
            let encoded: Vec<EncodedTile> = pool.install(|| {
                batch
                    .into_par_iter()
                    .map(|(pair, entry, tile)| {
                        with_word!(entry.width, T => compare_tile::<T>(profile, &permits, pair, entry, tile))
                    })
                    .collect()
            });
            for tile in encoded {
                self.write_tile(tile)?;
            }
            progress(dense)?;
        }
        Ok(())
    }

    /// Writes changes that are known already.
    ///
    /// With a base, elements that equal it are dropped and the chunks are relative to it; without,
    /// the chunks are absolute and the tensor's digest stays unknown.
    pub fn add_found(&mut self, found: &Found<'_>) -> Result<()> {
        let entry = self.check_new(found.tensor)?;
        if let Some(base) = &found.base {
            check_matrix(&entry, base)?;
        }
        let width = usize::from(entry.width);
        let wrong = |message: String| Err(Error::new(Kind::Layout, message).of(&entry.name));
        if found.values.len() != found.positions.len() * width {
            return wrong(format!(
                "{} positions with {} bytes of {} values",
                found.positions.len(),
                found.values.len(),
                entry.dtype
            ));
        }
        let ascending = found.positions.windows(2).all(|w| w[0] < w[1]);
        let inside = found.positions.first().is_none_or(|&p| p >= 0)
            && found
                .positions
                .last()
                .is_none_or(|&p| (p as u64) < entry.elements());
        if !ascending || !inside {
            return wrong(format!(
                "positions must ascend strictly within 0 and {}",
                entry.elements()
            ));
        }
        let order = tile_order(&entry, found.positions);
        if found.base.is_some() {
            self.index.digests[found.tensor as usize] = Some(entry.start());
            self.base_digests[found.tensor as usize] = Some(entry.start());
        }
        let (profile, permits) = (self.profile, Arc::clone(&self.permits));
        let mut picked = order.chunk_by(|a, b| a.0 == b.0).peekable();
        let window = TILES_PER_THREAD * self.pool.current_num_threads();
        // With a base every tile is visited for its digest; without, only those that change.
        let mut tiles = 0..if found.base.is_some() {
            entry.tiles()
        } else {
            0
        };
        loop {
            let batch: Vec<(u32, &[TilePick])> = match found.base {
                Some(_) => tiles
                    .by_ref()
                    .take(window)
                    .map(|tile| (tile, picked.next_if(|run| run[0].0 == tile).unwrap_or(&[])))
                    .collect(),
                None => picked
                    .by_ref()
                    .take(window)
                    .map(|run| (run[0].0, run))
                    .collect(),
            };
            if batch.is_empty() {
                break;
            }
            let encoded: Vec<EncodedTile> = self.pool.install(|| {
                batch
                    .into_par_iter()
                    .map(|(tile, run)| {
                        with_word!(entry.width, T => found_tile::<T>(profile, &permits, found, &entry, tile, run))
                    })
                    .collect()
            });
            for tile in encoded {
                self.write_tile(tile)?;
            }
        }
        Ok(())
    }

    fn write_tile(&mut self, tile: EncodedTile) -> Result<()> {
        let t = tile.tensor as usize;
        self.index.digests[t] = self.index.digests[t].map(|d| d.plus(tile.result));
        self.base_digests[t] = self.base_digests[t].map(|d| d.plus(tile.base));
        if tile.record.is_empty() {
            return Ok(());
        }
        let length = tile.record.len() as u32;
        self.sink.write_all(&tile.record)?;
        self.index.chunks.push(ChunkPlace {
            tensor: tile.tensor,
            tile: tile.tile,
            length,
            offset: self.offset,
        });
        self.offset += u64::from(length);
        self.index.changed += tile.changed;
        Ok(())
    }

    /// Writes index and trailer, and hands the sink back.
    ///
    /// A tensor that was never added is not part of the delta and has no digest.
    pub fn finish(mut self) -> Result<(W, Summary)> {
        debug_assert!(self.is_ordered());
        self.index.base_state = sum(&self.base_digests);
        self.index.result_state = sum(&self.index.digests);
        if self.index.base_state.is_some() {
            self.index.check_base(self.header.base_state).map_err(|_| {
                Error::new(
                    Kind::WrongBase,
                    "the base's digest is not the stated base state; pass the tensors of the \
                     version that the delta starts from",
                )
            })?;
        }
        let index = self.index.encode(&self.limits)?;
        let trailer = encode_trailer(self.offset, index.len() as u32);
        self.sink.write_all(&index)?;
        self.sink.write_all(&trailer)?;
        self.sink.flush()?;
        let summary = Summary {
            bytes: self.offset + (index.len() + trailer.len()) as u64,
            changed: self.index.changed,
            chunks: self.index.chunks.len() as u64,
            base_state: self.index.base_state,
            result_state: self.index.result_state,
        };
        Ok((self.sink, summary))
    }

    /// Gives up: the sink as it is, with an unfinished delta in it.
    pub fn into_sink(self) -> W {
        self.sink
    }

    fn is_ordered(&self) -> bool {
        let mut seen = vec![false; self.header.tensors.len()];
        let mut last = None;
        self.index.chunks.iter().all(|c| {
            let place = (c.tensor, c.tile);
            check_order(last.replace(place), place, &mut seen).is_ok()
        })
    }
}

/// The matrix must have the table's shape.
pub(crate) fn check_matrix(entry: &Tensor, matrix: &Matrix<'_>) -> Result<()> {
    let row_bytes = entry.cols * u64::from(entry.width);
    if (matrix.rows() as u64, matrix.row_bytes() as u64) == (entry.rows, row_bytes) {
        return Ok(());
    }
    let message = format!(
        "a matrix of {} rows of {} bytes does not hold {} elements of shape {:?}",
        matrix.rows(),
        matrix.row_bytes(),
        entry.dtype,
        entry.shape
    );
    Err(Error::new(Kind::Layout, message).of(&entry.name))
}

fn tile_bytes(entry: &Tensor, tile: u32) -> u64 {
    entry
        .tile_box(tile)
        .map_or(0, |b| u64::from(b.elements()) * u64::from(entry.width))
}

fn compare_tile<T: Word>(
    profile: Profile,
    permits: &Permits,
    pair: &Pair<'_>,
    entry: &Tensor,
    tile: u32,
) -> EncodedTile {
    let mut out = EncodedTile {
        tensor: pair.tensor,
        tile,
        record: Vec::new(),
        changed: 0,
        base: Digest::default(),
        result: Digest::default(),
    };
    let Some(place) = entry.tile_box(tile) else {
        return out;
    };
    let block = place.block(entry.width);
    let (mut positions, mut part_positions) = (Vec::new(), Vec::new());
    let (mut old, mut new): (Vec<T>, Vec<T>) = (Vec::new(), Vec::new());
    // A few rows at a time, so that all that follows the comparison finds its memory in the cache.
    let step = (CACHED_BYTES / block.bytes.max(1)).max(1);
    for first in (0..block.rows).step_by(step) {
        let part = Block {
            row: block.row + first,
            rows: step.min(block.rows - first),
            ..block
        };
        part_positions.clear();
        scan::differing::<T>(&pair.base, &pair.new, &part, &mut part_positions);
        scan::gather(&pair.base, &part, &part_positions, &mut old);
        scan::gather(&pair.new, &part, &part_positions, &mut new);
        let part_new = &new[positions.len()..];
        let base = digest::block(entry.key(), &pair.base, &part);
        let change = digest::change(entry.key(), &pair.base, &part, &part_positions, part_new);
        out.base = out.base.plus(base);
        out.result = out.result.plus(base).plus(change);
        let offset = (first * block.bytes / T::WIDTH) as u32;
        positions.extend(part_positions.iter().map(|p| p + offset));
    }
    if !positions.is_empty() {
        let _permit = permits.enter(positions.len());
        finish_tile(profile, &pair.base, entry, &positions, &old, &new, &mut out);
    }
    out
}

/// Encodes changes of a tile whose base is at hand; both digests are known.
fn finish_tile<T: Word>(
    profile: Profile,
    base: &Matrix<'_>,
    entry: &Tensor,
    positions: &[u32],
    old: &[T],
    new: &[T],
    out: &mut EncodedTile,
) {
    let Some(place) = entry.tile_box(out.tile) else {
        return;
    };
    let block = place.block(entry.width);
    out.changed = positions.len() as u64;
    let classified = match profile {
        Profile::Compact => classify(entry, base, &block, positions, old),
        _ => None,
    };
    out.record = encode::tile(
        profile,
        &TileChanges {
            classified: classified.as_ref(),
            tensor: out.tensor,
            tile: out.tile,
            elements: place.elements(),
            order: entry.order(),
            positions,
            old: Some(old),
            new,
            base: Some(out.base.lanes[0]),
            result: Some(out.result.lanes[0]),
        },
    );
}

/// A change by tile, element within it, and index among the changes given.
type TilePick = (u32, u32, usize);

/// Changes in tile order. Flat order is tile order only where tiles span all columns.
fn tile_order(entry: &Tensor, positions: &[i64]) -> Vec<TilePick> {
    let across = entry.cols.div_ceil(entry.tile[1].max(1)).max(1);
    let mut picks: Vec<TilePick> = positions
        .iter()
        .enumerate()
        .map(|(i, &position)| {
            let (row, col) = (position as u64 / entry.cols, position as u64 % entry.cols);
            let (down, right) = (row / entry.tile[0], col / entry.tile[1]);
            let tile_cols = entry.tile[1].min(entry.cols - right * entry.tile[1]);
            let within = (row % entry.tile[0]) * tile_cols + col % entry.tile[1];
            ((down * across + right) as u32, within as u32, i)
        })
        .collect();
    if across > 1 {
        picks.sort_unstable();
    }
    picks
}

fn found_tile<T: Word>(
    profile: Profile,
    permits: &Permits,
    found: &Found<'_>,
    entry: &Tensor,
    tile: u32,
    run: &[TilePick],
) -> EncodedTile {
    let mut out = EncodedTile {
        tensor: found.tensor,
        tile,
        record: Vec::new(),
        changed: 0,
        base: Digest::default(),
        result: Digest::default(),
    };
    let Some(place) = entry.tile_box(tile) else {
        return out;
    };
    let _permit = permits.enter(run.len());
    let value = |i: usize| T::read(&found.values[i * T::WIDTH..]);
    let mut positions: Vec<u32> = run.iter().map(|pick| pick.1).collect();
    let mut new: Vec<T> = run.iter().map(|pick| value(pick.2)).collect();
    match &found.base {
        Some(base) => {
            let block = place.block(entry.width);
            out.base = digest::block(entry.key(), base, &block);
            out.result = out.base;
            let mut old: Vec<T> = Vec::new();
            scan::gather(base, &block, &positions, &mut old);
            let keep: Vec<bool> = old.iter().zip(&new).map(|(a, b)| a != b).collect();
            let mut kept = keep.iter();
            positions.retain(|_| *kept.next().unwrap_or(&true));
            for list in [&mut old, &mut new] {
                let mut kept = keep.iter();
                list.retain(|_| *kept.next().unwrap_or(&true));
            }
            if !positions.is_empty() {
                let change = digest::change(entry.key(), base, &block, &positions, &new);
                out.result = out.base.plus(change);
                finish_tile(profile, base, entry, &positions, &old, &new, &mut out);
            }
        }
        None => {
            out.changed = positions.len() as u64;
            out.record = encode::tile(
                profile,
                &TileChanges {
                    classified: None,
                    tensor: found.tensor,
                    tile,
                    elements: place.elements(),
                    order: entry.order(),
                    positions: &positions,
                    old: None,
                    new: &new,
                    base: None,
                    result: None,
                },
            );
        }
    }
    out
}
