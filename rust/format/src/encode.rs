//! One tile's changes into one chunk record, under a profile.

use deltawire_kernels::ordered::Order;
use deltawire_kernels::Word;

use crate::chunk::{self, ChunkHeader};
use crate::codec::positions::{self, Plan};
use crate::codec::stage::compress;
use crate::codec::{classes, values, Partition, PositionCodec, Stage, ValueCodec};
use crate::error::{Error, Kind, Result};
use crate::writer::Partitioned;

/// Bits a change below which changes by class are taken without trying other codecs.
const USUAL_BITS: usize = 10;

/// What a writer optimises for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Smallest; relative to the base.
    Compact,
    /// Fastest; relative to the base.
    Fast,
    /// Needs no base and may be applied twice.
    Overwrite,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 3] = [Self::Compact, Self::Fast, Self::Overwrite];

    /// By name.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .ok_or_else(|| {
                let message = format!(
                    "profile {name:?} is not known; use \"compact\", \"fast\" or \"overwrite\""
                );
                Error::new(Kind::Layout, message)
            })
    }

    /// Its name in headers, the CLI and Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Fast => "fast",
            Self::Overwrite => "overwrite",
        }
    }

    /// Whether chunks name the base that they belong to.
    pub const fn is_relative(self) -> bool {
        !matches!(self, Self::Overwrite)
    }
}

/// A tile's changes: never empty, positions ascending, `old` there if a base is.
#[derive(Clone, Copy, Debug)]
pub struct TileChanges<'a, W> {
    /// Index in the tensor table.
    pub tensor: u32,
    /// Tile of the tensor.
    pub tile: u32,
    /// Elements of the tile.
    pub elements: u32,
    /// How the elements are ordered.
    pub order: Order,
    /// Element numbers within the tile.
    pub positions: &'a [u32],
    /// Elements before.
    pub old: Option<&'a [W]>,
    /// Elements after; they differ from `old`.
    pub new: &'a [W],
    /// Lane 0 of the tile after.
    pub result: Option<u64>,
}

/// A stream with its codec and stage, already stored.
struct Part<C> {
    codec: C,
    stage: Stage,
    bytes: Vec<u8>,
}

impl<C> Part<C> {
    /// Itself or its LZ4 stage, whichever is smaller.
    fn staged(self) -> Self {
        let packed = compress(&self.bytes);
        if packed.len() < self.bytes.len() {
            return Self {
                stage: Stage::Lz4,
                bytes: packed,
                ..self
            };
        }
        self
    }

    fn smaller(self, other: Self) -> Self {
        if other.bytes.len() < self.bytes.len() {
            other
        } else {
            self
        }
    }
}

/// Positions without classes, and the bytes that they take.
fn encode_positions(profile: Profile, list: &[u32], elements: u32) -> Part<PositionCodec> {
    let plans = positions::plans(list, elements);
    let run = |plan: &Plan| {
        let mut bytes = Vec::with_capacity(plan.bytes as usize);
        positions::encode(plan, list, elements, &mut bytes);
        Part {
            codec: plan.codec,
            stage: Stage::None,
            bytes,
        }
    };
    // `plans` is never empty; the first is the usual winner.
    let best = plans.iter().min_by_key(|p| p.bytes).unwrap_or(&plans[0]);
    let part = run(best);
    if profile == Profile::Fast {
        return part;
    }
    // Regular patterns (a column, a stride) make a byte stream that LZ4 sees through.
    match plans.last() {
        Some(gaps) if gaps.codec == PositionCodec::Gaps => part.smaller(run(gaps).staged()),
        _ => part,
    }
}

/// A part without a stage, written by a function.
fn with<C>(codec: C, write: impl FnOnce(&mut Vec<u8>)) -> Part<C> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    Part {
        codec,
        stage: Stage::None,
        bytes,
    }
}

