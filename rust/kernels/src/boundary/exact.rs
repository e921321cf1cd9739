//! The test of one element, as it is defined. Everything is inlined into the loops of each processor, so
//! that these have its fused multiplications and can be vectorised: hence no branches in [`judge`].

use super::{Step, CERTAIN, EITHER, UNKNOWN};
use crate::ordered::{ordered, Order};

/// The bits of infinity: the last value in the order of floats.
const INFINITY: i32 = 0x7f80_0000;

/// The place of a value in the total order of floats, in which -0 lies below +0.
#[inline(always)]
fn place(x: f32) -> i32 {
    ordered(x.to_bits(), Order::Float) as i32
}

/// The value at a place.
#[inline(always)]
fn value(place: i32) -> f32 {
    f32::from_bits(ordered(place as u32, Order::Float))
}

/// The pattern after rounding to the nearest, ties to even. Not for NaN.
#[inline(always)]
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// First and last place of what rounds to a pattern.
#[inline(always)]
fn cell(pattern: u16) -> (i32, i32) {
    let odd = i32::from(pattern & 1);
    let magnitude = i32::from(pattern & 0x7fff) << 16;
    let low = (magnitude - 0x8000 + odd).max(0);
    let high = (magnitude + 0x8000 - odd).min(INFINITY);
    if pattern >= 0x8000 {
        (!high, !low)
    } else {
        (low, high)
    }
}

/// The pattern `by` places up.
#[inline(always)]
fn neighbour(pattern: u16, by: i16) -> u16 {
    let place = ordered(pattern, Order::Float).wrapping_add_signed(by);
    ordered(place, Order::Float)
}

/// What is added to a weight.
#[inline(always)]
fn update(step: &Step, m: f32, v: f32) -> f32 {
    let denominator = v.sqrt() / step.root + step.eps;
    if step.divide_first {
        step.alpha * (m / denominator)
    } else {
        (step.alpha * m) / denominator
    }
}

/// `F(w)`.
#[inline(always)]
fn after(step: &Step, w: f32, u: f32) -> f32 {
    if step.contracted {
        w.mul_add(step.decay, u)
    } else {
        w * step.decay + u
    }
}

/// How far a result may be from `F`; nothing where nothing is added.
#[inline(always)]
fn slack(step: &Step, w: f32, u: f32) -> f64 {
    const ULP: f64 = 1.0 / (1 << 23) as f64;
    const LEAST: f64 = ULP / (1u128 << 126) as f64;
    let size = f64::from(w).abs() + 2.0 * f64::from(u).abs();
    let slack = f64::from(step.margin) * (ULP * size + LEAST);
    if u == 0.0 {
        0.0
    } else {
        slack
    }
}

/// What a step left of one element: the weight and what was added to it.
#[derive(Clone, Copy)]
struct Left {
    w: f32,
    u: f32,
    slack: f64,
}

impl Left {
    #[inline(always)]
    fn new(step: &Step, w: f32, m: f32, v: f32) -> Self {
        let u = update(step, m, v);
        let slack = slack(step, w, u);
        Self { w, u, slack }
    }

    /// Where the weight before probably was, and whether that is a number at all.
    #[inline(always)]
    fn guess(self, step: &Step) -> (u16, bool) {
        let inverse = (f64::from(self.w) - f64::from(self.u)) / f64::from(step.decay);
        let known = inverse.is_finite() & self.u.is_finite() & self.w.is_finite();
        (bf16(inverse as f32), known)
    }

    /// Whether the weight before cannot have been below the place `first`.
    #[inline(always)]
    fn not_below(self, step: &Step, first: i32) -> bool {
        let low = after(step, value(first - 1), self.u);
        let exactly = place(low) < place(self.w);
        let roughly = f64::from(low) < f64::from(self.w) - self.slack;
        let below = if self.slack == 0.0 { exactly } else { roughly };
        // Nothing lies beyond infinity.
        ((first <= !INFINITY) & !self.u.is_nan()) | (below & !low.is_nan() & !self.w.is_nan())
    }

    /// Whether the weight before cannot have been above the place `last`.
    #[inline(always)]
    fn not_above(self, step: &Step, last: i32) -> bool {
        let high = after(step, value(last + 1), self.u);
        let exactly = place(high) > place(self.w);
        let roughly = f64::from(high) > f64::from(self.w) + self.slack;
        let above = if self.slack == 0.0 { exactly } else { roughly };
        ((last >= INFINITY) & !self.u.is_nan()) | (above & !high.is_nan() & !self.w.is_nan())
    }
}

/// What [`judge`] has to say of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    /// It serves what it did before.
    Same,
    /// It served the value that is told.
    Changed,
    /// [`before`] has to look.
    Open,
}

/// Whether an element changed, and its value before if that is certain.
#[inline(always)]
pub(super) fn judge(step: &Step, w: f32, m: f32, v: f32) -> (Verdict, u16) {
    let left = Left::new(step, w, m, v);
    let new = bf16(w);
    let (first, last) = cell(new);
    let same = left.not_below(step, first) & left.not_above(step, last) & !w.is_nan();
    let (guess, known) = left.guess(step);
    let (first, last) = cell(guess);
    let certain = known & left.not_below(step, first) & left.not_above(step, last);
    let verdict = if same | (certain & (guess == new)) {
        Verdict::Same
    } else if certain {
        Verdict::Changed
    } else {
        Verdict::Open
    };
    (verdict, guess)
}

/// What an element that may have changed served before: kind, value, other value. `None` if it turns out
/// that it did not change.
#[inline(always)]
pub(super) fn before(step: &Step, w: f32, m: f32, v: f32) -> Option<(u8, u16, u16)> {
    let left = Left::new(step, w, m, v);
    let new = bf16(w);
    let unknown = Some((UNKNOWN, new, new));
    let (guess, known) = left.guess(step);
    if !known {
        return unknown;
    }
    let (first, last) = cell(guess);
    // Wider where a cell beyond is possible; two cells at most are told.
    let (low, high) = match (left.not_below(step, first), left.not_above(step, last)) {
        (true, true) if guess == new => return None,
        (true, true) => return Some((CERTAIN, guess, guess)),
        (false, true) => (neighbour(guess, -1), guess),
        (true, false) => (guess, neighbour(guess, 1)),
        (false, false) => return unknown,
    };
    let inside = if low == guess {
        left.not_above(step, cell(high).1)
    } else {
        left.not_below(step, cell(low).0)
    };
    if inside {
        // The likelier one first.
        Some((EITHER, guess, if low == guess { high } else { low }))
    } else {
        unknown
    }
}
