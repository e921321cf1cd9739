//! The AdamW boundary test: which BF16 values a step may have changed, from what the step left.
//!
//! `F(w)`, what a step makes of the weight `w`, rises with `w`, and an element serves `bf16(F(w))`. It is
//! known to be unchanged if the next weight below the rounding cell of what it serves leads below the
//! weight that the step left, and the next one above it leads above. So no copy of the weights before
//! the step is needed, and nothing that changed can be missed.
//!
//! - `filter`: drops most of what did not change, by bounds that need neither roots nor divisions
//! - `exact`: the test as it is defined, and the value before, for what is left
//!
//! `tests/boundary_twin.py` is the definition; the results are the same, bit for bit.

mod exact;

#[cfg(target_arch = "x86_64")]
mod filter;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

use crate::block::prefetch;
#[cfg(target_arch = "x86_64")]
use crate::features;
use crate::scan::{Positions, GROUP};
use exact::Verdict;

/// The value before is known.
pub const CERTAIN: u8 = 0;
/// The value before is one of two neighbours.
pub const EITHER: u8 = 1;
/// Nothing is known of the value before.
pub const UNKNOWN: u8 = 2;

/// Scalars of one step.
///
/// `d = sqrt(v) / root + eps`; `u = (alpha * m) / d`, or `alpha * (m / d)` if `divide_first`;
/// `F(w) = w * decay + u`, rounded once if `contracted`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// What a weight is multiplied by: `1 - lr * weight_decay`.
    pub decay: f32,
    /// What the first moment is multiplied by: `-lr / (1 - beta1^t)`.
    pub alpha: f32,
    /// What the root of the second moment is divided by: `sqrt(1 - beta2^t)`.
    pub root: f32,
    /// What is added to the denominator.
    pub eps: f32,
    /// Whether the moments are divided before `alpha` comes in.
    pub divide_first: bool,
    /// Whether the update is added with a fused multiplication.
    pub contracted: bool,
    /// By how many units in the last place an optimizer's result may differ from `F`.
    pub margin: u32,
}

/// Elements that may have changed, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Their numbers.
    pub positions: Vec<u32>,
    /// What is known of the value before: [`CERTAIN`], [`EITHER`] or [`UNKNOWN`].
    pub kinds: Vec<u8>,
    /// The value before if it is certain, the lower of two; the value now if nothing is known.
    pub old: Vec<u16>,
    /// The same, or the higher of two.
    pub other: Vec<u16>,
}

impl Found {
    /// Forgets the elements and keeps the memory.
    pub fn clear(&mut self) {
        self.positions.clear();
        self.kinds.clear();
        self.old.clear();
        self.other.clear();
    }
}

/// Bytes of each array that memory is asked for before it is used.
const AHEAD: usize = 4096;
/// Elements that are filtered before some that are left are tested: few enough to be in a cache still.
const PART: usize = 8192;
/// Elements that are tested at a time.
const BATCH: usize = 512;

/// What a step left. Element 0 has the number `first`.
#[derive(Clone, Copy)]
struct Elements<'a> {
    w: &'a [f32],
    m: &'a [f32],
    v: &'a [f32],
    first: u32,
}

/// Elements that are tested at a time, side by side.
struct Batch {
    positions: [u32; BATCH],
    w: [f32; BATCH],
    m: [f32; BATCH],
    v: [f32; BATCH],
    verdicts: [Verdict; BATCH],
    kinds: [u8; BATCH],
    old: [u16; BATCH],
    other: [u16; BATCH],
}

impl Batch {
    #[inline(always)]
    fn new() -> Self {
        Self {
            positions: [0; BATCH],
            w: [0.0; BATCH],
            m: [0.0; BATCH],
            v: [0.0; BATCH],
            verdicts: [Verdict::Same; BATCH],
            kinds: [0; BATCH],
            old: [0; BATCH],
            other: [0; BATCH],
        }
    }

