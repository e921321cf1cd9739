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

#[test]
fn table() {
    let mut random = Random(7);
    for (dtype, width) in DTYPES {
        if ![
            "U8", "F8_E4M3", "F8_E5M2", "BF16", "F16", "U16", "F32", "F64", "U64",
        ]
        .contains(&dtype)
        {
            continue;
        }
        for bytes in [64 << 10, 1 << 20, 8 << 20] {
            for (name, share) in [
                ("none", 0.0),
                ("half", 0.5),
                ("75%", 0.75),
                ("90%", 0.9),
                ("99%", 0.99),
                ("255/256", 255.0 / 256.0),
                ("99.9%", 0.999),
                ("all", 1.0),
            ] {
                let case = noise(dtype, bytes, (share * 4294967296.0) as u64, &mut random);
                let sizes: Vec<f64> = Profile::ALL
                    .iter()
                    .map(|&p| {
                        let n = round_trip(&case, p).len();
                        (n as f64 - 256.0) / bytes as f64
                    })
                    .collect();
                println!(
                    "{dtype:10} {width} {bytes:8} {name:8} {:?}{}",
                    sizes.iter().map(|s| format!("{s:.5}")).collect::<Vec<_>>(),
                    if sizes.iter().any(|&s| s > 1.001) {
                        "  <-- LARGER"
                    } else {
                        ""
                    }
                );
            }
        }
    }
}
