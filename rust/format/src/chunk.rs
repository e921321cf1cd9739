//! Chunk records: the changes of one tile.

use deltawire_kernels::Word;

use crate::codec::{positions, stage, values, PositionCodec, Stage, ValueCodec, Values};
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

/// Memory that decoding reuses.
#[derive(Debug, Default)]
pub struct Scratch<W> {
    /// Ascending element numbers within the tile.
    pub positions: Vec<u32>,
    /// What the elements become.
    pub values: Values<W>,
    stream: Vec<u8>,
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

    /// Decodes positions and values, whose width is that of the tensor.
    pub fn decode<W: Word>(&self, tensors: &[Tensor], scratch: &mut Scratch<W>) -> Result<()> {
        let name = &self.tensor(tensors).name;
        let elements = self.tile_box(tensors)?.elements();
        self.decode_parts(elements, scratch)
            .map_err(|e| e.at(self.offset).of(name))
    }

    fn decode_parts<W: Word>(&self, elements: u32, scratch: &mut Scratch<W>) -> Result<()> {
        let changes = self.header.changes;
        let end = self.record.len() - CRC_LEN;
        let (codec, stage) = self.header.values;
        let stored = &self.record[self.values_at..end];
        // Values first: they are at least a bit a change, so a count is believed only then.
        let stream = stage::open(
            stage,
            stored,
            codec.max_len(changes, W::WIDTH),
            &mut scratch.stream,
        )?;
        values::decode(codec, stream, changes, &mut scratch.values)?;
        let (codec, stage) = self.header.positions;
        let stored = &self.record[self.positions_at..self.values_at];
        let stream = stage::open(
            stage,
            stored,
            codec.max_len(changes, elements),
            &mut scratch.stream,
        )?;
        positions::decode(codec, stream, changes, elements, &mut scratch.positions)
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
        if header.values.0 == ValueCodec::Step && header.base.is_none() {
            return Err(Error::corrupt("steps without a base digest [F12]"));
        }
        if header.values == (ValueCodec::Planes, Stage::Lz4) {
            return Err(Error::corrupt("a stage behind byte planes [F2]"));
        }
        Ok(header)
    };
    parse().map_err(|e| e.of(&tensor.name))
}
