//! The inner loops, one thread, in bytes of one dense side a second, beside copying that side.

#![allow(clippy::unwrap_used, reason = "a failed unwrap ends the benchmark")]

mod masters;
mod policy;

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{criterion_group, criterion_main, BenchmarkGroup, Criterion, Throughput};
use deltawire_kernels::boundary::{changes, Found, Step};
use deltawire_kernels::classes::{ranks, ClassMap, Part, Progress, Selector};
use deltawire_kernels::{compare, digest, scan, Block, Matrix, MixKey, Target};
use masters::{masters, STEP};
use policy::{policy, COLS, ROWS};

/// Rows of a tile: of the size that a writer cuts as a rule.
const TILE_ROWS: usize = 256;

const BF16: ClassMap = ClassMap {
    shift: 7,
    mask: 0xff,
    top: 123,
    count: 16,
};

const KEY: MixKey = MixKey {
    k0: 0x0123_4567_89ab_cdef,
    k1: 0xfedc_ba98_7654_3210,
};

fn tiles() -> impl Iterator<Item = Block> {
    (0..ROWS).step_by(TILE_ROWS).map(|row| Block {
        row,
        rows: TILE_ROWS,
        byte: 0,
        bytes: 2 * COLS,
    })
}

/// Changes of one tile, as the class kernels take and give them.
struct Tile {
    block: Block,
    positions: Vec<u32>,
    classes: Vec<u8>,
    /// Changes of each class.
    counts: Vec<u32>,
    /// Ranks in the order of the positions, and class after class.
    ranks: Vec<u32>,
    sorted: Vec<u32>,
}

fn part<'a>(base: &'a Matrix<'a>, block: &Block) -> Part<'a> {
    Part {
        matrix: base,
        block: *block,
        map: BF16,
        rows: &[],
    }
}

fn located(base: &Matrix<'_>, new: &Matrix<'_>, block: Block) -> Tile {
    let (mut positions, mut elements) = (Vec::new(), Vec::<u16>::new());
    scan::differing::<u16>(base, new, &block, &mut positions);
    scan::gather::<u16>(base, &block, &positions, &mut elements);
    let classes: Vec<u8> = elements
        .iter()
        .map(|&bits| BF16.class(bits) as u8)
        .collect();
    let mut counts = vec![0; BF16.count as usize];
    for &class in &classes {
        counts[usize::from(class)] += 1;
    }
    let mut found = Vec::new();
    let mut progress = Progress::default();
    ranks::<u16>(
        &part(base, &block),
        &mut progress,
        &positions,
        &classes,
        &mut found,
    );
    let mut pairs: Vec<(u8, u32)> = classes.iter().copied().zip(found.iter().copied()).collect();
    pairs.sort_unstable();
    Tile {
        block,
        positions,
        classes,
        counts,
        ranks: found,
        sorted: pairs.into_iter().map(|p| p.1).collect(),
    }
}

fn dense(group: &mut BenchmarkGroup<'_, WallTime>, base: &Matrix<'_>, new: &Matrix<'_>) {
    let mut positions = Vec::new();
    group.bench_function("scan", |b| {
        b.iter(|| {
            for block in tiles() {
                positions.clear();
                scan::differing::<u16>(base, new, &block, &mut positions);
                black_box(&positions);
            }
        });
    });
    group.bench_function("scan and digest", |b| {
        b.iter(|| {
            for block in tiles() {
                positions.clear();
                black_box(compare::differing::<u16>(
                    KEY,
                    base,
                    new,
                    &block,
                    &mut positions,
                ));
            }
        });
    });
    let whole = base.whole();
    group.bench_function("digest", |b| b.iter(|| digest::block(KEY, base, &whole)));
}

