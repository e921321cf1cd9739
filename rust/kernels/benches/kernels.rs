//! The inner loops, one thread, in bytes of one dense side a second, beside copying that side.

#![allow(clippy::unwrap_used, reason = "a failed unwrap ends the benchmark")]

mod policy;

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{criterion_group, criterion_main, BenchmarkGroup, Criterion, Throughput};
use deltawire_kernels::classes::{ranks, select, ClassMap};
use deltawire_kernels::{digest, scan, Block, Matrix, MixKey, Target};
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
    /// Where the ranks of each class begin.
    places: Vec<u32>,
    ranks: Vec<u32>,
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
    let mut places = vec![0; counts.len()];
    for i in 1..places.len() {
        places[i] = places[i - 1] + counts[i - 1];
    }
    let mut found = vec![0; positions.len()];
    ranks::<u16>(
        base,
        &block,
        &BF16,
        &[],
        &positions,
        &classes,
        &mut places.clone(),
        &mut found,
    );
    Tile {
        block,
        positions,
        classes,
        counts,
        places,
        ranks: found,
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
    let whole = base.whole();
    group.bench_function("digest", |b| b.iter(|| digest::block(KEY, base, &whole)));
    group.bench_function("digest lane 0", |b| {
        b.iter(|| digest::block_lane0(KEY, base, &whole));
    });
}

fn classes(group: &mut BenchmarkGroup<'_, WallTime>, base: &Matrix<'_>, located: &[Tile]) {
    let mut out = Vec::new();
    group.bench_function("class ranks", |b| {
        b.iter(|| {
            for tile in located {
                out.resize(tile.positions.len(), 0);
                let mut places = tile.places.clone();
                ranks::<u16>(
                    base,
                    &tile.block,
                    &BF16,
                    &[],
                    &tile.positions,
                    &tile.classes,
                    &mut places,
                    &mut out,
                );
                black_box(&out);
            }
        });
    });
    let (mut positions, mut order) = (Vec::new(), Vec::new());
    group.bench_function("select", |b| {
        b.iter(|| {
            for tile in located {
                positions.clear();
                order.clear();
                let all = select::<u16>(
                    base,
                    &tile.block,
                    &BF16,
                    &[],
                    &tile.counts,
                    &tile.ranks,
                    &mut positions,
                    &mut order,
                );
                assert!(all);
                black_box((&positions, &order));
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

criterion_group!(benches, kernels);
criterion_main!(benches);
