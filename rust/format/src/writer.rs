//! Writing a delta front to back.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use deltawire_kernels::{Block, Digest, Matrix, Word};
use rayon::prelude::*;

use crate::codec::{classes, Partition};
use crate::encode::Profile;
use crate::error::{Error, Kind, Result};
use crate::header::{check_unique, Header};
use crate::index::{check_order, encode_trailer, sum, ChunkPlace, Index};
use crate::limits::{Limits, MAX_TENSORS};
use crate::permits::Permits;
use crate::scratch::Pool;
use crate::shard::{check_matrix, held_tiles, start_of};
use crate::table::Tensor;
use crate::tile::{self, EncodedTile, TilePick, Work};
use crate::with_word;

/// Tiles that each thread encodes before their records are written in order.
const TILES_PER_THREAD: usize = 16;
/// Dense bytes of the tiles that are encoded before their records are written: records are never much
/// larger, so this bounds memory whatever the number of threads.
const WINDOW_BYTES: u64 = 32 << 20;

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

/// Changes of one tile by class, and lane 0 of the tile's digest after them.
#[derive(Clone, Copy, Debug)]
pub struct Partitioned<'a, W> {
    /// Tile of the tensor.
    pub tile: u32,
    /// The changes.
    pub partition: &'a Partition<W>,
    /// Lane 0 after.
    pub result: u64,
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
    /// State digest of the base, where every tensor's is known. Of shards: the sum over what was added,
    /// which adds up over the shards.
    pub base_state: Option<Digest>,
    /// State digest of the result, likewise.
    pub result_state: Option<Digest>,
}

