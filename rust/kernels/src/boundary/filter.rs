//! Bounds by which most elements are known to be unchanged, without their roots and divisions.
//!
//! # The test with room
//!
//! Let `w` be a normal number, `q = 2^-23 p` its unit in the last place with `p` a power of two, and `s` the
//! offset of `|w|`, in units, from the BF16 value that it rounds to: the low 16 bits with a sign. The borders
//! of the rounding cell lie 2^15 units from its middle, but at a power of two, below which units are half as
//! large: seen from below, the border above is then farther; seen from above, the one below is 2^14 units
//! from the middle, and `w` no nearer to it than that. So, with
//!
//! ```text
//! below = min(2^15 + s, 2^14)    above = min(2^15 - s, 2^14)
//! ```
//!
//! at least so many units lie between `|w|` and the nearest weights outside the cell. (On a border the sign of
//! `s` may be the wrong one; but one of these is zero then.) They are at most 2^17 units away, so that they
//! are below `(1 + 2^-6) |w|`. (Beyond the largest cell there is none, and the definition asks for none.)
//!
//! Let `x` be the nearest weight outside on one side, `D` as many units from `w`, and `c` be `decay`. Each
//! rounding changes a result by a factor of `1 + 2^-24` at most, or a product below the normal numbers by
//! 2^-150. So `F(x) = fl(fl(x c) + u)`, or `fl(x c + u)`, differs from `x + u` by
//!
//! ```text
//! |x| (|c - 1| + 2^-23 (1 + 2^-23) c) + 2^-24 |u| + 2^-149
//! ```
//!
//! at most. The definition wants `F(x)` to lie on the same side of `w` as `x`, and farther from it than
//! `margin (2^-23 (|w| + 2 |u|) + 2^-149)`, but for roundings of relative size 2^-50. On the side where `w`
//! came from, `u` brings `F(x)` nearer to `w`. There it suffices that
//!
//! ```text
//! D q > C |w| + E |u| + T                                                                        (1)
//! C = (1 + 2^-6) |c - 1| + (1 + 2^-5) 2^-23 c + 2^-23 margin
//! E = (1 + 2^-20) (1 + 2^-22 margin)
//! T = 2^-146 (1 + margin)
//! ```
//!
//! On the other side `u` takes it farther away, and `D q > C |w| + T` suffices while `2^-22 margin < 1/2`.
//! As `|w| < 2 p`, and `p` is at least 2^-126, this holds if
//!
//! ```text
//! D > 2^23 (2 C + 2^-19 (1 + margin))                                                            (2)
//! ```
//!
//! where the right side is taken as infinite if it exceeds 2^14, as with any larger margin.
//! Where these hold, nothing overflows but away from `w`: not `x c`, as (1) and (2) keep it beyond `w`, nor
//! the sum, as they keep that beyond `w` too.
//!
//! # The update
//!
//! Let `0 < root <= 1`, `eps >= 0` and `|alpha| <= 1`; for other steps all elements are kept. Rounding is
//! monotone; roots, and their quotients by `root`, are normal or zero; so
//!
//! ```text
//! d >= eps    d >= (1 - 2^-24)^2 sqrt(v) / root
//! ```
//!
//! With an approximation of `1 / sqrt(v)` that is too small by a factor of `1 - 1.5 * 2^-12` at most (or is
//! infinite, for `v` below the normal numbers), let
//!
//! ```text
//! r = min(1 / (eps root), approximation)    y = fl(fl((1 + 2^-10) |m| + lift) r)
//! ```
//!
//! with `lift` at least 2^-126 and 2^-149 / |alpha|, which is above what rounding `alpha m` can add where
//! that is below the normal numbers. The 2^-10 exceeds the error of the approximation by enough for all
//! roundings of `u` and of `y`, so that, but for products below the normal numbers,
//!
//! ```text
//! |u| <= |alpha| root y + 2^-148                                                                 (3)
//! ```
//!
//! As `root <= 1`, also `y >= |m| / d`: where `m / d` is infinite, so is `y`. `alpha m` is finite if `m` is. So
//! where `u` is infinite or NaN, the right side of (3) is one of these too, or `v` is below zero.
//!
//! # What is compared
//!
//! (1) times 2^23, with (3), and (2), in the constants a factor of `1 + 2^-20` for the roundings of the
//! comparison and those of relative size 2^-50. The left side of (1) is exact, or infinite and then above
//! all that is finite. An element is kept if a comparison does not say "greater": infinity or NaN as `w`,
//! `m` or `v` makes the right side of (1) one of these if it counts. An element is also kept if `w` is below
//! the normal numbers, as `p` is taken as 0 then, or if the sign of `v` is set.

use super::Step;

/// What `|m|` is multiplied by.
pub(super) const GROWTH: f32 = 1.0 + 1.0 / 1024.0;
/// The greatest distance from a border that counts; cells have twice this on both sides of their middle.
pub(super) const REACH: i32 = 1 << 14;

/// Constants of the comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Added to `|m|`.
    pub(super) lift: f32,
    /// `1 / (eps root)`.
    pub(super) limit: f32,
    /// What `y` is multiplied by in (1).
    pub(super) update: f32,
    /// What `|w|` is multiplied by in (1).
    pub(super) weight: f32,
    /// What is always added in (1).
    pub(super) least: f32,
    /// The sign of `alpha`.
    pub(super) sign: i32,
    /// The greatest offset towards the border on the other side with which (2) holds.
    pub(super) behind: i32,
}

/// The nearest float that is not below.
fn up(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest) < x {
        nearest.next_up()
    } else {
        nearest
    }
}

impl Bounds {
    /// For a step; such that all elements are kept if nothing is known of its updates.
    pub(super) fn new(step: &Step) -> Self {
        let two = |power| f64::powi(2.0, power);
        let [decay, alpha, root, eps] =
            [step.decay, step.alpha.abs(), step.root, step.eps].map(f64::from);
        let margin = f64::from(step.margin);
        let known = root > 0.0 && root <= 1.0 && eps >= 0.0 && alpha <= 1.0;
        // Nothing is greater than NaN.
        let scale = if known {
            two(23) * (1.0 + two(-20))
        } else {
            f64::NAN
        };
        let weight = (1.0 + two(-6)) * (decay - 1.0).abs()
            + (1.0 + two(-5)) * two(-23) * decay
            + two(-23) * margin;
        let update = alpha * root * (1.0 + two(-20)) * (1.0 + two(-22) * margin);
        let lift = if alpha > 0.0 { two(-149) / alpha } else { 0.0 };
        let behind = scale * (2.0 * weight + two(-19) * (1.0 + margin));
        Self {
            lift: up(lift.max(two(-126))),
            limit: up(1.0 / (eps * root)),
            update: up(scale * update),
            weight: up(scale * weight),
            least: up(scale * two(-146) * (1.0 + margin)),
            sign: (step.alpha.to_bits() & (1 << 31)) as i32,
            behind: if behind < f64::from(REACH) {
                2 * REACH - 1 - behind as i32
            } else {
                i32::MIN
            },
        }
    }
}
