//! A made-up BF16 matrix and one step of it, as `benches/synth.py` makes policies: normal masters, a
//! chance of change that doubles with each octave towards zero, steps of one ULP.

use deltawire_kernels::ordered::{advance, Order};

/// Rows and columns: 16.8 M elements, 32 MiB a side, more than the caches near a core hold.
pub(crate) const ROWS: usize = 4096;
/// Columns.
pub(crate) const COLS: usize = 4096;

/// Both states as bytes.
pub(crate) struct Policy {
    /// Before the step.
    pub(crate) base: Vec<u8>,
    /// After it; about one percent of the elements differ.
    pub(crate) new: Vec<u8>,
}

/// Uniform numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// With a variance of one. A sum of uniform numbers is near enough to a normal one around zero, where
    /// it matters.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..4).map(|_| self.unit() - 0.5).sum::<f32>() * 1.73
    }
}

/// The same policy every time.
pub(crate) fn policy() -> Policy {
    let mut random = Random(1);
    let mut base = Vec::with_capacity(ROWS * COLS * 2);
    let mut new = Vec::with_capacity(ROWS * COLS * 2);
    for _ in 0..ROWS * COLS {
        let weight = random.normal() * 0.022;
        let old = (weight.to_bits() >> 16) as u16;
        // 0.18 is the mean of |m| / sqrt(v) under Adam with beta1 = 0.9.
        let exponent = i32::from(old >> 7 & 0xff) - 127;
        let chance = 1.1e-6 * 0.18 * (7.0 - exponent as f32).exp2();
        let step = match random.unit() {
            u if u < chance / 2.0 => 1,
            u if u < chance => u16::MAX,
            _ => 0,
        };
        base.extend_from_slice(&old.to_le_bytes());
        new.extend_from_slice(&advance(old, step, Order::Float).to_le_bytes());
    }
    Policy { base, new }
}
