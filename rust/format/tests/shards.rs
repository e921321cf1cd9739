//! Ranks that hold shards of tensors: what they write and apply is what one process would.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::sync::Arc;

use deltawire_format::apply::{apply_chunk, commit, plan, KEEP};
use deltawire_format::error::Kind;
use deltawire_format::writer::{Found, Pair, Summary};
use deltawire_format::{Delta, Header, Limits, Profile, Tensor, Writer};
use deltawire_kernels::{Digest, Matrix, Target};
use proptest::prelude::*;

/// A tensor of 16-bit elements in tiles of 4 by 8, and which elements change.
#[derive(Clone, Debug)]
struct Made {
    rows: usize,
    cols: usize,
    old: Vec<u8>,
    new: Vec<u8>,
}

fn made() -> impl Strategy<Value = Made> {
    let size = (1usize..20, 1usize..40);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 1u16..9), 0..60);
    (size, any::<u64>(), changes).prop_map(|((rows, cols), seed, changes)| {
        let words = (0..rows * cols).map(|i| (seed.wrapping_mul(i as u64 * 2 + 1) >> 33) as u16);
        let mut new: Vec<u16> = words.collect();
        let bytes = |words: &[u16]| words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let old = bytes(&new);
        for (at, add) in changes {
            let i = at.index(new.len());
            new[i] = new[i].wrapping_add(add);
        }
        Made {
            rows,
            cols,
            old,
            new: bytes(&new),
        }
    })
}

/// First and last + 1 row and column of each rank's shard, cut at the borders of tiles.
fn boxes(made: &Made, row_cut: usize, col_cut: usize) -> Vec<[usize; 4]> {
    let (r, c) = ((4 * row_cut).min(made.rows), (8 * col_cut).min(made.cols));
    [(0, r), (r, made.rows)]
        .into_iter()
        .flat_map(|(a, b)| [(0, c), (c, made.cols)].map(|(x, y)| [a, b, x, y]))
        .collect()
}

fn cut(made: &Made, bytes: &[u8], [top, bottom, left, right]: [usize; 4]) -> Vec<u8> {
    let rows = bytes.chunks_exact(2 * made.cols).take(bottom).skip(top);
    rows.flat_map(|row| &row[2 * left..2 * right])
        .copied()
        .collect()
}

fn shard<'a>(made: &Made, bytes: &'a [u8], [top, bottom, left, right]: [usize; 4]) -> Matrix<'a> {
    Matrix::new(bytes, bottom - top, 2 * (right - left))
        .unwrap()
        .within(made.rows, 2 * made.cols, top, 2 * left)
        .unwrap()
}

fn writer(made: &Made, profile: Profile) -> Writer<Vec<u8>> {
    let shape = vec![made.rows as u64, made.cols as u64];
    let tensor = Tensor::new("w".into(), "BF16".into(), shape, [4, 8]).unwrap();
    let header = Header {
        version: 1,
        base_version: Some(0),
        profile: profile.name().into(),
        tensors: vec![tensor],
        ..Header::default()
    };
    Writer::new(vec![], header, profile, Limits::default(), pool()).unwrap()
}

fn pool() -> Arc<rayon::ThreadPool> {
    Arc::new(
        rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap(),
    )
}

fn part(made: &Made, profile: Profile, place: [usize; 4]) -> (Vec<u8>, Summary) {
    let (old, new) = (cut(made, &made.old, place), cut(made, &made.new, place));
    let mut writer = writer(made, profile);
    let pair = Pair {
        tensor: 0,
        base: shard(made, &old, place),
        new: shard(made, &new, place),
    };
    writer.add(&[pair], |_| Ok(())).unwrap();
    writer.finish().unwrap()
}

