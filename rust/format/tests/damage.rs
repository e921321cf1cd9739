//! Damaged tiles: found one by one, and a plan over what will replace them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use std::collections::BTreeSet;

use common::{matrices, open, pool, targets, write, Case};
use deltawire_format::apply::{commit, plan, plan_with, Held, Replaced, KEEP};
use deltawire_format::damage::damaged;
use deltawire_format::error::Kind;
use deltawire_format::table::TileBox;
use deltawire_format::{Profile, Tensor};
use deltawire_kernels::Matrix;
use proptest::prelude::*;

/// What happens to a target: which tiles have the result already, and which elements are altered.
#[derive(Clone, Debug)]
struct Fate {
    applied: Vec<prop::sample::Index>,
    flips: Vec<(usize, prop::sample::Index, u8)>,
}

fn tensor(name: &str, dtype: &str, rows: u64, cols: u64, tile: [u64; 2]) -> Tensor {
    Tensor::new(name.into(), dtype.into(), vec![rows, cols], tile).unwrap()
}

/// Three tensors of different widths in small tiles, some of which change.
fn case() -> impl Strategy<Value = Case> {
    let sizes = (1u64..24, 1u64..40, 1u64..12);
    let changes = prop::collection::vec((0usize..3, any::<prop::sample::Index>(), 1u8..4), 0..80);
    (sizes, any::<u64>(), changes).prop_map(|((rows, cols, few), seed, changes)| {
        let tensors = vec![
            tensor("a", "BF16", rows, cols, [4, 8]),
            tensor("b", "F32", few, 16, [3, 8]),
            tensor("c", "I8", rows, 24, [8, 8]),
        ];
        let mut random = common::Random(seed);
        let base: Vec<Vec<u8>> = tensors
            .iter()
            .map(|t| random.bytes(t.bytes() as usize))
            .collect();
        let mut new = base.clone();
        for (t, at, step) in changes {
            let bytes = &mut new[t];
            let i = at.index(bytes.len());
            bytes[i] ^= step;
        }
        Case { tensors, base, new }
    })
}

fn fate() -> impl Strategy<Value = Fate> {
    let index = any::<prop::sample::Index>;
    let flips = prop::collection::vec((0usize..3, index(), 1u8..8), 0..6);
    (prop::collection::vec(index(), 0..12), flips)
        .prop_map(|(applied, flips)| Fate { applied, flips })
}

fn cut(tensor: &Tensor, bytes: &[u8], place: TileBox) -> Vec<u8> {
    let width = usize::from(tensor.width);
    let row_bytes = tensor.cols as usize * width;
    let (left, length) = (place.col as usize * width, place.cols as usize * width);
    let rows = place.row as usize..(place.row + place.rows) as usize;
    rows.flat_map(|row| &bytes[row * row_bytes + left..][..length])
        .copied()
        .collect()
}

fn put(tensor: &Tensor, bytes: &mut [u8], place: TileBox, tile: &[u8]) {
    let width = usize::from(tensor.width);
    let row_bytes = tensor.cols as usize * width;
    let (left, length) = (place.col as usize * width, place.cols as usize * width);
    for (i, line) in tile.chunks(length).enumerate() {
        bytes[(place.row as usize + i) * row_bytes + left..][..length].copy_from_slice(line);
    }
}

fn all_tiles(case: &Case) -> Vec<(u32, u32)> {
    let tiles = case.tensors.iter().enumerate();
    tiles
        .flat_map(|(t, tensor)| (0..tensor.tiles()).map(move |tile| (t as u32, tile)))
        .collect()
}

/// The state of a target after its fate.
fn suffer(case: &Case, fate: &Fate) -> Vec<Vec<u8>> {
    let mut state = case.base.clone();
    let tiles = all_tiles(case);
    for index in &fate.applied {
        let (t, tile) = tiles[index.index(tiles.len())];
        let tensor = &case.tensors[t as usize];
        let place = tensor.tile_box(tile).unwrap();
        let new = cut(tensor, &case.new[t as usize], place);
        put(tensor, &mut state[t as usize], place, &new);
    }
    for (t, at, flip) in &fate.flips {
        let i = at.index(state[*t].len());
        state[*t][i] ^= flip;
    }
    state
}