/// Values in the order of the positions.
fn encode_values<W: Word>(profile: Profile, tile: &TileChanges<'_, W>) -> Part<ValueCodec> {
    let raw = || with(ValueCodec::Raw, |out| values::encode_raw(tile.new, out));
    let planes = || {
        with(ValueCodec::Planes, |out| {
            values::encode_planes(tile.new, out)
        })
    };
    match relative_to(profile, tile) {
        Some(old) => {
            let steps = with(ValueCodec::Step, |out| {
                values::encode_steps(old, tile.new, tile.order, out)
            });
            // Steps of half an element's width and less are not beaten by absolute values.
            if steps.bytes.len() <= tile.new.len() * W::WIDTH / 2 {
                return steps;
            }
            let best = steps.smaller(raw());
            if profile == Profile::Fast {
                best
            } else {
                best.smaller(planes())
            }
        }
        None => raw().staged().smaller(planes()),
    }
}

/// The old elements, where the profile lets values refer to them.
fn relative_to<'a, W>(profile: Profile, tile: &TileChanges<'a, W>) -> Option<&'a [W]> {
    tile.old
        .filter(|_| profile.is_relative() && tile.result.is_some())
}

/// The smallest pair of positions and values under the profile.
fn choose<W: Word>(
    profile: Profile,
    tile: &TileChanges<'_, W>,
    partition: Option<&Partition<W>>,
    scratch: &mut classes::Scratch,
) -> (Part<PositionCodec>, Part<ValueCodec>) {
    let Some(partition) = partition.filter(|_| relative_to(profile, tile).is_some()) else {
        return (
            encode_positions(profile, tile.positions, tile.elements),
            encode_values(profile, tile),
        );
    };
    let by_class = (
        with(PositionCodec::Classes, |out| {
            classes::encode(partition, scratch, out)
        }),
        with(ValueCodec::Classes, |_| {}),
    );
    let size = by_class.0.bytes.len();
    // Scattered changes at the usual cost: nothing else comes near.
    let n = tile.new.len();
    let touching = tile.positions.windows(2).filter(|w| w[0] + 1 == w[1]);
    if 8 * size <= USUAL_BITS * n && 4 * touching.count() <= n {
        return by_class;
    }
    let positions = encode_positions(profile, tile.positions, tile.elements);
    // Without classes a change takes its position and at least a sign.
    if positions.bytes.len() + n / 8 >= size {
        return by_class;
    }
    let values = encode_values(profile, tile);
    if positions.bytes.len() + values.bytes.len() < size {
        (positions, values)
    } else {
        by_class
    }
}

/// The chunk record of a tile; `partition` holds the same changes by class, where the profile wants them.
pub fn tile<W: Word>(
    profile: Profile,
    tile: &TileChanges<'_, W>,
    partition: Option<&Partition<W>>,
    scratch: &mut classes::Scratch,
) -> Vec<u8> {
    let (positions, values) = choose(profile, tile, partition, scratch);
    record(tile, &positions, &values)
}

/// The record of a tile with these streams.
fn record<W>(
    tile: &TileChanges<'_, W>,
    positions: &Part<PositionCodec>,
    values: &Part<ValueCodec>,
) -> Vec<u8> {
    let header = ChunkHeader {
        positions: (positions.codec, positions.stage),
        values: (values.codec, values.stage),
        tensor: tile.tensor,
        tile: tile.tile,
        changes: tile.positions.len() as u32,
        base: None,
        result: tile.result,
    };
    chunk::encode(&header, &positions.bytes, &values.bytes)
}

/// The chunk record of changes that must stay what they are: steps, where there are old elements, or new
/// elements.
pub fn known<W: Word>(profile: Profile, tile: &TileChanges<'_, W>) -> Vec<u8> {
    let positions = encode_positions(profile, tile.positions, tile.elements);
    let values = match tile.old {
        Some(old) => with(ValueCodec::Step, |out| {
            values::encode_steps(old, tile.new, tile.order, out)
        }),
        None => encode_values(Profile::Overwrite, tile),
    };
    record(tile, &positions, &values)
}

/// The chunk record of a partition.
pub fn partition<W: Word>(
    tensor: u32,
    item: &Partitioned<'_, W>,
    scratch: &mut classes::Scratch,
) -> Vec<u8> {
    let mut stream = Vec::new();
    classes::encode(item.partition, scratch, &mut stream);
    let header = ChunkHeader {
        positions: (PositionCodec::Classes, Stage::None),
        values: (ValueCodec::Classes, Stage::None),
        tensor,
        tile: item.tile,
        changes: item.partition.ranks.len() as u32,
        base: None,
        result: Some(item.result),
    };
    chunk::encode(&header, &stream, &[])
}
