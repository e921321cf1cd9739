//! Chunk records: the changes of one tile.

use deltawire_kernels::{classes, Block, Matrix, Word};

use crate::codec::{
    positions, ranks, stage, values, Partition, PositionCodec, Stage, ValueCodec, Values,
};
use crate::error::{Error, Result};
use crate::header::{u32_at, u64_at, unseal, CRC_LEN};
use crate::limits::Limits;
use crate::table::{Tensor, TileBox};

/// Record type of a chunk.
pub const RECORD: u8 = 1;
/// Bytes before the digests.
pub const FIXED_LEN: usize = 24;

/// A chunk's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Position codec and its stage.
    pub positions: (PositionCodec, Stage),
    /// Value codec and its stage.
    pub values: (ValueCodec, Stage),
    /// Index in the tensor table.
    pub tensor: u32,
    /// Tile of the tensor.
    pub tile: u32,
    /// Number of changes.
    pub changes: u32,
    /// Lane 0 of the tile before.
    pub base: Option<u64>,
    /// Lane 0 of the tile after.
    pub result: Option<u64>,
}

/// A chunk as read: its fields and stored bytes, checked but not decoded.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The fields.
    pub header: ChunkHeader,
    /// Offset of the record in the stream.
    pub offset: u64,
    record: Vec<u8>,
    positions_at: usize,
    values_at: usize,
}

/// What a chunk decodes to, and memory that decoding reuses.
#[derive(Debug, Default)]
pub struct Scratch<W> {
    /// Ascending element numbers within the tile; empty until located where `needs_base`.
    pub positions: Vec<u32>,
    /// What the elements become, in the order of the positions once located.
    pub values: Values<W>,
    /// Counts of the classes, and ranks where the positions are ranks.
    pub partition: Partition,
    grouped: bool,
    order: Vec<u32>,
    stream: Vec<u8>,
}

impl<W: Word> Scratch<W> {
    /// Finds the positions of ranks in the base, which `matrix` holds in `block`.
    ///
    /// # Errors
    /// `Corrupt` where a class has fewer elements than a rank says, or the dtype has no exponents.
    pub fn locate(&mut self, tensor: &Tensor, matrix: &Matrix<'_>, block: &Block) -> Result<()> {
        if !self.partition.needs_base() {
            return Ok(());
        }
        let wrong = |what: &str| Error::corrupt(format!("ranks {what} [F25]")).of(&tensor.name);
        let partition = &self.partition;
        let map = tensor
            .class_map(partition.top, partition.counts.len())
            .ok_or_else(|| wrong("in a tensor whose elements have no exponent"))?;
        self.positions.clear();
        self.order.clear();
        let (positions, order) = (&mut self.positions, &mut self.order);
        let (counts, ranks) = (&partition.counts, &partition.ranks);
        if !classes::select::<W>(matrix, block, &map, counts, ranks, positions, order) {
            return Err(wrong("exceed the elements of a class"));
        }
        if self.grouped {
            self.values.permute(&self.order);
        }
        Ok(())
    }
}

/// Length of a chunk record from its first 24 bytes; bounded by the limits.
pub fn record_len(fixed: &[u8; FIXED_LEN], limits: &Limits) -> Result<u64> {
    let digests = u64::from((fixed[3] & 1) + (fixed[3] >> 1 & 1)) * 8;
    let length = FIXED_LEN as u64
        + digests
        + u64::from(u32_at(fixed, 16))
        + u64::from(u32_at(fixed, 20))
        + CRC_LEN as u64;
    if length > limits.max_chunk_bytes {
        return Err(Error::limit(format!("a chunk of {length} bytes")));
    }
    Ok(length)
}

/// Appends a record up to, not including, its checksum.
pub fn encode(header: &ChunkHeader, positions: &[u8], values: &[u8], out: &mut Vec<u8>) {
    out.push(RECORD);
    out.push(header.positions.0 as u8 | (header.positions.1 as u8) << 4);
    out.push(header.values.0 as u8 | (header.values.1 as u8) << 4);
    out.push(u8::from(header.base.is_some()) | u8::from(header.result.is_some()) << 1);
    for field in [
        header.tensor,
        header.tile,
        header.changes,
        positions.len() as u32,
        values.len() as u32,
    ] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    for digest in [header.base, header.result].into_iter().flatten() {
        out.extend_from_slice(&digest.to_le_bytes());
    }
    out.extend_from_slice(positions);
    out.extend_from_slice(values);
}

impl Chunk {
    /// Checks a whole record against the tensor table.
    pub fn parse(
        record: Vec<u8>,
        offset: u64,
        tensors: &[Tensor],
        limits: &Limits,
    ) -> Result<Self> {
        let header = parse_fields(&record, tensors, limits).map_err(|e| e.at(offset))?;
        let digests = usize::from(header.base.is_some()) + usize::from(header.result.is_some());
        let positions_at = FIXED_LEN + 8 * digests;
        let values_at = positions_at + u32_at(&record, 16) as usize;
        Ok(Self {
            header,
            offset,
            record,
            positions_at,
            values_at,
        })
    }

    /// Bytes of the record.
    pub fn len(&self) -> usize {
        self.record.len()
    }