fn classes(group: &mut BenchmarkGroup<'_, WallTime>, base: &Matrix<'_>, located: &[Tile]) {
    let mut out = Vec::new();
    let mut progress = Progress::default();
    group.bench_function("class ranks", |b| {
        b.iter(|| {
            for tile in located {
                out.clear();
                progress.restart();
                let part = part(base, &tile.block);
                ranks::<u16>(
                    &part,
                    &mut progress,
                    &tile.positions,
                    &tile.classes,
                    &mut out,
                );
                assert_eq!(black_box(&out).len(), tile.ranks.len());
            }
        });
    });
    let (mut positions, mut order) = (Vec::new(), Vec::new());
    group.bench_function("select", |b| {
        b.iter(|| {
            for tile in located {
                progress.restart();
                let (counts, sorted) = (&tile.counts, &tile.sorted);
                let mut selector =
                    Selector::new(counts.len(), counts, sorted, &mut positions, &mut order);
                selector.next::<u16>(&part(base, &tile.block), &mut progress);
                assert!(selector.is_complete());
                black_box(&positions);
            }
        });
    });
}

fn kernels(criterion: &mut Criterion) {
    let data = policy();
    let base = Matrix::new(&data.base, ROWS, 2 * COLS).unwrap();
    let new = Matrix::new(&data.new, ROWS, 2 * COLS).unwrap();
    let located: Vec<Tile> = tiles().map(|block| located(&base, &new, block)).collect();
    let mut target = data.base.clone();

    let mut group = criterion.benchmark_group("kernels");
    group
        .throughput(Throughput::Bytes(data.base.len() as u64))
        .sample_size(20)
        .measurement_time(Duration::from_secs(2))
        .warm_up_time(Duration::from_millis(500));
    group.bench_function("memcpy", |b| {
        b.iter(|| black_box(&mut target).copy_from_slice(black_box(&data.base)));
    });
    dense(&mut group, &base, &new);
    classes(&mut group, &base, &located);
    group.bench_function("scatter", |b| {
        b.iter(|| {
            let whole = Target::new(&mut target, ROWS, 2 * COLS).unwrap();
            let cut = whole.divide(TILE_ROWS, 2 * COLS);
            for (i, tile) in located.iter().enumerate() {
                // There and back: the same changes fit the target in every iteration.
                cut.take(i)
                    .unwrap()
                    .update::<u16>(&tile.positions, |_, old| old ^ 1);
            }
        });
    });
    group.finish();
}

/// The boundary test beside comparing as many elements; of both, bytes of BF16 values a second.
fn boundary(criterion: &mut Criterion) {
    let (data, made) = (policy(), masters());
    let base = Matrix::new(&data.base, ROWS, 2 * COLS).unwrap();
    let new = Matrix::new(&data.new, ROWS, 2 * COLS).unwrap();
    // 4 Mi elements, whose values the last cache may hold, and all, which it does not.
    for rows in [ROWS / 4, ROWS] {
        let count = rows * COLS;
        let mut group = criterion.benchmark_group(format!("boundary, {} Mi", count >> 20));
        group
            .throughput(Throughput::Bytes(2 * count as u64))
            .sample_size(20)
            .measurement_time(Duration::from_secs(2))
            .warm_up_time(Duration::from_millis(500));
        let mut positions = Vec::new();
        group.bench_function("scan", |b| {
            b.iter(|| {
                for block in tiles().take(rows / TILE_ROWS) {
                    positions.clear();
                    scan::differing::<u16>(&base, &new, &block, &mut positions);
                    black_box(&positions);
                }
            });
        });
        let mut found = Found::default();
        for margin in [0, 1] {
            let step = Step { margin, ..STEP };
            group.bench_function(format!("boundary, margin {margin}"), |b| {
                b.iter(|| {
                    for at in (0..count).step_by(TILE_ROWS * COLS) {
                        let part = at..at + TILE_ROWS * COLS;
                        let (w, m, v) =
                            (&made.w[part.clone()], &made.m[part.clone()], &made.v[part]);
                        found.clear();
                        changes(&step, w, m, v, 0, &mut found).unwrap();
                        black_box(&found);
                    }
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, kernels, boundary);
criterion_main!(benches);