/// Streams a delta into a sink: header at once, chunks as tensors are added, the rest at the end.
///
/// The sink gets whole records, one a call: the header, each chunk, and index and trailer together.
pub struct Writer<W: Write> {
    sink: W,
    pub(crate) profile: Profile,
    pub(crate) permits: Arc<Permits>,
    limits: Limits,
    pub(crate) pool: Arc<rayon::ThreadPool>,
    header: Header,
    offset: u64,
    index: Index,
    /// Digests of each tensor before and after, and its tiles that have no chunk with a digest.
    pub(crate) digests: Vec<Option<[Digest; 2]>>,
    untold: Vec<u32>,
    seen: Vec<bool>,
    /// Whether some tensor is here in part only: then the sums of digests are those of shards, and not
    /// written.
    partial: bool,
    pub(crate) scratch: Arc<Pool>,
    /// Tiles that were begun and must still come.
    pub(crate) awaited: VecDeque<(u32, u32)>,
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
        if header.tensors.len() > MAX_TENSORS {
            let n = header.tensors.len();
            return Err(Error::limit(format!(
                "{n} tensors, at most {MAX_TENSORS} [F8]"
            )));
        }
        let bytes = header.encode(&limits)?;
        sink.write_all(&bytes)?;
        let n = header.tensors.len();
        let untold = header.tensors.iter().map(Tensor::tiles).collect();
        Ok(Self {
            sink,
            profile,
            permits: Arc::new(Permits::new()),
            limits,
            pool,
            offset: bytes.len() as u64,
            header,
            index: Index::default(),
            digests: vec![None; n],
            untold,
            seen: vec![false; n],
            partial: false,
            scratch: Arc::default(),
            awaited: VecDeque::new(),
        })
    }

    /// The tensor table.
    pub fn tensors(&self) -> &[Tensor] {
        &self.header.tensors
    }

    pub(crate) fn check_new(&mut self, tensor: u32) -> Result<Tensor> {
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

    /// A shard makes the delta one part of several, which names no states.
    pub(crate) fn note_shard(&mut self, entry: &Tensor, held: &Block) -> Result<()> {
        if *held == entry.whole() {
            return Ok(());
        }
        if self.header.base_state.is_some() {
            let message = "a shard does not have the state of the whole; state no base state";
            return Err(Error::new(Kind::Layout, message).of(&entry.name));
        }
        self.partial = true;
        Ok(())
    }

    /// Compares pairs of tensors, or of the same shards of them, and writes their changes. `progress` gets dense bytes done.
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
            if pair.base.held() != pair.new.held() {
                let message = "the two states are different shards of the tensor";
                return Err(Error::new(Kind::Layout, message).of(&entry.name));
            }
            self.note_shard(&entry, &pair.base.held())?;
            entries.push(entry);
        }
        let (permits, scratch) = (Arc::clone(&self.permits), Arc::clone(&self.scratch));
        let work = Work {
            profile: self.profile,
            permits: &permits,
            scratch: &scratch,
        };
        let pool = Arc::clone(&self.pool);
        let tiles = pairs
            .iter()
            .zip(&entries)
            .flat_map(|(pair, entry)| held_tiles(entry, &pair.base).map(move |t| (pair, entry, t)));
        for (pair, entry) in pairs.iter().zip(&entries) {
            self.digests[pair.tensor as usize] = Some([start_of(entry, &pair.base); 2]);
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
                        with_word!(entry.width, T => tile::compare::<T>(&work, pair, entry, tile))
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
        let order = tile::picks(&entry, &entry.whole(), found.positions);
        if let Some(base) = &found.base {
            if let Some(pick) = order.iter().find(|pick| !entry.holds(base, pick.0)) {
                return wrong(format!("tile {} has changes outside the shard", pick.0));
            }
            self.note_shard(&entry, &base.held())?;
            self.digests[found.tensor as usize] = Some([start_of(&entry, base); 2]);
        }
        let (permits, scratch) = (Arc::clone(&self.permits), Arc::clone(&self.scratch));
        let work = Work {
            profile: self.profile,
            permits: &permits,
            scratch: &scratch,
        };
        let mut picked = order.chunk_by(|a, b| a.0 == b.0).peekable();
        let window = TILES_PER_THREAD * self.pool.current_num_threads();
        // With a base every tile is visited for its digest; without, only those that change.
        let mut tiles = found.base.iter().flat_map(|base| held_tiles(&entry, base));
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
                        with_word!(entry.width, T => tile::found::<T>(&work, found, &entry, tile, run))
                    })
                    .collect()
            });
            for tile in encoded {
                self.write_tile(tile)?;
            }
        }
        Ok(())
    }

    /// The changes of one tile by class, where there are any, and the tile's digests before and after: what
    /// [`Writer::add_partitions`] takes.
    ///
    /// # Errors
    /// `Layout` where there is no such tensor, or a matrix does not have its shape.
    pub fn partition<T: Word>(
        &self,
        pair: &Pair<'_>,
        tile: u32,
    ) -> Result<(Option<Partition<T>>, [Digest; 2])> {
        let Some(entry) = self.header.tensors.get(pair.tensor as usize) else {
            let message = format!("tensor {} is not in the table", pair.tensor);
            return Err(Error::new(Kind::Layout, message));
        };
        check_matrix(entry, &pair.base)?;
        check_matrix(entry, &pair.new)?;
        if ![&pair.base, &pair.new].iter().all(|m| entry.holds(m, tile)) {
            let message = format!("tile {tile} is not in the shard");
            return Err(Error::new(Kind::Layout, message).of(&entry.name));
        }
        Ok(tile::partition(pair, entry, tile))
    }

    /// Writes changes that somebody else has found and put into classes; costs O(changes).
    ///
    /// `digests` are the tensor's state digests before and after, start values included.
    ///
    /// # Errors
    /// `Layout` where a partition does not fit its tile; the message names the rule. Nothing is written
    /// then.
    pub fn add_partitions<T: Word>(
        &mut self,
        tensor: u32,
        digests: [Digest; 2],
        partitions: &[Partitioned<'_, T>],
    ) -> Result<()> {
        let entry = self.check_new(tensor)?;
        let wrong = |message: &str| Error::new(Kind::Layout, message);
        let mut last = None;
        for item in partitions {
            let check = if last.is_some_and(|last| item.tile <= last) {
                Err(wrong("tiles must ascend"))
            } else if !self.profile.is_relative() {
                Err(wrong("the overwrite profile has no base for classes"))
            } else {
                tile::check_partition(&entry, item)
            };
            check.map_err(|e| e.of(&entry.name))?;
            last = Some(item.tile);
        }
        self.digests[tensor as usize] = Some(digests);
        let mut scratch = classes::Scratch::default();
        for item in partitions {
            self.write_tile(tile::partitioned(tensor, item, &mut scratch))?;
        }
        Ok(())
    }

    pub(crate) fn write_tile(&mut self, tile: EncodedTile) -> Result<()> {
        let t = tile.tensor as usize;
        self.digests[t] = self.digests[t].map(|[a, b]| [a.plus(tile.base), b.plus(tile.result)]);
        if tile.record.is_empty() {
            return Ok(());
        }
        self.untold[t] -= 1;
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

    /// As [`Writer::finish`], with states and digests that are known otherwise.
    pub(crate) fn finish_as(
        mut self,
        (base, result): (Option<Digest>, Option<Digest>),
        digests: Vec<Option<u32>>,
    ) -> Result<(W, Summary)> {
        self.index.result_state = result;
        self.index.base_state = base.filter(|_| self.header.base_state.is_none());
        self.index.digests = (digests.into_iter().enumerate())
            .map(|(t, digest)| digest.filter(|_| self.is_told(t)))
            .collect();
        self.write_end(base, result)
    }

    /// Writes index and trailer, and hands the sink back.
    ///
    /// A tensor that was never added is not part of the delta and has no digest.
    pub fn finish(mut self) -> Result<(W, Summary)> {
        debug_assert!(self.is_ordered());
        self.check_complete()?;
        let partial = self.partial;
        let side = |i: usize| {
            let digests = self.digests.iter().map(move |d| d.map(|d| d[i]));
            sum(digests.filter(|d| d.is_some() || !partial))
        };
        let (base, result) = (side(0), side(1));
        if let (Some(known), Some(from)) = (self.header.base_state, base) {
            if from != known {
                return Err(Error::new(
                    Kind::WrongBase,
                    "the base's digest is not the stated base state; pass the tensors of the \
                     version that the delta starts from",
                ));
            }
        }
        self.index.result_state = result.filter(|_| !partial);
        // Stated once.
        self.index.base_state = base.filter(|_| !partial && self.header.base_state.is_none());
        self.index.digests = (self.digests.iter().enumerate())
            .map(|(t, d)| {
                d.filter(|_| !partial && self.is_told(t))
                    .map(|d| d[1].lanes[0] as u32)
            })
            .collect();
        self.write_end(base, result)
    }

    /// Whether a tensor's digest is written: where every tile has a chunk, their digests tell it [F20].
    fn is_told(&self, t: usize) -> bool {
        self.untold[t] > 0 || self.header.tensors[t].tiles() == 0
    }

    fn write_end(mut self, base: Option<Digest>, result: Option<Digest>) -> Result<(W, Summary)> {
        let mut end = self.index.encode(&self.limits)?;
        end.extend_from_slice(&encode_trailer(end.len() as u32));
        self.sink.write_all(&end)?;
        self.sink.flush()?;
        let summary = Summary {
            bytes: self.offset + end.len() as u64,
            changed: self.index.changed,
            chunks: self.index.chunks.len() as u64,
            base_state: base,
            result_state: result,
        };
        Ok((self.sink, summary))
    }

    /// Gives up: the sink as it is, with an unfinished delta in it.
    pub fn into_sink(self) -> W {
        self.sink
    }

    pub(crate) fn check_complete(&self) -> Result<()> {
        let Some(&(tensor, tile)) = self.awaited.front() else {
            return Ok(());
        };
        let message = format!("tile {tile} and those after it are missing");
        let name = &self.header.tensors[tensor as usize].name;
        Err(Error::new(Kind::Layout, message).of(name))
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

/// Dense bytes of a tile.
fn tile_bytes(entry: &Tensor, tile: u32) -> u64 {
    entry
        .tile_box(tile)
        .map_or(0, |b| u64::from(b.elements()) * u64::from(entry.width))
}
