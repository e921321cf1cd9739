//! Readers on any bytes.

use deltawire_format::chunk::Scratch;
use deltawire_format::{Chunk, Delta, Limits, PushReader, ReadAt, Tensor};
use deltawire_kernels::Matrix;

use crate::codec::assert_in_bounds;
use crate::seal::seal_all;
use crate::with_width;

/// Small, so that a claim within the limits stays cheap.
pub(crate) const LIMITS: Limits = Limits {
    max_header_bytes: 1 << 16,
    max_tensors: 64,
    max_chunk_bytes: 1 << 20,
};

/// A `ReadAt` over a slice.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl ReadAt for Bytes<'_> {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, out)
    }
}

/// Feeds pieces whose lengths the first bytes of `data` give, and the same bytes at once.
fn push(data: &[u8], piece: usize) -> Result<Vec<Chunk>, (deltawire_format::Kind, Option<u64>)> {
    let mut reader = PushReader::new(LIMITS);
    let mut chunks = Vec::new();
    let mut fed = Ok(());
    for part in data.chunks(piece.max(1)) {
        match reader.feed(part) {
            Ok(more) => chunks.extend(more),
            Err(error) => {
                fed = Err(error);
                break;
            }
        }
    }
    match fed.and_then(|()| reader.finish()) {
        Ok(()) => Ok(chunks),
        Err(error) => Err((error.kind, error.offset)),
    }
}

/// Most dense bytes of a tensor that a state is made for.
pub(crate) const MOST: u64 = 1 << 16;

/// A state of many patterns.
pub(crate) fn pattern(tensor: &Tensor) -> Vec<u8> {
    (0..tensor.bytes()).map(|i| (i * i % 251) as u8).collect()
}

/// A delta by range.
pub(crate) fn open(data: &[u8]) -> deltawire_format::Result<Delta<Bytes<'_>>> {
    Delta::open(Bytes(data), LIMITS)
}

/// Decodes a chunk into fresh and into used memory: the results are the same, and in bounds.
///
/// Ranks are located in a base of many patterns, where that is small; `None` where they cannot be.
pub(crate) fn decode(chunk: &Chunk, tensors: &[Tensor]) -> Option<Vec<u32>> {
    let tensor = chunk.tensor(tensors);
    let place = chunk.tile_box(tensors).expect("a parsed chunk has a tile");
    let (elements, changes) = (place.elements(), chunk.header.changes);
    with_width!(tensor.width, W => {
        let mut fresh = Scratch::<W>::default();
        let first = chunk.decode(tensors, &mut fresh);
        let mut used = Scratch::<W>::default();
        used.positions.resize(99, 7);
        let _ = chunk.decode(tensors, &mut used);
        assert_eq!(first.is_ok(), chunk.decode(tensors, &mut used).is_ok());
        first.ok()?;
        assert_eq!(fresh.positions, used.positions);
        assert_eq!(fresh.is_by_class(), used.is_by_class());
        let by_class = fresh.is_by_class();
        if by_class {
            // Positions are known once the ranks are located in a base.
            assert!(fresh.positions.is_empty());
            assert_eq!(fresh.partition, used.partition);
            assert_in_bounds(&fresh.partition, changes, elements, place.rows as u32);
            if tensor.bytes() > MOST || tensor.rows > MOST {
                return None;
            }
            let base = pattern(tensor);
            let row = tensor.cols as usize * usize::from(tensor.width);
            let matrix = Matrix::new(&base, tensor.rows as usize, row).expect("sizes agree");
            let block = place.block(tensor.width);
            let located = fresh.locate(tensor, &matrix, &block);
            assert_eq!(located.is_ok(), used.locate(tensor, &matrix, &block).is_ok());
            located.ok()?;
            assert_eq!(fresh.positions, used.positions);
        }
        let mut positions = fresh.positions;
        assert_eq!(positions.len(), changes as usize);
        assert_eq!(positions.len(), fresh.values.len());
        if by_class {
            positions.sort_unstable();
        }
        assert!(positions.windows(2).all(|p| p[0] < p[1]));
        assert!(positions.last().is_none_or(|&p| p < elements));
        Some(positions)
    })
}

/// Any bytes: the same outcome for any pieces, and the same chunks by range.
pub fn stream(data: &[u8]) {
    let whole = push(data, usize::MAX);
    for piece in [1, 1 + data.len() % 61] {
        match (&whole, &push(data, piece)) {
            (Ok(a), Ok(b)) => {
                assert_eq!(a.len(), b.len());
                assert!(a.iter().zip(b).all(|(a, b)| a.header == b.header));
            }
            (Err(a), Err(b)) => assert_eq!(a.0, b.0),
            (a, b) => panic!("pieces of {piece}: {:?} but {:?}", a.is_ok(), b.is_ok()),
        }
    }
    let by_range = open(data);
    if let Ok(delta) = &by_range {
        for i in 0..delta.index.chunks.len() {
            if let Ok(chunk) = delta.chunk(i) {
                decode(&chunk, &delta.header.tensors);
            }
        }
    }
    if let Ok(chunks) = whole {
        let delta = by_range.expect("what reads front to back opens by range");
        assert_eq!(delta.index.chunks.len(), chunks.len());
        let tensors = &delta.header.tensors;
        for (i, chunk) in chunks.iter().enumerate() {
            let other = delta
                .chunk(i)
                .expect("what reads front to back reads by range");
            assert_eq!((other.header, other.offset), (chunk.header, chunk.offset));
            assert_eq!(decode(&other, tensors), decode(chunk, tensors));
        }
    }
}

/// As `stream`, with right checksums.
pub fn sealed(data: &[u8]) {
    let mut data = data.to_vec();
    seal_all(&mut data);
    stream(&data);
}
