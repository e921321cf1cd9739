//! Changes by class where they are meant to pay: trained weights of every float format, rows that differ,
//! master weights.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{alone, open, round_trip, tensor, Case, Random};
use deltawire_format::codec::{classes, Partition};
use deltawire_format::{with_word, Profile};
use deltawire_kernels::ordered::{advance, step, Order};
use deltawire_kernels::Word;

/// Bits below the exponent, exponent bits, and the exponent's bias.
const FORMATS: [(&str, u32, u32, i32); 5] = [
    ("F8_E4M3", 3, 4, 7),
    ("F8_E5M2", 2, 5, 15),
    ("F16", 10, 5, 15),
    ("BF16", 7, 8, 127),
    ("F32", 23, 8, 127),
];

/// The nearest pattern of a format, ties to even, for what its exponents can say.
fn pattern(value: f64, mantissa: u32, bits: u32, bias: i32) -> u64 {
    let sign = u64::from(value.is_sign_negative()) << (mantissa + bits);
    let exponent = (value.abs().log2().floor() as i32).max(1 - bias);
    let units = value.abs() / f64::from(exponent - mantissa as i32).exp2();
    let most = (1u64 << (mantissa + bits)) - 2;
    // A mantissa that rounds up carries into the exponent.
    let first = u64::from((exponent + bias - 1) as u32) << mantissa;
    sign | (first + units.round_ties_even() as u64).min(most)
}

/// Weights and what one Adam step makes of them: each moves by about `rate` times the weights' spread,
/// whatever its size.
fn trained<W: Word>(dtype: &str, rows: u64, cols: u64, rate: f64) -> Case {
    let &(_, mantissa, bits, bias) = FORMATS.iter().find(|f| f.0 == dtype).unwrap();
    // FP8 weights are scaled so that the largest fit.
    let spread = if W::WIDTH == 1 { 40.0 } else { 0.02 };
    let mut random = Random(11);
    let (mut base, mut new) = (vec![], vec![]);
    for _ in 0..rows * cols {
        let weight = spread * random.normal();
        // m / sqrt(v) is about normal, and never much above one.
        let moved = (0.4 * random.normal()).clamp(-1.0, 1.0);
        for (value, out) in [
            (weight, &mut base),
            (weight - rate * spread * moved, &mut new),
        ] {
            W::from_u64(pattern(value, mantissa, bits, bias)).append(out);
        }
    }
    alone(tensor(dtype, rows, cols), base, new)
}

/// The partitions of a delta whose chunks all are by class.
fn partitions<W: Word>(bytes: &[u8]) -> Vec<Partition<W>> {
    let delta = open(bytes).unwrap();
    let tensors = &delta.header.tensors;
    let chunks = (0..delta.index.chunks.len()).map(|i| delta.chunk(i).unwrap());
    chunks
        .map(|chunk| chunk.partition::<W>(tensors).unwrap().unwrap())
        .collect()
}

fn changed(bytes: &[u8]) -> u64 {
    open(bytes).unwrap().index.changed
}

#[test]
fn every_float_format() {
    // As many elements change as in a step of fine-tuning: one in some hundred, in FP32 all.
    for (dtype, rate) in [
        ("F8_E4M3", 0.001),
        ("F8_E5M2", 0.002),
        ("F16", 2e-5),
        ("BF16", 1e-4),
        ("F32", 1e-4),
    ] {
        let (rows, cols) = (256, 256);
        let width = tensor(dtype, 1, 1).width;
        with_word!(width, W => {
            let case = trained::<W>(dtype, rows, cols, rate);
            let compact = round_trip(&case, Profile::Compact);
            let fast = round_trip(&case, Profile::Fast);
            let found = partitions::<W>(&compact);
            let n = changed(&compact);
            assert!(found.iter().all(|p| p.classes > 8), "{dtype}");
            let [a, b] = [&compact, &fast].map(|d| 8.0 * d.len() as f64 / n as f64);
            assert!(a < 0.85 * b, "{dtype}: {a} and {b} bits a change");
        });
    }
}

