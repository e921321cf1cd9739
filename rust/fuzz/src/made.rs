//! Deltas that the writer makes today: a corpus that follows the format.

use std::sync::Arc;

use deltawire_format::writer::{Pair, Summary};
use deltawire_format::{Header, Limits, Profile, Tensor, Writer};
use deltawire_kernels::ordered::advance;
use deltawire_kernels::{Matrix, Word};

use crate::{pool, with_width};

/// Uniform numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }
}

/// Both states of a tensor.
pub(crate) struct Case {
    pub(crate) entry: Tensor,
    pub(crate) base: Vec<u8>,
    pub(crate) new: Vec<u8>,
}

impl Case {
    /// The tensor with these bytes.
    pub(crate) fn matrix<'a>(&self, bytes: &'a [u8]) -> Matrix<'a> {
        let (rows, row) = self.rows();
        Matrix::new(bytes, rows, row).expect("sizes agree")
    }

    /// Both states, for a writer.
    pub(crate) fn pair(&self, tensor: u32) -> Pair<'_> {
        Pair {
            tensor,
            base: self.matrix(&self.base),
            new: self.matrix(&self.new),
        }
    }

    /// Rows and bytes of a row.
    pub(crate) fn rows(&self) -> (usize, usize) {
        let entry = &self.entry;
        (
            entry.rows as usize,
            entry.cols as usize * usize::from(entry.width),
        )
    }

    /// Some exponents; row `i` changes an element in `every[i % every.len()]` (0: none), by up to `far`.
    pub(crate) fn steps(entry: Tensor, every: &[u64], far: u64, random: &mut Random) -> Self {
        let width = entry.width;
        with_width!(width, W => Self::steps_of::<W>(entry, every, far, random))
    }

    fn steps_of<W: Word>(entry: Tensor, every: &[u64], far: u64, random: &mut Random) -> Self {
        let (mut base, mut new) = (Vec::new(), Vec::new());
        let order = entry.order();
        let bits = 8 * u32::from(entry.width);
        let (shift, mask) = entry
            .class_map(0, 1)
            .map_or((bits - 4, 7), |map| (map.shift, u64::from(map.mask)));
        for row in 0..entry.rows {
            let every = every[row as usize % every.len()];
            for _ in 0..entry.cols {
                // Each exponent is half as frequent as the one above it.
                let exponent = mask / 2 - u64::from(random.bits().leading_zeros()).min(mask / 2);
                let mantissa = random.bits() & ((1 << shift) - 1);
                let magnitude = exponent << shift | mantissa;
                let sign = random.below(2) << (bits - 1);
                let old = W::from_u64(magnitude | sign);
                old.append(&mut base);
                let step = match every > 0 && random.below(every) == 0 {
                    true => 1 + random.below(far),
                    false => 0,
                };
                let down = random.below(2) == 0;
                let step = if down { step.wrapping_neg() } else { step };
                advance(old, W::from_u64(step), order).append(&mut new);
            }
        }
        Self { entry, base, new }
    }
}

/// A writer for these tensors.
pub(crate) fn begin(cases: &[Case], profile: Profile) -> Writer<Vec<u8>> {
    let header = Header {
        tensors: cases.iter().map(|c| c.entry.clone()).collect(),
        profile: profile.name().to_owned(),
        ..Header::default()
    };
    let (limits, pool) = (Limits::default(), Arc::clone(pool()));
    Writer::new(Vec::new(), header, profile, limits, pool).expect("a header")
}

/// A delta of these tensors, and what the writer says of it.
pub(crate) fn write(cases: &[Case], profile: Profile) -> (Vec<u8>, Summary) {
    let mut writer = begin(cases, profile);
    for (i, case) in cases.iter().enumerate() {
        writer
            .add(&[case.pair(i as u32)], |_| Ok(()))
            .expect("a tensor");
    }
    writer.finish().expect("an index")
}

/// Small deltas by name: every width, every profile; scattered, in rows, everywhere.
pub fn made() -> Vec<(String, Vec<u8>)> {
    let mut deltas = Vec::new();
    for dtype in ["F8_E5M2", "BF16", "F32", "F64", "I16"] {
        for (kind, shape, every, far) in [
            ("few", [6, 16], &[9][..], 1),
            ("scattered", [12, 40], &[6], 1),
            ("steps", [12, 40], &[5], 9),
            ("rows", [80, 64], &[0, 0, 40, 2], 2),
            ("all", [5, 8], &[1], 3),
        ] {
            let name = format!("{kind}.{dtype}");
            let tile = [shape[0], shape[1]];
            let entry = Tensor::new(name.clone(), dtype.into(), shape.to_vec(), tile)
                .expect("the tile is allowed");
            let mut random = Random(u64::from(crc32fast::hash(name.as_bytes())));
            let case = Case::steps(entry, every, far, &mut random);
            for profile in Profile::ALL {
                let name = format!("made/{name}.{}", profile.name());
                deltas.push((name, write(std::slice::from_ref(&case), profile).0));
            }
        }
    }
    deltas
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltawire_format::codec::PositionCodec;

    #[test]
    fn they_have_classes_groups_and_other_codecs() {
        let (mut classes, mut grouped, mut flat, mut others) = (0, 0, 0, 0);
        for (name, data) in made() {
            let delta = crate::stream::open(&data).expect("a good delta");
            let tensors = &delta.header.tensors;
            for i in 0..delta.index.chunks.len() {
                let chunk = delta.chunk(i).expect("a good chunk");
                if chunk.header.positions.0 != PositionCodec::Classes {
                    others += 1;
                    continue;
                }
                let mut scratch = deltawire_format::chunk::Scratch::<u16>::default();
                if tensors[0].width != 2 {
                    continue;
                }
                chunk.decode(tensors, &mut scratch).expect("a good chunk");
                let partition = &scratch.partition;
                match (partition.needs_base(), partition.rows.is_empty()) {
                    (false, _) => flat += 1,
                    (true, true) => classes += 1,
                    (true, false) => grouped += 1,
                }
            }
            assert!(!data.is_empty(), "{name}");
        }
        assert!(
            classes > 0 && grouped > 0 && flat > 0 && others > 0,
            "{classes} {grouped} {flat} {others}"
        );
    }
}
