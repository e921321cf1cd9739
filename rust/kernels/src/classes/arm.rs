//! The same with NEON.

use super::batch::{class_numbers, Simd, PLANES};
use super::ClassMap;
use crate::{neon, Word};

pub(super) struct Neon;

impl Simd for Neon {
    #[inline(always)]
    fn planes<W: Word>(bytes: &[u8], map: &ClassMap) -> [u64; PLANES] {
        neon::planes(match W::WIDTH {
            1 | 2 | 4 => neon::below_top::<W>(bytes, map.shift, map.mask, map.top, map.count - 1),
            _ => neon::vectors(&class_numbers::<W>(bytes, map)),
        })
    }
}
