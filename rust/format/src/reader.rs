//! Reading a delta by range, through the trailer's index.

use std::io;

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::header::{self, Header};
use crate::index::{self, decode_trailer, Index, TRAILER_LEN};
use crate::limits::Limits;

/// Bytes that can be read at any place, by several threads.
pub trait ReadAt: Sync {
    /// Length in bytes.
    fn size(&self) -> u64;
    /// Fills `out` from `offset` on, or fails.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, out)
    }
}

impl ReadAt for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..at.checked_add(out.len())?))
            .map(|bytes| out.copy_from_slice(bytes))
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

/// A delta whose header, index and trailer are read and checked.
pub struct Delta<R> {
    source: R,
    limits: Limits,
    /// The header.
    pub header: Header,
    /// The index.
    pub index: Index,
    /// Bytes of the whole delta.
    pub bytes: u64,
    /// Bytes of the header.
    pub header_bytes: u64,
    /// Offset of the index.
    pub index_at: u64,
}

fn fetch<R: ReadAt + ?Sized>(source: &R, offset: u64, length: u64) -> Result<Vec<u8>> {
    // Lengths are checked against the source's size before memory is taken.
    if offset
        .checked_add(length)
        .is_none_or(|end| end > source.size())
    {
        return Err(Error::corrupt("the delta is cut short [F21]").at(offset));
    }
    let mut bytes = vec![0; length as usize];
    source
        .read_at(offset, &mut bytes)
        .map_err(|e| Error::from(e).at(offset))?;
    Ok(bytes)
}

impl<R: ReadAt> Delta<R> {
    /// Reads trailer, index and header.
    pub fn open(source: R, limits: Limits) -> Result<Self> {
        let bytes = source.size();
        let fixed = fetch(&source, 0, (header::FIXED_LEN as u64).min(bytes))?;
        let Some(fixed) = fixed.first_chunk::<{ header::FIXED_LEN }>() else {
            // Too short for a header: say so, unless it is something else altogether.
            let known = fixed.len().min(8);
            let what = if fixed[..known] == header::MAGIC[..known] {
                "the delta is cut short [F21]"
            } else {
                "not a deltawire delta (the first bytes differ) [F21]"
            };
            return Err(Error::corrupt(what).at(0));
        };
        let header_bytes = Header::length(fixed, &limits)?;
        let header = Header::decode(&fetch(&source, 0, header_bytes)?, &limits)?;
        let Some(trailer_at) = bytes.checked_sub(TRAILER_LEN as u64) else {
            return Err(Error::corrupt("the delta is cut short [F21]").at(bytes));
        };
        let trailer = fetch(&source, trailer_at, TRAILER_LEN as u64)?;
        let mut raw = [0; TRAILER_LEN];
        raw.copy_from_slice(&trailer);
        let (index_at, index_len) = decode_trailer(&raw, trailer_at)?;
        if u64::from(index_len) > limits.max_header_bytes + (index::FIXED_LEN + 4) as u64 {
            return Err(Error::limit(format!("an index of {index_len} bytes")).at(index_at));
        }
        let record = fetch(&source, index_at, index_len.into())?;
        let mut index = Index::decode(&record, index_at, header_bytes, &header.tensors, &limits)?;
        index
            .take_base(header.base_state)
            .map_err(|e| e.at(index_at))?;
        Ok(Self {
            source,
            limits,
            header,
            index,
            bytes,
            header_bytes,
            index_at,
        })
    }

    /// Reads and checks one chunk.
    ///
    /// # Errors
    /// Where it is corrupt, or is not what the index says.
    pub fn chunk(&self, i: usize) -> Result<Chunk> {
        let Some(place) = self.index.chunks.get(i) else {
            let n = self.index.chunks.len();
            return Err(Error::new(
                crate::error::Kind::Layout,
                format!("chunk {i} of a delta with {n} chunks"),
            ));
        };
        if u64::from(place.length) > self.limits.max_chunk_bytes {
            let message = format!("a chunk of {} bytes", place.length);
            return Err(Error::limit(message).at(place.offset));
        }
        let name = &self.header.tensors[place.tensor as usize].name;
        let record =
            fetch(&self.source, place.offset, place.length.into()).map_err(|e| e.of(name))?;
        let chunk = Chunk::parse(record, place.offset, &self.header.tensors, &self.limits)
            .map_err(|e| e.of(name))?;
        if (chunk.header.tensor, chunk.header.tile) != (place.tensor, place.tile) {
            let message = "the chunk is not the one that the index names [F19]";
            return Err(Error::corrupt(message).at(place.offset).of(name));
        }
        Ok(chunk)
    }
}