fn records(delta: &[u8]) -> Vec<Vec<u8>> {
    let opened = Delta::open(delta, Limits::default()).unwrap();
    let places = opened.index.chunks.iter();
    places
        .map(|c| delta[c.offset as usize..][..c.length as usize].to_vec())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shards_add_up_to_the_whole(
        made in made(), row_cut in 0usize..6, col_cut in 0usize..6,
        profile in prop::sample::select(Profile::ALL.to_vec()),
    ) {
        let everything = [0, made.rows, 0, made.cols];
        let (whole, stats) = part(&made, profile, everything);
        let places = boxes(&made, row_cut, col_cut);
        let parts: Vec<_> = places.iter().map(|p| part(&made, profile, *p)).collect();

        // What ranks write is what one process writes, cut into parts.
        let add = |pick: fn(&Summary) -> Option<Digest>| {
            parts.iter().fold(Digest::default(), |sum, part| sum.plus(pick(&part.1).unwrap()))
        };
        prop_assert_eq!(Some(add(|s| s.base_state)), stats.base_state);
        prop_assert_eq!(Some(add(|s| s.result_state)), stats.result_state);
        let mut together: Vec<Vec<u8>> = parts.iter().flat_map(|part| records(&part.0)).collect();
        let mut expected = records(&whole);
        together.sort();
        expected.sort();
        prop_assert_eq!(together, expected);

        // A rank that holds a shard takes what it needs from the whole delta.
        let delta = Delta::open(&whole[..], Limits::default()).unwrap();
        let mut sums = [Digest::default(); 2];
        for place in &places {
            let mut memory = cut(&made, &made.old, *place);
            let now = [shard(&made, &memory, *place)];
            let planned = plan(&delta, &now, &[None], true, KEEP, &pool(), |_| Ok(())).unwrap();
            let is_all = *place == everything;
            prop_assert_eq!(planned.proof.is_some(), is_all);
            let found = planned.sums.unwrap();
            let has_lane1 = !is_all;
            sums = [sums[0].plus(found[0]), sums[1].plus(found[1])];
            let target = Target::new(&mut memory, place[1] - place[0], 2 * (place[3] - place[2]))
                .and_then(|t| t.within(made.rows, 2 * made.cols, place[0], 2 * place[2]));
            commit(&delta, &planned, vec![target.unwrap()], &pool()).unwrap();
            prop_assert_eq!(&memory, &cut(&made, &made.new, *place));
            if !has_lane1 {
                return Ok(());
            }
        }
        prop_assert_eq!(sums.map(Some), [stats.base_state, stats.result_state]);

        // Parts applied to the whole target, in any order, lead to the whole result.
        let mut memory = made.old.clone();
        for (bytes, _) in parts.iter().rev() {
            let delta = Delta::open(&bytes[..], Limits::default()).unwrap();
            let now = [Matrix::new(&memory, made.rows, 2 * made.cols).unwrap()];
            let planned = plan(&delta, &now, &[None], false, KEEP, &pool(), |_| Ok(())).unwrap();
            let target = Target::new(&mut memory, made.rows, 2 * made.cols).unwrap();
            commit(&delta, &planned, vec![target], &pool()).unwrap();
        }
        prop_assert_eq!(memory, made.new);
    }
}

fn plain(rows: usize, cols: usize) -> Made {
    let old: Vec<u8> = (0..2 * rows * cols).map(|i| (i * 37) as u8).collect();
    let new = old.iter().map(|b| b ^ 1).collect();
    Made {
        rows,
        cols,
        old,
        new,
    }
}

#[test]
fn a_shard_that_cuts_tiles_is_refused() {
    let made = plain(8, 16);
    for place in [[0, 3, 0, 16], [1, 8, 0, 16], [0, 8, 0, 4], [0, 8, 4, 16]] {
        let bytes = cut(&made, &made.old, place);
        let matrix = shard(&made, &bytes, place);
        let mut writer = writer(&made, Profile::Compact);
        let pair = Pair {
            tensor: 0,
            base: matrix,
            new: matrix,
        };
        let error = writer.add(&[pair], |_| Ok(())).unwrap_err();
        assert!(
            error.kind == Kind::Layout && error.message.contains("cuts tiles"),
            "{error:?}"
        );
        let (delta, _) = part(&made, Profile::Compact, [0, 8, 0, 16]);
        let delta = Delta::open(&delta[..], Limits::default()).unwrap();
        let error = plan(&delta, &[matrix], &[None], true, KEEP, &pool(), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind, Kind::Layout);
    }
}

#[test]
fn what_is_not_in_the_shard_is_refused() {
    let made = plain(8, 16);
    let (upper, lower) = ([0, 4, 0, 16], [4, 8, 0, 16]);
    let (a, b) = (cut(&made, &made.old, upper), cut(&made, &made.old, lower));
    // Two different shards.
    let mut writing = writer(&made, Profile::Compact);
    let pair = Pair {
        tensor: 0,
        base: shard(&made, &a, upper),
        new: shard(&made, &b, lower),
    };
    assert_eq!(
        writing.add(&[pair], |_| Ok(())).unwrap_err().kind,
        Kind::Layout
    );
    // Changes outside.
    let mut writing = writer(&made, Profile::Compact);
    let found = Found {
        tensor: 0,
        positions: &[3, 4 * 16],
        values: &[1, 2, 3, 4],
        base: Some(shard(&made, &a, upper)),
    };
    let error = writing.add_found(&found).unwrap_err();
    assert!(error.kind == Kind::Layout && error.message.contains("outside the shard"));
    // A chunk of another rank's tile.
    let (delta, _) = part(&made, Profile::Compact, [0, 8, 0, 16]);
    let delta = Delta::open(&delta[..], Limits::default()).unwrap();
    let mut memory = a.clone();
    let target = Target::new(&mut memory, 4, 32)
        .and_then(|t| t.within(8, 32, 0, 0))
        .unwrap();
    let last = delta.chunk(delta.index.chunks.len() - 1).unwrap();
    let error = apply_chunk(&last, &delta.header.tensors, target).unwrap_err();
    assert_eq!(error.kind, Kind::Layout);
    assert_eq!(memory, a);
    // A shard has no state of its own to start from.
    let header = Header {
        base_state: Some(Digest::default()),
        ..delta.header.clone()
    };
    let mut writing =
        Writer::new(vec![], header, Profile::Compact, Limits::default(), pool()).unwrap();
    let matrix = shard(&made, &a, upper);
    let pair = Pair {
        tensor: 0,
        base: matrix,
        new: matrix,
    };
    assert_eq!(
        writing.add(&[pair], |_| Ok(())).unwrap_err().kind,
        Kind::Layout
    );
}
