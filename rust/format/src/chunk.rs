//! Chunk records: the changes of one tile.

use deltawire_kernels::classes::{ClassMap, Part, Progress, Selector};
use deltawire_kernels::{Block, Matrix, Word};

use crate::bits::{put_varint, take_varint};
use crate::codec::{
    classes, positions, stage, values, Partition, PositionCodec, Stage, ValueCodec, Values,
};
use crate::error::{Error, Result};
use crate::header::{seal, u32_at, unseal, CRC_LEN};
use crate::limits::Limits;
use crate::table::{Tensor, TileBox};

/// Record type of a chunk with its changes by class, relative to the base.
pub const CLASSES_RECORD: u8 = 4;
/// Record type of any other chunk.
pub const RECORD: u8 = 1;
/// Fewest bytes of a record: type, length, three fields, checksum.
pub(crate) const MIN_LEN: usize = 5 + CRC_LEN;

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

/// Fields of a record, and where its positions and values begin.
type Fields = (ChunkHeader, usize, usize);

/// What a chunk decodes to, and memory that decoding reuses.
#[derive(Debug, Default)]
pub struct Scratch<W> {
    /// Element numbers within the tile, each once; they ascend unless they were located.
    pub positions: Vec<u32>,
    /// What the elements become, in the order of the positions.
    pub values: Values<W>,
    /// The changes by class, where the chunk has them so and until they are located.
    pub partition: Partition<W>,
    order: Vec<u32>,
    stream: Vec<u8>,
    progress: Progress,
}

/// Where the changes of a decoded chunk are.
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack, and a box would be an allocation a chunk"
)]
pub enum Places<'s, W> {
    /// At these ascending positions, with these values.
    Listed(&'s [u32], &'s Values<W>),
    /// At ranks, to be found in the base.
    Ranks(Locator<'s, W>),
}

/// Positions of a chunk's ranks, being found in a tile part by part.
pub struct Locator<'s, W> {
    map: ClassMap,
    selector: Selector<'s>,
    row: usize,
    values: &'s mut Values<W>,
    partition: &'s Partition<W>,
    progress: &'s mut Progress,
}

impl<W: Word> Locator<'_, W> {
    /// Looks through the next rows of the tile, which `matrix` holds in `block`.
    pub fn next(&mut self, matrix: &Matrix<'_>, block: &Block) {
        let end = self.row + block.rows;
        let part = Part {
            matrix,
            block: *block,
            map: self.map,
            rows: self.partition.rows.get(self.row..end).unwrap_or(&[]),
        };
        self.selector.next::<W>(&part, self.progress);
        self.row = end;
    }

    /// How many positions were found.
    pub fn found(&self) -> usize {
        self.selector.found()
    }

    /// Positions found after the first `from` ones, and the step of each.
    pub fn since(&self, from: usize) -> (&[u32], impl Iterator<Item = W> + '_) {
        let (positions, order) = self.selector.since(from);
        let steps = &self.partition.steps;
        (positions, order.iter().map(|&at| steps[at as usize]))
    }

    /// Checks that all positions were found, for those who have the steps already.
    ///
    /// # Errors
    /// As [`Locator::finish`].
    pub fn check(&self) -> Result<()> {
        if self.selector.is_complete() {
            return Ok(());
        }
        Err(Error::corrupt(
            "classes have fewer elements than a rank says [F25]",
        ))
    }

    /// Puts the values in the order of the positions.
    ///
    /// # Errors
    /// `Corrupt` where a class has fewer elements than a rank says.
    pub fn finish(self) -> Result<()> {
        self.check()?;
        let order = self.selector.finish().unwrap_or_default();
        self.values.set_steps(&self.partition.steps, order);
        Ok(())
    }
}

impl<W: Word> Scratch<W> {
    /// Whether the positions are still ranks, which only the base can tell.
    pub fn is_by_class(&self) -> bool {
        self.partition.needs_base()
    }

    /// Where the changes are; ranks are still to be found.
    ///
    /// # Errors
    /// `Corrupt` where there are ranks, and the dtype has no exponents.
    pub fn places<'s>(&'s mut self, tensor: &Tensor) -> Result<Places<'s, W>> {
        if !self.is_by_class() {
            return Ok(Places::Listed(&self.positions, &self.values));
        }
        let Self {
            positions,
            values,
            partition,
            order,
            progress,
            ..
        } = self;
        let Some(map) = tensor.class_map(partition.top, partition.classes) else {
            let message = "classes in a tensor whose elements have no exponent [F25]";
            return Err(Error::corrupt(message).of(&tensor.name));
        };
        progress.restart();
        let Partition {
            classes,
            counts,
            ranks,
            ..
        } = &*partition;
        Ok(Places::Ranks(Locator {
            map,
            selector: Selector::new(*classes, counts, ranks, positions, order),
            row: 0,
            values,
            partition,
            progress,
        }))
    }

    /// Finds the positions of ranks in the base, which `matrix` holds in `block`.
    ///
    /// # Errors
    /// `Corrupt` where a class has fewer elements than a rank says, or the dtype has no exponents.
    pub fn locate(&mut self, tensor: &Tensor, matrix: &Matrix<'_>, block: &Block) -> Result<()> {
        match self.places(tensor)? {
            Places::Listed(..) => Ok(()),
            Places::Ranks(mut locator) => {
                locator.next(matrix, block);
                locator.finish().map_err(|e| e.of(&tensor.name))
            }
        }
    }

    /// Bytes of memory held.
    pub(crate) fn held(&self) -> usize {
        self.values.held()
            + self.partition.held()
            + 4 * (self.positions.capacity() + self.order.capacity())
            + self.stream.capacity()
    }
}