/// Tiles that are neither before nor after: those that change, others, and those of the former that would
/// not be right either if the elements that change were overwritten. By comparing bytes.
fn naive(case: &Case, state: &[Vec<u8>]) -> [BTreeSet<(u32, u32)>; 3] {
    let mut found = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for (t, tile) in all_tiles(case) {
        let tensor = &case.tensors[t as usize];
        let place = tensor.tile_box(tile).unwrap();
        let [base, new, now] = [&case.base, &case.new, &state.to_vec()]
            .map(|all| cut(tensor, &all[t as usize], place));
        if now != base && now != new {
            found[usize::from(base == new)].insert((t, tile));
            let width = usize::from(tensor.width);
            let elements = base
                .chunks(width)
                .zip(new.chunks(width))
                .zip(now.chunks(width));
            let stays = |((base, new), now): ((&[u8], &[u8]), &[u8])| base == new && now != base;
            if base != new && elements.into_iter().any(stays) {
                found[2].insert((t, tile));
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn only_altered_tiles_that_change_are_found_and_replaced(
        case in case(), fate in fate(), profile in prop::sample::select(Profile::ALL.to_vec()),
    ) {
        let bytes = write(&case, profile, 1);
        let delta = open(&bytes).unwrap();
        let mut state = suffer(&case, &fate);
        let [expected, elsewhere, certain] = naive(&case, &state);
        let pool = pool(2);
        let found = damaged(&delta, &matrices(&case.tensors, &state), &pool).unwrap();
        let places: BTreeSet<_> = found.iter().map(|d| (d.tensor, d.tile)).collect();
        // Some chunks hold the new elements themselves, and need not know the old ones.
        prop_assert!(places.is_subset(&expected), "{places:?} {expected:?}");
        prop_assert!(places.is_superset(&certain), "{places:?} {certain:?}");
        prop_assert_eq!(found.len(), places.len());
        for d in &found {
            prop_assert_eq!(Some(d.place), case.tensors[d.tensor as usize].tile_box(d.tile));
            let place = &delta.index.chunks[d.chunk];
            prop_assert_eq!((place.tensor, place.tile), (d.tensor, d.tile));
        }

        // Over the bits of the base the plan holds, unless something else is altered.
        let tiles: Vec<(u32, u32, TileBox, Vec<u8>)> = found
            .iter()
            .map(|d| {
                let t = d.tensor as usize;
                (d.tensor, d.tile, d.place, cut(&case.tensors[t], &case.base[t], d.place))
            })
            .collect();
        let replaced: Replaced<'_> = tiles
            .iter()
            .map(|(t, tile, place, data)| ((*t, *tile), shard(&case, *t, *place, data)))
            .collect();
        let before = state.clone();
        let now = matrices(&case.tensors, &before);
        let aliases = vec![None; now.len()];
        let held = Held { target: &now, aliases: &aliases, replaced: &replaced, trusted: false };
        let planned = plan_with(&delta, held, true, KEEP, &pool, |_| Ok(()));
        let plain = plan(&delta, &now, &aliases, true, KEEP, &pool, |_| Ok(()));
        prop_assert_eq!(plain.is_ok(), places.is_empty() && elsewhere.is_empty());
        if !elsewhere.is_empty() {
            prop_assert_eq!(planned.unwrap_err().kind, Kind::WrongBase);
            return Ok(());
        }
        let planned = planned.unwrap();
        for (t, _, place, data) in &tiles {
            put(&case.tensors[*t as usize], &mut state[*t as usize], *place, data);
        }
        commit(&delta, &planned, targets(&case.tensors, &mut state), &pool).unwrap();
        prop_assert_eq!(state, case.new);
    }
}

fn shard<'a>(case: &Case, t: u32, place: TileBox, data: &'a [u8]) -> Matrix<'a> {
    let tensor = &case.tensors[t as usize];
    let width = usize::from(tensor.width);
    Matrix::new(data, place.rows as usize, place.cols as usize * width)
        .and_then(|tile| {
            let row_bytes = tensor.cols as usize * width;
            let byte = place.col as usize * width;
            tile.within(tensor.rows as usize, row_bytes, place.row as usize, byte)
        })
        .unwrap()
}

fn plain() -> Case {
    let tensors = vec![tensor("a", "BF16", 8, 16, [4, 8])];
    let base = vec![(0..=255u8).collect::<Vec<u8>>()];
    let new = vec![base[0].iter().map(|b| b ^ 1).collect()];
    Case { tensors, base, new }
}

#[test]
fn what_does_not_fit_is_refused() {
    let case = plain();
    let bytes = write(&case, Profile::Compact, 1);
    let delta = open(&bytes).unwrap();
    let pool = pool(1);
    let error = damaged(&delta, &[], &pool).unwrap_err();
    assert_eq!(error.kind, Kind::Layout);
    let wrong = [Matrix::new(&case.base[0], 16, 16).unwrap()];
    assert_eq!(
        damaged(&delta, &wrong, &pool).unwrap_err().kind,
        Kind::Layout
    );
    let place = case.tensors[0].tile_box(1).unwrap();
    let data = cut(&case.tensors[0], &case.base[0], place);
    let now = matrices(&case.tensors, &case.base);
    for (at, says) in [
        ((0, 0), "does not hold it"),
        ((0, 9), "does not hold it"),
        ((1, 1), "tensor 1"),
    ] {
        let replaced = Replaced::from([(at, shard(&case, 0, place, &data))]);
        let held = Held {
            target: &now,
            aliases: &[None],
            replaced: &replaced,
            trusted: false,
        };
        let error = plan_with(&delta, held, true, KEEP, &pool, |_| Ok(())).unwrap_err();
        assert!(
            error.kind == Kind::Layout && error.message.contains(says),
            "{error:?}"
        );
    }
}

#[test]
fn a_corrupt_chunk_is_no_damage() {
    let case = plain();
    let bytes = write(&case, Profile::Compact, 1);
    let places: Vec<_> = {
        let delta = open(&bytes).unwrap();
        let chunks = delta.index.chunks.iter();
        chunks.map(|c| (c.offset, c.length)).collect()
    };
    let now = matrices(&case.tensors, &case.new);
    for (offset, length) in places {
        for at in offset..offset + u64::from(length) {
            let mut altered = bytes.clone();
            altered[at as usize] ^= 1;
            let delta = open(&altered).unwrap();
            let error = damaged(&delta, &now, &pool(1)).unwrap_err();
            assert!(error.kind != Kind::WrongBase, "{error:?}");
        }
    }
}

#[test]
fn tiles_of_other_ranks_are_not_looked_at() {
    let case = plain();
    let bytes = write(&case, Profile::Compact, 1);
    let delta = open(&bytes).unwrap();
    let mut state = case.base[0].clone();
    for byte in &mut state {
        *byte = byte.wrapping_mul(3);
    }
    let upper = Matrix::new(&state[..128], 4, 32)
        .and_then(|m| m.within(8, 32, 0, 0))
        .unwrap();
    let found = damaged(&delta, &[upper], &pool(1)).unwrap();
    let tiles: Vec<u32> = found.iter().map(|d| d.tile).collect();
    assert_eq!(tiles, [0, 1]);
}
