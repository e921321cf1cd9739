//! How large deltas get at worst: never much more than the tensors themselves.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{alone, round_trip, tensor, Case, Random};
use deltawire_format::dtype::{width_of, DTYPES};
use deltawire_format::Profile;

/// Random patterns, of which about `share` of 2^32 change to other random patterns.
fn noise(dtype: &str, bytes: usize, share: u64, random: &mut Random) -> Case {
    let width = usize::from(width_of(dtype).unwrap());
    let cols = 512 / width;
    let rows = bytes / 512;
    let base = random.bytes(bytes);
    let mut new = base.clone();
    for element in new.chunks_exact_mut(width) {
        if random.bits() >> 32 < share {
            let old = element.to_vec();
            while element == old {
                let bits = random.bits().to_le_bytes();
                element.copy_from_slice(&bits[..width]);
            }
        }
    }
    alone(tensor(dtype, rows as u64, cols as u64), base, new)
}

/// Bytes of a file beside what it holds: header, index and trailer of a tensor.
const FRAME: usize = 256;
/// Most bytes for each dense byte.
const MOST: f64 = 1.001;

fn check(dtype: &str, bytes: usize, share: f64) {
    let mut random = Random(bytes as u64 ^ share.to_bits());
    let case = noise(dtype, bytes, (share * 2f64.powi(32)) as u64, &mut random);
    for profile in Profile::ALL {
        let size = round_trip(&case, profile).len();
        assert!(
            size as f64 <= bytes as f64 * MOST + FRAME as f64,
            "{dtype}, {bytes} bytes, {share} of them changed, {}: {size} bytes",
            profile.name()
        );
    }
}

/// Noise cannot be made smaller; it is not made larger by more than a thousandth either.
#[test]
fn random_changes() {
    for (dtype, _) in DTYPES {
        for share in [0.0, 0.5, 1.0] {
            check(dtype, 64 << 10, share);
        }
    }
    for dtype in ["U8", "BF16", "F64"] {
        check(dtype, 100 << 10, 1.0);
        for share in [0.0, 0.5, 1.0] {
            check(dtype, 1 << 20, share);
        }
    }
}

/// Where a few elements stay as they are among noise, they are sent along rather than named.
#[test]
fn random_changes_with_gaps() {
    for dtype in ["U8", "F8_E5M2", "BF16", "F32", "F64"] {
        for share in [0.9, 0.94, 0.95, 0.99, 0.996] {
            check(dtype, 64 << 10, share);
        }
        check(dtype, 512 << 10, 0.95);
    }
}