    /// The checksum at the record's end.
    pub fn checksum(&self) -> u32 {
        u32_at(&self.record, self.record.len() - CRC_LEN)
    }

    /// Never: a record has at least its fields.
    pub fn is_empty(&self) -> bool {
        self.record.is_empty()
    }

    /// The tensor that the chunk belongs to. `parse` checked that it is there.
    pub fn tensor<'t>(&self, tensors: &'t [Tensor]) -> &'t Tensor {
        &tensors[self.header.tensor as usize]
    }

    /// The tile's place.
    pub fn tile_box(&self, tensors: &[Tensor]) -> Result<TileBox> {
        let tensor = self.tensor(tensors);
        tensor.tile_box(self.header.tile).ok_or_else(|| {
            Error::corrupt("no such tile")
                .at(self.offset)
                .of(&tensor.name)
        })
    }

    /// Decodes positions and values, whose width is that of the tensor; ranks are to be located.
    pub fn decode<W: Word>(&self, tensors: &[Tensor], scratch: &mut Scratch<W>) -> Result<()> {
        let name = &self.tensor(tensors).name;
        let elements = self.tile_box(tensors)?.elements();
        self.decode_parts(elements, scratch)
            .map_err(|e| e.at(self.offset).of(name))
    }

    fn decode_parts<W: Word>(&self, elements: u32, scratch: &mut Scratch<W>) -> Result<()> {
        let changes = self.header.changes;
        let (position_codec, position_stage) = self.header.positions;
        let (value_codec, value_stage) = self.header.values;
        let stored_values = &self.record[self.values_at..self.record.len() - CRC_LEN];
        // Values are at least a bit a change (or a byte in 255, staged): a count is believed only then.
        if u64::from(changes) > 255 * 8 * stored_values.len() as u64 {
            return Err(Error::corrupt(format!("{changes} changes have no values")));
        }
        let stored = &self.record[self.positions_at..self.values_at];
        let most = position_codec.max_len(changes, elements);
        let stream = stage::open(position_stage, stored, most, &mut scratch.stream)?;
        scratch.partition.counts.clear();
        if position_codec == PositionCodec::Ranks {
            ranks::decode(stream, changes, elements, &mut scratch.partition)?;
            scratch.positions.clear();
            if scratch.partition.needs_base() {
                if self.header.base.is_none() {
                    return Err(Error::corrupt(
                        "ranks in classes without a base digest [F12]",
                    ));
                }
            } else {
                std::mem::swap(&mut scratch.positions, &mut scratch.partition.ranks);
            }
        } else {
            positions::decode(
                position_codec,
                stream,
                changes,
                elements,
                &mut scratch.positions,
            )?;
            scratch.partition.counts.push(changes);
        }
        let most = value_codec.max_len(changes, W::WIDTH);
        let stream = stage::open(value_stage, stored_values, most, &mut scratch.stream)?;
        let groups = &scratch.partition.counts;
        scratch.grouped = value_codec == ValueCodec::Grouped;
        values::decode(value_codec, stream, changes, groups, &mut scratch.values)
    }
}

fn parse_fields(record: &[u8], tensors: &[Tensor], limits: &Limits) -> Result<ChunkHeader> {
    let short = || Error::corrupt("a chunk is cut short");
    let fixed = record.first_chunk::<FIXED_LEN>().ok_or_else(short)?;
    if record_len(fixed, limits)? != record.len() as u64 {
        return Err(short());
    }
    let body = unseal(record, "chunk")?;
    if body[0] != RECORD || body[3] > 3 {
        return Err(Error::corrupt(
            "not a chunk record, or reserved flags are set [F2]",
        ));
    }
    let index = u32_at(body, 4);
    let tensor = tensors
        .get(index as usize)
        .ok_or_else(|| Error::corrupt(format!("tensor {index} is not in the table")))?;
    let parse = || {
        let tile = u32_at(body, 8);
        let place = tensor
            .tile_box(tile)
            .ok_or_else(|| Error::corrupt(format!("the tensor has no tile {tile}")))?;
        let changes = u32_at(body, 12);
        if changes == 0 || changes > place.elements() {
            let n = place.elements();
            return Err(Error::corrupt(format!(
                "{changes} changes in {n} elements [F10]"
            )));
        }
        let mut at = FIXED_LEN;
        let mut digest = |bit: u8| {
            (body[3] & bit != 0).then(|| {
                at += 8;
                u64_at(body, at - 8)
            })
        };
        let header = ChunkHeader {
            positions: (
                PositionCodec::from_id(body[1] & 15)?,
                Stage::from_id(body[1] >> 4)?,
            ),
            values: (
                ValueCodec::from_id(body[2] & 15)?,
                Stage::from_id(body[2] >> 4)?,
            ),
            tensor: index,
            tile,
            changes,
            base: digest(1),
            result: digest(2),
        };
        if header.values.0.is_step() && header.base.is_none() {
            return Err(Error::corrupt("steps without a base digest [F12]"));
        }
        if header.values == (ValueCodec::Planes, Stage::Lz4) {
            return Err(Error::corrupt("a stage behind byte planes [F2]"));
        }
        Ok(header)
    };
    parse().map_err(|e| e.of(&tensor.name))
}