/// Length of a chunk record from its first bytes, bounded by the limits; `None` where they are too few.
pub fn record_len(bytes: &[u8], limits: &Limits) -> Result<Option<u64>> {
    let Some(mut rest) = bytes.get(1..bytes.len().min(11)) else {
        return Ok(None);
    };
    let begun = rest.len();
    if begun < 10 && rest.iter().all(|&b| b >= 0x80) {
        return Ok(None);
    }
    let body = take_varint(&mut rest)?;
    let length = body.saturating_add((1 + begun - rest.len() + CRC_LEN) as u64);
    if length > limits.max_chunk_bytes {
        return Err(Error::limit(format!("a chunk of {length} bytes")));
    }
    Ok(Some(length))
}

/// The record with these fields and streams.
pub fn encode(header: &ChunkHeader, positions: &[u8], values: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(48);
    let by_class = header.positions.0 == PositionCodec::Classes;
    debug_assert!(!by_class || header.base.is_none() && header.result.is_some());
    if !by_class {
        head.push(header.positions.0 as u8 | (header.values.0 as u8) << 4);
        head.push(
            u8::from(header.base.is_some())
                | u8::from(header.result.is_some()) << 1
                | (header.positions.1 as u8) << 2
                | (header.values.1 as u8) << 4,
        );
    }
    for field in [header.tensor, header.tile, header.changes] {
        put_varint(field.into(), &mut head);
    }
    for digest in [header.base, header.result].into_iter().flatten() {
        head.extend_from_slice(&digest.to_le_bytes());
    }
    if !by_class {
        put_varint(positions.len() as u64, &mut head);
    }
    let body = head.len() + positions.len() + values.len();
    let mut out = Vec::with_capacity(body + 6 + CRC_LEN);
    out.push(if by_class { CLASSES_RECORD } else { RECORD });
    put_varint(body as u64, &mut out);
    for part in [&head, positions, values] {
        out.extend_from_slice(part);
    }
    seal(&mut out, 0);
    out
}

impl Chunk {
    /// Checks a whole record against the tensor table.
    pub fn parse(
        record: Vec<u8>,
        offset: u64,
        tensors: &[Tensor],
        limits: &Limits,
    ) -> Result<Self> {
        let (header, positions_at, values_at) =
            parse_fields(&record, tensors, limits).map_err(|e| e.at(offset))?;
        Ok(Self {
            header,
            offset,
            record,
            positions_at,
            values_at,
        })
    }

