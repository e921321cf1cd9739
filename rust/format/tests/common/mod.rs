//! What the tests share: made-up tensors, and whole deltas written and applied.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::sync::Arc;

use deltawire_format::apply::{apply_chunk, commit, plan, KEEP};
use deltawire_format::writer::Pair;
use deltawire_format::{
    Delta, Error, Header, Limits, Profile, PushReader, ReadAt, Tensor, Tiling, Writer,
};
use deltawire_kernels::{Matrix, Target};

/// Uniform and normal numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// In `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let words = (0..n.div_ceil(8)).flat_map(|_| self.bits().to_le_bytes());
        words.take(n).collect()
    }
}

/// A delta by range.
pub struct Bytes<'a>(pub &'a [u8]);

impl ReadAt for Bytes<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, out)
    }
}

pub fn open(bytes: &[u8]) -> Result<Delta<Bytes<'_>>, Error> {
    Delta::open(Bytes(bytes), Limits::default())
}

/// A tensor that is cut as the writer of a checkpoint cuts it.
pub fn tensor(dtype: &str, rows: u64, cols: u64) -> Tensor {
    let tile = Tiling::default().tile("w", dtype, rows, cols);
    Tensor::new("w".into(), dtype.into(), vec![rows, cols], tile).unwrap()
}

/// Both states of one tensor.
pub fn alone(tensor: Tensor, base: Vec<u8>, new: Vec<u8>) -> Case {
    Case {
        tensors: vec![tensor],
        base: vec![base],
        new: vec![new],
    }
}

/// Writes a delta, applies it in every way, and returns it.
pub fn round_trip(case: &Case, profile: Profile) -> Vec<u8> {
    let bytes = write(case, profile, 2);
    let mut state = case.base.clone();
    apply(&bytes, case, &mut state).unwrap();
    assert!(state == case.new);
    state.clone_from(&case.base);
    feed(&bytes, 1 << 16, &mut state, case).unwrap();
    assert!(state == case.new);
    bytes
}

pub fn pool(threads: usize) -> Arc<rayon::ThreadPool> {
    Arc::new(
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap(),
    )
}

#[derive(Clone, Debug)]
pub struct Case {
    pub tensors: Vec<Tensor>,
    pub base: Vec<Vec<u8>>,
    pub new: Vec<Vec<u8>>,
}

fn row_bytes(tensor: &Tensor) -> usize {
    tensor.cols as usize * usize::from(tensor.width)
}

pub fn matrices<'a>(tensors: &[Tensor], bytes: &'a [Vec<u8>]) -> Vec<Matrix<'a>> {
    tensors
        .iter()
        .zip(bytes)
        .map(|(t, b)| Matrix::new(b, t.rows as usize, row_bytes(t)).unwrap())
        .collect()
}

pub fn targets<'a>(tensors: &[Tensor], bytes: &'a mut [Vec<u8>]) -> Vec<Target<'a>> {
    tensors
        .iter()
        .zip(bytes)
        .map(|(t, b)| Target::new(b, t.rows as usize, row_bytes(t)).unwrap())
        .collect()
}

pub fn write(case: &Case, profile: Profile, threads: usize) -> Vec<u8> {
    let header = Header {
        run: "run".into(),
        version: 8,
        base_version: Some(7),
        profile: profile.name().into(),
        tensors: case.tensors.clone(),
        ..Header::default()
    };
    let mut w = Writer::new(
        Vec::new(),
        header,
        profile,
        Limits::default(),
        pool(threads),
    )
    .unwrap();
    let (base, new) = (
        matrices(&case.tensors, &case.base),
        matrices(&case.tensors, &case.new),
    );
    let pairs: Vec<Pair<'_>> = base
        .iter()
        .zip(&new)
        .enumerate()
        .map(|(i, (b, n))| Pair {
            tensor: i as u32,
            base: *b,
            new: *n,
        })
        .collect();
    w.add(&pairs, |_| Ok(())).unwrap();
    w.finish().unwrap().0
}

pub fn apply(bytes: &[u8], case: &Case, state: &mut [Vec<u8>]) -> Result<u64, Error> {
    apply_keeping(KEEP, bytes, case, state)
}

pub fn apply_keeping(
    keep: usize,
    bytes: &[u8],
    case: &Case,
    state: &mut [Vec<u8>],
) -> Result<u64, Error> {
    let delta = open(bytes)?;
    let pool = pool(2);
    let alone = vec![None; case.tensors.len()];
    let p = plan(
        &delta,
        &matrices(&case.tensors, state),
        &alone,
        true,
        keep,
        &pool,
        |_| Ok(()),
    )?;
    commit(&delta, &p, targets(&case.tensors, state), &pool)
}

pub fn feed(bytes: &[u8], piece: usize, state: &mut [Vec<u8>], case: &Case) -> Result<(), Error> {
    let mut reader = PushReader::new(Limits::default());
    for part in bytes.chunks(piece) {
        for chunk in reader.feed(part)? {
            let mut targets = targets(&case.tensors, state);
            let target = targets.swap_remove(chunk.header.tensor as usize);
            apply_chunk(&chunk, &case.tensors, target)?;
        }
    }
    reader.finish()
}
