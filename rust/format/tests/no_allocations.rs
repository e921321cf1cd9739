//! Decoding takes no memory of its own: after one call, whatever the codecs, none is allocated.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;

use common::{alone, matrices, open, round_trip, Case, Random};
use deltawire_format::chunk::{self, ChunkHeader, Scratch};
use deltawire_format::codec::positions::{encode, plans};
use deltawire_format::codec::stage::compress;
use deltawire_format::codec::{values, Stage, ValueCodec};
use deltawire_format::{with_word, Chunk, Limits, Profile, Tensor};
use deltawire_kernels::ordered::advance;
use deltawire_kernels::{Matrix, Word};

/// The system's allocator, counting what each thread asks of it.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = CALLS.with(Cell::get);
    work();
    CALLS.with(Cell::get) - before
}

/// Allocations of decoding and locating a chunk, for each of `calls` with the same memory.
fn decoding(chunk: &Chunk, tensors: &[Tensor], base: &Matrix<'_>, calls: usize) -> Vec<u64> {
    let tensor = chunk.tensor(tensors);
    let block = chunk.tile_box(tensors).unwrap().block(tensor.width);
    with_word!(tensor.width, W => {
        let mut scratch = Scratch::<W>::default();
        let mut run = || {
            chunk.decode(tensors, &mut scratch).unwrap();
            scratch.locate(tensor, base, &block).unwrap();
        };
        (0..calls).map(|_| allocations(&mut run)).collect()
    })
}

/// A tensor of one tile.
fn tensor(dtype: &str) -> Tensor {
    Tensor::new("w".into(), dtype.into(), vec![256, 128], [256, 128]).unwrap()
}

/// Normal weights; each element steps by up to `far` to either side, with the probability that `chance`
/// gives its row.
fn weights<W: Word>(dtype: &str, far: u64, chance: impl Fn(u64) -> f64) -> Case {
    let tensor = tensor(dtype);
    let mut random = Random(3);
    let (mut base, mut new) = (vec![], vec![]);
    for row in 0..tensor.rows {
        for _ in 0..tensor.cols {
            let bits = u64::from((0.02 * random.normal() as f32).to_bits());
            let old = W::from_u64(bits >> (32 - 8 * W::WIDTH.min(4)));
            let size = (1 + random.bits() % far) as i64;
            let step = match random.unit() / chance(row) {
                u if u < 0.5 => size,
                u if u < 1.0 => -size,
                _ => 0,
            };
            old.append(&mut base);
            advance(old, W::from_u64(step as u64), tensor.order()).append(&mut new);
        }
    }
    alone(tensor, base, new)
}

#[test]
fn changes_by_class() {
    let rows = |row| if row % 9 == 0 { 0.4 } else { 0.001 };
    let cases = [
        ("classes", weights::<u8>("F8_E4M3", 1, |_| 0.03)),
        ("classes", weights::<u16>("BF16", 1, |_| 0.02)),
        ("classes", weights::<u16>("F16", 1, |_| 0.02)),
        ("classes", weights::<u32>("F32", 300, |_| 0.9)),
        ("groups", weights::<u16>("BF16", 1, rows)),
        ("groups", weights::<u32>("F32", 20, rows)),
        ("one class", weights::<u16>("I16", 2, |_| 0.01)),
        ("one class", weights::<u32>("I32", 7, |_| 0.01)),
        ("one class", weights::<u64>("U64", 1, |_| 0.01)),
    ];
    for (kind, case) in cases {
        let bytes = round_trip(&case, Profile::Compact);
        let delta = open(&bytes).unwrap();
        let tensors = &delta.header.tensors;
        let chunk = delta.chunk(0).unwrap();
        let got = with_word!(tensors[0].width, W => {
            let partition = chunk.partition::<W>(tensors).unwrap();
            match partition.map(|p| (p.needs_base(), p.rows.is_empty())) {
                None => "other codecs",
                Some((false, _)) => "one class",
                Some((true, true)) => "classes",
                Some((true, false)) => "groups",
            }
        });
        assert_eq!(got, kind, "{}", case.tensors[0].dtype);
        let base = matrices(&case.tensors, &case.base)[0];
        let counts = decoding(&chunk, tensors, &base, 4);
        assert_eq!(counts[1..], [0; 3], "{kind} in {}", case.tensors[0].dtype);
    }
}

