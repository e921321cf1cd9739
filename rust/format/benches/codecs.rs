//! One tile encoded, decoded and applied under each profile, one thread, in dense bytes a second.
//!
//! Everything a delta of one tile takes is in it: comparison and both digests, coding, header and
//! index on one side; checksums, the tile's digests, decoding and the scatter on the other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap ends the benchmark")]

#[path = "../../kernels/benches/policy/mod.rs"]
mod policy;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, BatchSize, Criterion, Throughput};
use deltawire_format::apply::{apply_chunk, commit, plan, KEEP};
use deltawire_format::writer::Pair;
use deltawire_format::{Delta, Header, Limits, Profile, ReadAt, Tensor, Writer};
use deltawire_kernels::{Matrix, Target};
use policy::{policy, COLS};

/// 2^20 elements, as many as a writer puts into a tile as a rule.
const ROWS: usize = 256;
const LENGTH: usize = 2 * ROWS * COLS;

struct Bytes(Vec<u8>);

impl ReadAt for Bytes {
    fn size(&self) -> u64 {
        self.0.as_slice().size()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.as_slice().read_at(offset, out)
    }
}

fn matrix(bytes: &[u8]) -> Matrix<'_> {
    Matrix::new(bytes, ROWS, 2 * COLS).unwrap()
}

fn target(bytes: &mut [u8]) -> Target<'_> {
    Target::new(bytes, ROWS, 2 * COLS).unwrap()
}

fn encode(profile: Profile, pool: &Arc<rayon::ThreadPool>, base: &[u8], new: &[u8]) -> Vec<u8> {
    let shape = [ROWS as u64, COLS as u64];
    let tensor = Tensor::new("w".into(), "BF16".into(), shape.to_vec(), shape).unwrap();
    let header = Header {
        version: 1,
        base_version: Some(0),
        profile: profile.name().into(),
        tensors: vec![tensor],
        ..Header::default()
    };
    let limits = Limits::default();
    let mut writer = Writer::new(Vec::new(), header, profile, limits, Arc::clone(pool)).unwrap();
    let pair = Pair {
        tensor: 0,
        base: matrix(base),
        new: matrix(new),
    };
    writer.add(&[pair], |_| Ok(())).unwrap();
    writer.finish().unwrap().0
}

fn codecs(criterion: &mut Criterion) {
    let data = policy();
    let (base, new) = (&data.base[..LENGTH], &data.new[..LENGTH]);
    let pool = Arc::new(
        rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap(),
    );
    for profile in [Profile::Compact, Profile::Fast, Profile::Overwrite] {
        let mut group = criterion.benchmark_group(profile.name());
        group
            .throughput(Throughput::Bytes(LENGTH as u64))
            .sample_size(30)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(500));
        group.bench_function("encode", |b| b.iter(|| encode(profile, &pool, base, new)));

        let bytes = Bytes(encode(profile, &pool, base, new));
        let delta = Delta::open(bytes, Limits::default()).unwrap();
        let chunk = delta.chunk(0).unwrap();
        let tensors = &delta.header.tensors;
        group.bench_function("apply a chunk", |b| {
            b.iter_batched_ref(
                || base.to_vec(),
                |state| assert!(apply_chunk(&chunk, tensors, target(state)).unwrap()),
                BatchSize::LargeInput,
            );
        });
        for (name, full) in [("plan and commit", false), ("proven plan and commit", true)] {
            group.bench_function(name, |b| {
                b.iter_batched_ref(
                    || base.to_vec(),
                    |state| {
                        let now = [matrix(state)];
                        let planned =
                            plan(&delta, &now, &[None], full, KEEP, &pool, |_| Ok(())).unwrap();
                        commit(&delta, &planned, vec![target(state)], &pool).unwrap()
                    },
                    BatchSize::LargeInput,
                );
            });
        }
        group.finish();
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