    /// The record with another number of its tensor, and so another checksum; its streams are copied.
    pub(crate) fn renumbered(self, tensor: u32) -> Vec<u8> {
        if tensor == self.header.tensor {
            return self.record;
        }
        let header = ChunkHeader {
            tensor,
            ..self.header
        };
        let values = &self.record[self.values_at..self.record.len() - CRC_LEN];
        encode(
            &header,
            &self.record[self.positions_at..self.values_at],
            values,
        )
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
    ///
    /// Memory is taken only where that of `scratch` does not suffice.
    pub fn decode<W: Word>(&self, tensors: &[Tensor], scratch: &mut Scratch<W>) -> Result<()> {
        let name = &self.tensor(tensors).name;
        let place = self.tile_box(tensors)?;
        self.decode_parts(place.elements(), place.rows as u32, scratch)
            .map_err(|e| e.at(self.offset).of(name))
    }

    /// The changes by class; `None` where the chunk has them otherwise.
    pub fn partition<W: Word>(&self, tensors: &[Tensor]) -> Result<Option<Partition<W>>> {
        if self.header.positions.0 != PositionCodec::Classes {
            return Ok(None);
        }
        let name = &self.tensor(tensors).name;
        let place = self.tile_box(tensors)?;
        let stream = &self.record[self.positions_at..self.values_at];
        let mut out = Partition::default();
        let (changes, rows) = (self.header.changes, place.rows as u32);
        classes::decode(stream, changes, place.elements(), rows, &mut out)
            .map_err(|e| e.at(self.offset).of(name))?;
        Ok(Some(out))
    }

    fn decode_parts<W: Word>(
        &self,
        elements: u32,
        rows: u32,
        scratch: &mut Scratch<W>,
    ) -> Result<()> {
        let changes = self.header.changes;
        let (position_codec, position_stage) = self.header.positions;
        let (value_codec, value_stage) = self.header.values;
        let stored = &self.record[self.positions_at..self.values_at];
        let stored_values = &self.record[self.values_at..self.record.len() - CRC_LEN];
        scratch.partition.clear();
        if position_codec == PositionCodec::Classes {
            let partition = &mut scratch.partition;
            classes::decode(stored, changes, elements, rows, partition)?;
            scratch.positions.clear();
            if !partition.needs_base() {
                // Copied, not swapped: each buffer then keeps its size from chunk to chunk.
                scratch.positions.extend_from_slice(&partition.ranks);
                scratch.values.copy_steps(&partition.steps);
            }
            return Ok(());
        }
        // Values are at least a bit a change (or a byte in 255, staged): a count is believed only then.
        if u64::from(changes) > 255 * 8 * stored_values.len() as u64 {
            return Err(Error::corrupt(format!(
                "{changes} changes have no values [F15]"
            )));
        }
        let most = position_codec.max_len(changes, elements);
        let stream = stage::open(position_stage, stored, most, &mut scratch.stream)?;
        let positions = &mut scratch.positions;
        positions::decode(position_codec, stream, changes, elements, positions)?;
        let most = value_codec.max_len(changes, W::WIDTH);
        let stream = stage::open(value_stage, stored_values, most, &mut scratch.stream)?;
        values::decode(value_codec, stream, changes, &mut scratch.values)
    }
}

fn parse_fields(record: &[u8], tensors: &[Tensor], limits: &Limits) -> Result<Fields> {
    let short = || Error::corrupt("a chunk is cut short [F27]");
    if record.len() < MIN_LEN || record_len(record, limits)? != Some(record.len() as u64) {
        return Err(short());
    }
    let body = unseal(record, "chunk")?;
    let by_class = match body[0] {
        RECORD => false,
        CLASSES_RECORD => true,
        _ => return Err(Error::corrupt("not a chunk record [F2]")),
    };
    let mut rest = &body[1..];
    take_varint(&mut rest)?;
    let (mut codecs, mut flags) = (
        PositionCodec::Classes as u8 | (ValueCodec::Classes as u8) << 4,
        2,
    );
    if !by_class {
        let (head, others) = rest.split_first_chunk::<2>().ok_or_else(short)?;
        [codecs, flags] = *head;
        rest = others;
    }
    let mut field = || -> Result<u32> {
        u32::try_from(take_varint(&mut rest)?)
            .map_err(|_| Error::corrupt("a field of a chunk exceeds 32 bits [F10]"))
    };
    let (index, tile, changes) = (field()?, field()?, field()?);
    let tensor = tensors
        .get(index as usize)
        .ok_or_else(|| Error::corrupt(format!("tensor {index} is not in the table [F10]")))?;
    let parse = || -> Result<Fields> {
        let place = tensor
            .tile_box(tile)
            .ok_or_else(|| Error::corrupt(format!("the tensor has no tile {tile} [F10]")))?;
        if changes == 0 || changes > place.elements() {
            let n = place.elements();
            return Err(Error::corrupt(format!(
                "{changes} changes in {n} elements [F10]"
            )));
        }
        let mut rest = rest;
        let mut digest = |bit: u8| -> Result<Option<u64>> {
            if flags & bit == 0 {
                return Ok(None);
            }
            let (bytes, others) = rest.split_first_chunk::<8>().ok_or_else(short)?;
            rest = others;
            Ok(Some(u64::from_le_bytes(*bytes)))
        };
        let header = ChunkHeader {
            positions: (
                PositionCodec::from_id(codecs & 15)?,
                Stage::from_id(flags >> 2 & 3)?,
            ),
            values: (
                ValueCodec::from_id(codecs >> 4)?,
                Stage::from_id(flags >> 4)?,
            ),
            tensor: index,
            tile,
            changes,
            base: digest(1)?,
            result: digest(2)?,
        };
        if header.values.0.is_step() && header.base.or(header.result).is_none() {
            return Err(Error::corrupt("steps without a digest [F12]"));
        }
        if header.values == (ValueCodec::Planes, Stage::Lz4) {
            return Err(Error::corrupt("a stage behind byte planes [F2]"));
        }
        let is_class = |p: PositionCodec, v: ValueCodec| {
            (p == PositionCodec::Classes, v == ValueCodec::Classes)
        };
        let positions_len = match (by_class, is_class(header.positions.0, header.values.0)) {
            (true, _) => rest.len() as u64,
            (false, (false, false)) => take_varint(&mut rest)?,
            _ => {
                let message = "codecs of another record type [F2]";
                return Err(Error::corrupt(message));
            }
        };
        if positions_len > rest.len() as u64 {
            return Err(short());
        }
        let positions_at = body.len() - rest.len();
        Ok((header, positions_at, positions_at + positions_len as usize))
    };
    parse().map_err(|e| e.of(&tensor.name))
}