/// Every element moves by many units in the last place: about as many bits each as the moves differ, not 32.
#[test]
fn master_weights() {
    // Learning rates of 1e-6 and 1e-5 for weights of 0.02.
    for (rate, most) in [(5e-5, 11.5), (5e-4, 15.0)] {
        let case = trained::<u32>("F32", 256, 256, rate);
        let bits = Profile::ALL.map(|p| 8.0 * round_trip(&case, p).len() as f64 / 65536.0);
        let bytes = round_trip(&case, Profile::Compact);
        assert!(changed(&bytes) > 65536 * 99 / 100);
        assert!(partitions::<u32>(&bytes).iter().all(|p| p.classes > 8));
        let [compact, fast, overwrite] = bits;
        assert!(compact < most && compact + 2.0 < fast, "{bits:?}");
        assert!(fast < overwrite && overwrite < 32.0, "{bits:?}");
    }
}

/// BF16 rows of an embedding, of which one in `every` is in the batch and changes in a quarter of its
/// elements; the others keep all.
fn embedding(rows: u64, cols: u64, every: u64) -> Case {
    let mut random = Random(12);
    let (mut base, mut new) = (vec![], vec![]);
    for _ in 0..rows {
        let touched = random.bits().is_multiple_of(every);
        for _ in 0..cols {
            let old = ((0.02 * random.normal() as f32).to_bits() >> 16) as u16;
            let moves = touched && random.bits().is_multiple_of(4);
            let up = if random.bits() & 1 == 1 { 1 } else { u16::MAX };
            let new_value = advance(old, if moves { up } else { 0 }, Order::Float);
            base.extend_from_slice(&old.to_le_bytes());
            new.extend_from_slice(&new_value.to_le_bytes());
        }
    }
    alone(tensor("BF16", rows, cols), base, new)
}

/// The changes of a tensor of one tile in the same classes, by their definition, with all rows together.
fn without_groups(case: &Case, top: u16, classes: usize) -> Partition<u16> {
    let words = |bytes: &[u8]| -> Vec<u16> { bytes.chunks_exact(2).map(u16::read).collect() };
    let (old, new) = (words(&case.base[0]), words(&case.new[0]));
    let class = |bits: u16| {
        let below = top.saturating_sub(bits >> 7 & 0xff);
        usize::from(below).min(classes - 1)
    };
    let mut seen = vec![0u32; classes];
    let mut found = vec![vec![]; classes];
    for (&old, &new) in old.iter().zip(&new) {
        let class = class(old);
        if old != new {
            found[class].push((seen[class], step(old, new, Order::Float)));
        }
        seen[class] += 1;
    }
    Partition {
        top,
        classes,
        rows: vec![],
        counts: found.iter().map(|f| f.len() as u32).collect(),
        ranks: found.iter().flatten().map(|f| f.0).collect(),
        steps: found.iter().flatten().map(|f| f.1).collect(),
    }
}

#[test]
fn rows_that_differ_are_in_groups() {
    for (rows, cols, every) in [(2048, 128, 20), (1024, 256, 100), (512, 64, 4)] {
        let case = embedding(rows, cols, every);
        let bytes = round_trip(&case, Profile::Compact);
        let partitions = partitions::<u16>(&bytes);
        let [grouped] = &partitions[..] else {
            panic!("one tile");
        };
        assert_eq!(grouped.rows.len() as u64, rows, "{every}");
        let together = without_groups(&case, grouped.top, grouped.classes);
        let size = |partition: &Partition<u16>| {
            let mut stream = vec![];
            classes::encode(partition, &mut classes::Scratch::default(), &mut stream);
            let mut back = Partition::default();
            let count = partition.ranks.len() as u32;
            let elements = (rows * cols) as u32;
            classes::decode(&stream, count, elements, rows as u32, &mut back).unwrap();
            assert_eq!(&back, partition);
            8.0 * stream.len() as f64 / f64::from(count)
        };
        let (a, b) = (size(grouped), size(&together));
        println!(
            "{rows} {cols} {every}: {a} {b} {}",
            grouped.counts.len() / grouped.classes
        );
        assert!(a < 0.8 * b, "{a} and {b} bits a change");
    }
}
