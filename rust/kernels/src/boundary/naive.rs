//! The definition once more, one element at a time, in wide integers and doubles: for the tests.

use super::{Found, Step, CERTAIN, EITHER, UNKNOWN};

const INFINITY: i64 = 0x7f80_0000;

pub(super) fn place(x: f32) -> i64 {
    let bits = i64::from(x.to_bits());
    if bits >> 31 == 1 {
        -1 - (bits & 0x7fff_ffff)
    } else {
        bits
    }
}

pub(super) fn value(place: i64) -> f32 {
    f32::from_bits(if place < 0 {
        (-1 - place) as u32 | 1 << 31
    } else {
        place as u32
    })
}

pub(super) fn bf16(x: f32) -> u16 {
    let bits = u64::from(x.to_bits());
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

pub(super) fn cell(pattern: u16) -> (i64, i64) {
    let odd = i64::from(pattern & 1);
    let magnitude = i64::from(pattern & 0x7fff) << 16;
    let low = (magnitude - 0x8000 + odd).max(0);
    let high = (magnitude + 0x8000 - odd).min(INFINITY);
    if pattern >> 15 == 1 {
        (-1 - high, -1 - low)
    } else {
        (low, high)
    }
}

fn neighbour(pattern: u16, by: i64) -> u16 {
    let magnitude = i64::from(pattern & 0x7fff);
    let place = by
        + if pattern >> 15 == 1 {
            -1 - magnitude
        } else {
            magnitude
        };
    if place < 0 {
        (-1 - place) as u16 | 1 << 15
    } else {
        place as u16
    }
}

/// `w c + u`, rounded once: the sum of doubles is rounded to odd (Boldo and Melquiond 2008).
fn fused(w: f32, c: f32, u: f32) -> f32 {
    let (product, term) = (f64::from(w) * f64::from(c), f64::from(u));
    let sum = product + term;
    let part = sum - product;
    let error = (product - (sum - part)) + (term - part);
    if !sum.is_finite() || error == 0.0 || sum.to_bits() & 1 == 1 {
        return sum as f32;
    }
    let away = (error > 0.0) == (sum > 0.0);
    let bits = sum.to_bits();
    f64::from_bits(if away { bits + 1 } else { bits - 1 }) as f32
}

pub(super) fn update(step: &Step, m: f32, v: f32) -> f32 {
    let denominator = v.sqrt() / step.root + step.eps;
    if step.divide_first {
        let ratio = m / denominator;
        step.alpha * ratio
    } else {
        let scaled = step.alpha * m;
        scaled / denominator
    }
}

pub(super) fn after(step: &Step, w: f32, u: f32) -> f32 {
    if step.contracted {
        return fused(w, step.decay, u);
    }
    let decayed = w * step.decay;
    decayed + u
}

/// Whether the weight before lay neither below nor above a pattern's cell.
fn excluded(step: &Step, w: f32, u: f32, pattern: u16) -> (bool, bool) {
    let (first, last) = cell(pattern);
    let size = f64::from(w).abs() + 2.0 * f64::from(u).abs();
    let slack = if u == 0.0 {
        0.0
    } else {
        f64::from(step.margin) * (2f64.powi(-23) * size + 2f64.powi(-149))
    };
    let (low, high) = (
        after(step, value(first - 1), u),
        after(step, value(last + 1), u),
    );
    let goal = f64::from(w);
    let (mut below, mut above) = if slack == 0.0 {
        (place(low) < place(w), place(high) > place(w))
    } else {
        (
            f64::from(low) < goal - slack,
            f64::from(high) > goal + slack,
        )
    };
    below &= !low.is_nan() && !w.is_nan();
    above &= !high.is_nan() && !w.is_nan();
    (
        below || first <= -1 - INFINITY && !u.is_nan(),
        above || last >= INFINITY && !u.is_nan(),
    )
}

fn element(step: &Step, w: f32, m: f32, v: f32) -> Option<(u8, u16, u16)> {
    let u = update(step, m, v);
    let new = bf16(w);
    if excluded(step, w, u, new) == (true, true) && !w.is_nan() {
        return None;
    }
    let inverse = (f64::from(w) - f64::from(u)) / f64::from(step.decay);
    let known = inverse.is_finite() && u.is_finite() && w.is_finite();
    let guess = bf16(if known { inverse as f32 } else { 0.0 });
    let (not_below, not_above) = excluded(step, w, u, guess);
    let low = neighbour(guess, if not_below { 0 } else { -1 });
    let high = neighbour(guess, i64::from(!not_above));
    let inside = excluded(step, w, u, low).0 && excluded(step, w, u, high).1;
    let two = low == guess || high == guess;
    if !(known && inside && two) {
        return Some((UNKNOWN, new, new));
    }
    if low != high {
        return Some((EITHER, guess, if low == guess { high } else { low }));
    }
    (low != new).then_some((CERTAIN, low, low))
}

pub(super) fn changes(step: &Step, w: &[f32], m: &[f32], v: &[f32], first: u32) -> Found {
    let mut found = Found::default();
    for (i, ((&w, &m), &v)) in w.iter().zip(m).zip(v).enumerate() {
        if let Some((kind, old, other)) = element(step, w, m, v) {
            found.positions.push(first + i as u32);
            found.kinds.push(kind);
            found.old.push(old);
            found.other.push(other);
        }
    }
    found
}
