//! Reading a delta front to back, as its bytes arrive.

use crate::chunk::{self, Chunk};
use crate::error::{Error, Result};
use crate::header::{self, Header};
use crate::index::{self, check_order, decode_trailer, Index, TRAILER_LEN};
use crate::limits::Limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Header,
    Record,
    Trailer,
    Nothing,
}

/// Takes bytes in pieces of any size and gives chunks as soon as they are whole and checked.
#[derive(Debug)]
pub struct PushReader {
    limits: Limits,
    expect: Expect,
    /// Bytes received and not yet used.
    buffer: Vec<u8>,
    used: usize,
    /// Offset in the stream of `buffer[used]`.
    offset: u64,
    header: Option<Header>,
    header_bytes: u64,
    seen: Vec<bool>,
    places: Vec<(u32, u32, u32)>,
    changed: u64,
    index: Option<(u64, u64, Index)>,
    failed: Option<Error>,
}

impl PushReader {
    /// A reader that has received nothing.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            expect: Expect::Header,
            buffer: Vec::new(),
            used: 0,
            offset: 0,
            header: None,
            header_bytes: 0,
            seen: Vec::new(),
            places: Vec::new(),
            changed: 0,
            index: None,
            failed: None,
        }
    }

    /// The header, once it has arrived.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// The index, once it has arrived and agrees with the chunks.
    pub fn index(&self) -> Option<&Index> {
        self.index.as_ref().map(|(_, _, index)| index)
    }

    /// Bytes of the header, once it has arrived.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Bytes used so far: all of the delta once it is complete.
    pub fn bytes(&self) -> u64 {
        self.offset
    }

    /// Takes the next bytes and returns the chunks that they complete.
    ///
    /// After an error every further call gives the same error.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Chunk>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.buffer.extend_from_slice(bytes);
        let mut chunks = Vec::new();
        let result = loop {
            match self.step(&mut chunks) {
                Ok(true) => {}
                Ok(false) => break Ok(chunks),
                Err(error) => {
                    let error = error.at(self.offset);
                    self.failed = Some(error.clone());
                    break Err(error);
                }
            }
        };
        self.buffer.drain(..self.used);
        self.used = 0;
        result
    }

    /// Says that nothing more comes.
    ///
    /// # Errors
    /// Where the delta is not complete.
    pub fn finish(&self) -> Result<()> {
        match (&self.failed, self.expect) {
            (Some(error), _) => Err(error.clone()),
            (None, Expect::Nothing) => Ok(()),
            _ => Err(Error::corrupt("the delta is cut short [F21]")
                .at(self.offset + (self.buffer.len() - self.used) as u64)),
        }
    }

    fn waiting(&self) -> &[u8] {
        &self.buffer[self.used..]
    }

    fn take(&mut self, n: usize) {
        self.used += n;
        self.offset += n as u64;
    }

    /// Uses one record; false where more bytes are needed.
    fn step(&mut self, chunks: &mut Vec<Chunk>) -> Result<bool> {
        match self.expect {
            Expect::Header => self.step_header(),
            Expect::Record => match self.waiting().first() {
                None => Ok(false),
                Some(&(chunk::RECORD | chunk::CLASSES_RECORD)) => self.step_chunk(chunks),
                Some(&index::RECORD) => self.step_index(),
                Some(other) => Err(Error::corrupt(format!("record type {other} [F2]"))),
            },
            Expect::Trailer => self.step_trailer(),
            Expect::Nothing if self.waiting().is_empty() => Ok(false),
            Expect::Nothing => Err(Error::corrupt("bytes follow the trailer [F21]")),
        }
    }

    fn step_header(&mut self) -> Result<bool> {
        let known = self.waiting().len().min(header::MAGIC.len());
        if self.waiting()[..known] != header::MAGIC[..known] {
            return Err(Error::corrupt(
                "not a deltawire delta (the first bytes differ) [F21]",
            ));
        }
        let Some(fixed) = self.waiting().first_chunk() else {
            return Ok(false);
        };
        let length = Header::length(fixed, &self.limits)? as usize;
        let Some(record) = self.waiting().get(..length) else {
            return Ok(false);
        };
        let header = Header::decode(record, &self.limits)?;
        self.seen = vec![false; header.tensors.len()];
        self.header = Some(header);
        self.header_bytes = length as u64;
        self.take(length);
        self.expect = Expect::Record;
        Ok(true)
    }

    fn step_chunk(&mut self, chunks: &mut Vec<Chunk>) -> Result<bool> {
        let Some(length) = chunk::record_len(self.waiting(), &self.limits)? else {
            return Ok(false);
        };
        let length = length as usize;
        let Some(record) = self.waiting().get(..length) else {
            return Ok(false);
        };
        let tensors = self.header.as_ref().map_or(&[][..], |h| &h.tensors);
        let chunk = Chunk::parse(record.to_vec(), self.offset, tensors, &self.limits)?;
        let place = (chunk.header.tensor, chunk.header.tile);
        let last = self.places.last().map(|p| (p.0, p.1));
        check_order(last, place, &mut self.seen)?;
        self.places.push((place.0, place.1, length as u32));
        self.changed += u64::from(chunk.header.changes);
        chunks.push(chunk);
        self.take(length);
        Ok(true)
    }

    fn step_index(&mut self) -> Result<bool> {
        let Some(fixed) = self.waiting().first_chunk() else {
            return Ok(false);
        };
        let length = Index::length(fixed, &self.limits)? as usize;
        let Some(record) = self.waiting().get(..length) else {
            return Ok(false);
        };
        let Some(header) = &self.header else {
            return Ok(false);
        };
        let mut index = Index::decode(
            record,
            self.offset,
            self.header_bytes,
            &header.tensors,
            &self.limits,
        )?;
        index.take_base(header.base_state)?;
        let same = index.chunks.len() == self.places.len()
            && index.changed == self.changed
            && index
                .chunks
                .iter()
                .zip(&self.places)
                .all(|(c, p)| (c.tensor, c.tile, c.length) == *p);
        if !same {
            return Err(Error::corrupt(
                "the index does not agree with the chunks [F19]",
            ));
        }
        self.index = Some((self.offset, length as u64, index));
        self.take(length);
        self.expect = Expect::Trailer;
        Ok(true)
    }

    fn step_trailer(&mut self) -> Result<bool> {
        let Some(raw) = self.waiting().first_chunk::<TRAILER_LEN>() else {
            return Ok(false);
        };
        let (at, length) = decode_trailer(raw, self.offset)?;
        if self.index.as_ref().map(|(a, l, _)| (*a, *l)) != Some((at, length.into())) {
            return Err(Error::corrupt("the trailer does not name the index [F21]"));
        }
        self.take(TRAILER_LEN);
        self.expect = Expect::Nothing;
        Ok(true)
    }
}