    /// Tests the elements with these numbers, moves those that may have changed to the front, and says how
    /// many they are.
    #[inline(always)]
    fn test(&mut self, step: &Step, elements: Elements<'_>, positions: &[u32]) -> usize {
        let Elements { w, m, v, first } = elements;
        let count = positions.len().min(BATCH);
        for (i, &position) in positions[..count].iter().enumerate() {
            let at = position.wrapping_sub(first) as usize;
            self.positions[i] = position;
            (self.w[i], self.m[i], self.v[i]) = (w[at], m[at], v[at]);
        }
        // All of them, though fewer may be there: vectors then have no remainder.
        for i in 0..BATCH {
            (self.verdicts[i], self.old[i]) = exact::judge(step, self.w[i], self.m[i], self.v[i]);
        }
        let mut kept = 0;
        for i in 0..count {
            let (kind, old, other) = match self.verdicts[i] {
                Verdict::Open => match exact::before(step, self.w[i], self.m[i], self.v[i]) {
                    Some(before) => before,
                    None => continue,
                },
                _ => (CERTAIN, self.old[i], self.old[i]),
            };
            // Written in any case: which are kept cannot be predicted.
            self.positions[kept] = self.positions[i];
            (self.kinds[kept], self.old[kept], self.other[kept]) = (kind, old, other);
            kept += usize::from(self.verdicts[i] != Verdict::Same);
        }
        kept
    }
}

/// Appends the numbers of elements `part` that `mask_group` cannot rule out.
#[inline(always)]
fn sift(
    elements: Elements<'_>,
    part: Range<usize>,
    out: &mut Vec<u32>,
    mask_group: &impl Fn(&[f32], &[f32], &[f32]) -> u64,
) {
    let mut positions = Positions::new(out);
    let mut at = elements.first.wrapping_add(part.start as u32);
    let [w, m, v] = [elements.w, elements.m, elements.v].map(|all| all[part.clone()].chunks(GROUP));
    for ((w, m), v) in w.zip(m).zip(v) {
        for line in 0..GROUP / 16 {
            for start in [w.as_ptr(), m.as_ptr(), v.as_ptr()] {
                prefetch(start.cast::<u8>().wrapping_add(AHEAD + 64 * line));
            }
        }
        let mask = if w.len() == GROUP {
            mask_group(w, m, v)
        } else {
            (1 << w.len()) - 1
        };
        positions.push(mask, at);
        at = at.wrapping_add(GROUP as u32);
    }
    positions.finish();
}

/// The whole test; `mask_group` has a bit set for each of 64 elements that it cannot rule out.
#[inline(always)]
fn run(
    step: &Step,
    elements: Elements<'_>,
    out: &mut Found,
    mask_group: impl Fn(&[f32], &[f32], &[f32]) -> u64,
) {
    let mut batch = Batch::new();
    let count = elements.w.len();
    // Behind those that were found, the elements that were let through wait.
    let mut found = out.positions.len();
    for start in (0..count).step_by(PART) {
        let end = count.min(start + PART);
        sift(elements, start..end, &mut out.positions, &mask_group);
        // Whole batches only, but at the end.
        let least = if end < count { BATCH } else { 1 };
        let mut next = found;
        while out.positions.len() - next >= least {
            let waiting = &out.positions[next..];
            let tested = waiting.len().min(BATCH);
            let kept = batch.test(step, elements, &waiting[..tested]);
            out.positions[found..found + kept].copy_from_slice(&batch.positions[..kept]);
            out.kinds.extend_from_slice(&batch.kinds[..kept]);
            out.old.extend_from_slice(&batch.old[..kept]);
            out.other.extend_from_slice(&batch.other[..kept]);
            found += kept;
            next += tested;
        }
        out.positions.drain(found..next);
    }
}

fn run_scalar(step: &Step, elements: Elements<'_>, out: &mut Found) {
    run(step, elements, out, |_, _, _| u64::MAX);
}

/// Appends the elements whose BF16 value may have changed in a step that left the weights `w` and the
/// moments `m` and `v`. Element `i` has the number `first + i`.
///
/// `None` where `decay` is not positive and finite: `F` does not rise then, and nothing is appended.
///
/// # Panics
/// Where the slices differ in length, or a number does not fit in 32 bits.
#[must_use]
pub fn changes(
    step: &Step,
    w: &[f32],
    m: &[f32],
    v: &[f32],
    first: u32,
    out: &mut Found,
) -> Option<()> {
    assert!(w.len() == m.len() && w.len() == v.len());
    assert!(w.len() as u64 <= (1 << 32) - u64::from(first));
    if !(step.decay > 0.0 && step.decay.is_finite()) {
        return None;
    }
    let elements = Elements { w, m, v, first };
    #[cfg(target_arch = "x86_64")]
    {
        if features::avx512() && features::fma() {
            // SAFETY: the features were just detected.
            unsafe { x86::run_avx512(step, elements, out) };
            return Some(());
        }
        if features::avx2() && features::fma() {
            // SAFETY: the features were just detected.
            unsafe { x86::run_avx2(step, elements, out) };
            return Some(());
        }
    }
    run_scalar(step, elements, out);
    Some(())
}