/// Positions of a tile: all, or many that touch, so that no codec is far off.
fn positions(elements: u32, all: bool) -> Vec<u32> {
    let is_in = |p: &u32| all || p % 50 < 35 && !(p / 50).is_multiple_of(3);
    (0..elements).filter(is_in).collect()
}

fn staged(stage: Stage, stream: Vec<u8>) -> Vec<u8> {
    match stage {
        Stage::None => stream,
        Stage::Lz4 => compress(&stream),
    }
}

/// Chunks with every codec of positions and values that is not by class, with and without stages.
fn chunks<W: Word>(tensor: &Tensor, all: bool) -> Vec<Chunk> {
    let elements = tensor.elements() as u32;
    let list = positions(elements, all);
    let mut random = Random(8);
    // Values that repeat, so that planes are worth compressing; steps with exceptions.
    let old: Vec<W> = list
        .iter()
        .map(|&p| W::from_u64(u64::from(p % 90)))
        .collect();
    let mut more = || match random.bits().is_multiple_of(9) {
        true => 1 + random.bits() % 30,
        false => 1,
    };
    let new: Vec<W> = (old.iter())
        .map(|w| w.wrapping_add(W::from_u64(more())))
        .collect();
    let stages = [Stage::None, Stage::Lz4];
    let mut out = vec![];
    for plan in plans(&list, elements) {
        let mut places = vec![];
        encode(&plan, &list, elements, &mut places);
        for codec in [ValueCodec::Raw, ValueCodec::Planes, ValueCodec::Step] {
            let mut stream = vec![];
            match codec {
                ValueCodec::Raw => values::encode_raw(&new, &mut stream),
                ValueCodec::Planes => values::encode_planes(&new, &mut stream),
                _ => values::encode_steps(&old, &new, tensor.order(), &mut stream),
            }
            let planes = codec == ValueCodec::Planes;
            assert!(!planes || stream.len() < new.len() * W::WIDTH, "LZ4 planes");
            for (a, b) in stages.iter().flat_map(|&a| stages.map(|b| (a, b))) {
                if planes && b == Stage::Lz4 {
                    continue;
                }
                let header = ChunkHeader {
                    positions: (plan.codec, a),
                    values: (codec, b),
                    tensor: 0,
                    tile: 0,
                    changes: list.len() as u32,
                    base: None,
                    result: Some(7),
                };
                let (p, v) = (staged(a, places.clone()), staged(b, stream.clone()));
                let record = chunk::encode(&header, &p, &v);
                let table = std::slice::from_ref(tensor);
                let chunk = Chunk::parse(record, 0, table, &Limits::default()).unwrap();
                let mut scratch = Scratch::<W>::default();
                chunk.decode(table, &mut scratch).unwrap();
                assert_eq!(scratch.positions, list);
                let got =
                    (0..list.len()).map(|i| scratch.values.resolve(i, old[i], tensor.order()));
                assert!(got.eq(new.iter().copied()));
                out.push(chunk);
            }
        }
    }
    out
}

#[test]
fn changes_without_classes() {
    let mut seen = BTreeSet::new();
    for dtype in ["I8", "BF16", "F32", "I64"] {
        let tensor = tensor(dtype);
        let chunks = with_word!(tensor.width, W => {
            [true, false].map(|all| chunks::<W>(&tensor, all)).concat()
        });
        let tensors = [tensor];
        let state = vec![0; tensors[0].bytes() as usize];
        let base = matrices(&tensors, std::slice::from_ref(&state))[0];
        for chunk in &chunks {
            let codecs = format!("{:?} {:?}", chunk.header.positions, chunk.header.values);
            let counts = decoding(chunk, &tensors, &base, 4);
            assert_eq!(counts[1..], [0; 3], "{codecs} in {dtype}");
            seen.insert(codecs);
        }
    }
    // Five codecs of positions and two of values with two stages, one of values with none.
    assert_eq!(seen.len(), 5 * 2 * (2 * 2 + 1), "{seen:?}");
}
