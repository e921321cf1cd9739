//! One tile of one tensor: comparing it, digesting it, and encoding its changes.

use deltawire_kernels::digest::Words;
use deltawire_kernels::{digest, scan, Block, Digest, Matrix, Word};

use crate::classify::{self, classify};
use crate::codec::{classes, Partition};
use crate::encode::{self, Profile, TileChanges};
use crate::permits::Permits;
use crate::scratch::{Pool, Reusable};
use crate::table::Tensor;
use crate::writer::{Found, Pair};

/// Bytes of one side that are compared before they are digested.
const CACHED_BYTES: usize = 128 << 10;
/// Memory of one tile that is worth keeping.
const KEPT_BYTES: usize = 2 << 20;

/// What all tiles of a writer share.
pub(crate) struct Work<'a> {
    pub(crate) profile: Profile,
    pub(crate) permits: &'a Permits,
    pub(crate) scratch: &'a Pool,
}

/// A tile as encoded: no record where nothing changed.
pub(crate) struct EncodedTile {
    pub(crate) tensor: u32,
    pub(crate) tile: u32,
    pub(crate) record: Vec<u8>,
    pub(crate) changed: u64,
    pub(crate) base: Digest,
    pub(crate) result: Digest,
}

impl EncodedTile {
    fn new(tensor: u32, tile: u32) -> Self {
        Self {
            tensor,
            tile,
            record: Vec::new(),
            changed: 0,
            base: Digest::default(),
            result: Digest::default(),
        }
    }
}

/// Memory that encoding a tile reuses.
#[derive(Default)]
struct Scratch<W> {
    part: Vec<u32>,
    positions: Vec<u32>,
    old: Vec<W>,
    new: Vec<W>,
    words: Words,
    classify: classify::Scratch,
    partition: Partition<W>,
    encode: classes::Scratch,
}

impl<W: Word> Reusable for Scratch<W> {
    fn keep(&self) -> bool {
        4 * self.positions.capacity() + self.partition.held() < KEPT_BYTES
    }
}

/// Compares a tile's two states and encodes its changes.
pub(crate) fn compare<T: Word>(
    work: &Work<'_>,
    pair: &Pair<'_>,
    entry: &Tensor,
    tile: u32,
) -> EncodedTile {
    let mut out = EncodedTile::new(pair.tensor, tile);
    let Some(place) = entry.tile_box(tile) else {
        return out;
    };
    let block = place.block(entry.width);
    work.scratch.with(|scratch: &mut Scratch<T>| {
        let Scratch {
            part: part_positions,
            positions,
            old,
            new,
            ..
        } = scratch;
        positions.clear();
        old.clear();
        new.clear();
        // A few rows at a time, so that all that follows the comparison finds its memory in the cache.
        let step = (CACHED_BYTES / block.bytes.max(1)).max(1);
        for first in (0..block.rows).step_by(step) {
            let part = Block {
                row: block.row + first,
                rows: step.min(block.rows - first),
                ..block
            };
            part_positions.clear();
            scan::differing::<T>(&pair.base, &pair.new, &part, part_positions);
            scan::gather(&pair.base, &part, part_positions, old);
            scan::gather(&pair.new, &part, part_positions, new);
            let key = entry.key();
            let base = digest::block(key, &pair.base, &part);
            let change =
                digest::change_between::<T>(key, &pair.base, &pair.new, &part, part_positions);
            out.base = out.base.plus(base);
            out.result = out.result.plus(base).plus(change);
            let offset = (first * block.bytes / T::WIDTH) as u32;
            positions.extend(part_positions.iter().map(|p| p + offset));
        }
        if !positions.is_empty() {
            let _permit = work.permits.enter(positions.len());
            finish(work.profile, &pair.base, entry, scratch, &mut out);
        }
    });
    out
}

/// Encodes the changes in `scratch` of a tile whose base is at hand; both digests are known.
fn finish<T: Word>(
    profile: Profile,
    base: &Matrix<'_>,
    entry: &Tensor,
    scratch: &mut Scratch<T>,
    out: &mut EncodedTile,
) {
    let Some(place) = entry.tile_box(out.tile) else {
        return;
    };
    let Scratch {
        positions,
        old,
        new,
        classify: memory,
        partition,
        encode: encoder,
        ..
    } = scratch;
    out.changed = positions.len() as u64;
    let block = place.block(entry.width);
    let by_class = profile == Profile::Compact;
    if by_class && !classify(entry, base, &block, positions, old, new, memory, partition) {
        partition.set_flat(positions, old, new, entry.order());
    }
    let changes = TileChanges {
        tensor: out.tensor,
        tile: out.tile,
        elements: place.elements(),
        order: entry.order(),
        positions,
        old: Some(old),
        new,
        result: Some(out.result.lanes[0]),
    };
    out.record = encode::tile(profile, &changes, by_class.then_some(&*partition), encoder);
}

/// A change by tile, element within it, and index among the changes given.
pub(crate) type TilePick = (u32, u32, usize);

/// Changes in tile order. Flat order is tile order only where tiles span all columns.
pub(crate) fn order(entry: &Tensor, positions: &[i64]) -> Vec<TilePick> {
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

/// Encodes changes of a tile that somebody else has found.
pub(crate) fn found<T: Word>(
    work: &Work<'_>,
    found: &Found<'_>,
    entry: &Tensor,
    tile: u32,
    run: &[TilePick],
) -> EncodedTile {
    let mut out = EncodedTile::new(found.tensor, tile);
    let Some(place) = entry.tile_box(tile) else {
        return out;
    };
    let _permit = work.permits.enter(run.len());
    work.scratch.with(|scratch: &mut Scratch<T>| {
        let value = |i: usize| T::read(&found.values[i * T::WIDTH..]);
        let Scratch {
            part,
            positions,
            old,
            new,
            words,
            ..
        } = scratch;
        positions.clear();
        new.clear();
        old.clear();
        let Some(base) = &found.base else {
            positions.extend(run.iter().map(|pick| pick.1));
            new.extend(run.iter().map(|pick| value(pick.2)));
            out.changed = positions.len() as u64;
            let changes = TileChanges {
                tensor: found.tensor,
                tile,
                elements: place.elements(),
                order: entry.order(),
                positions,
                old: None,
                new,
                result: None,
            };
            out.record = encode::tile(work.profile, &changes, None, &mut scratch.encode);
            return;
        };
        let block = place.block(entry.width);
        out.base = digest::block(entry.key(), base, &block);
        part.clear();
        part.extend(run.iter().map(|pick| pick.1));
        scan::gather(base, &block, part, old);
        // Elements that stay as they are were no changes.
        for (i, pick) in run.iter().enumerate() {
            let new_value = value(pick.2);
            if old[i] != new_value {
                old[positions.len()] = old[i];
                positions.push(pick.1);
                new.push(new_value);
            }
        }
        old.truncate(positions.len());
        let change = digest::change::<T, true>(entry.key(), base, &block, positions, new, words);
        out.result = out.base.plus(change);
        if !positions.is_empty() {
            finish(work.profile, base, entry, scratch, &mut out);
        }
    });
    out
}
