//! Bases found again from the elements after: what a writer makes of a detector's findings is what it would
//! have made of both states, and what a detector got wrong is noticed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{alone, apply, matrices, pool, tensor, write, Case, Random};
use deltawire_format::detected::After;
use deltawire_format::rewind::{digests, Findings, Named, Outcome, Scratch, Sure};
use deltawire_format::{with_word, Header, Limits, Profile, Tensor, Writer};
use deltawire_kernels::{Digest, Matrix};
use proptest::prelude::*;

/// What a detector tells of one tensor.
#[derive(Clone, Debug, Default)]
struct Lists {
    positions: Vec<i64>,
    sure: Vec<u8>,
    old: Vec<u8>,
    other: Vec<u8>,
}

impl Lists {
    fn push(&mut self, position: usize, sure: Sure, old: &[u8], other: &[u8]) {
        self.positions.push(position as i64);
        self.sure.push(sure as u8);
        self.old.extend_from_slice(old);
        self.other.extend_from_slice(other);
    }

    fn findings(&self, entry: &Tensor) -> Findings {
        let named = Named {
            positions: &self.positions,
            sure: &self.sure,
            old: &self.old,
            other: &self.other,
            blind: false,
        };
        let width = usize::from(entry.width);
        let held = deltawire_kernels::Block {
            row: 0,
            rows: entry.rows as usize,
            byte: 0,
            bytes: entry.cols as usize * width,
        };
        Findings::new(entry.clone(), held, &named).unwrap()
    }

    fn without(&self, index: usize, width: usize) -> Self {
        let mut out = self.clone();
        out.positions.remove(index);
        out.sure.remove(index);
        out.old.drain(index * width..(index + 1) * width);
        out.other.drain(index * width..(index + 1) * width);
        out
    }
}

/// Both states of a tensor, and findings of which at most `doubts` leave something open.
fn made(
    dtype: &str,
    rows: u64,
    cols: u64,
    seed: u64,
    changes: usize,
    doubts: usize,
) -> (Case, Lists) {
    let entry = tensor(dtype, rows, cols);
    let mut random = Random(seed);
    let width = usize::from(entry.width);
    let elements = entry.elements() as usize;
    let mut base = random.bytes(elements * width);
    let mut new = base.clone();
    let mut named: Vec<usize> = (0..changes.min(elements))
        .map(|_| random.bits() as usize % elements)
        .collect();
    named.sort_unstable();
    named.dedup();
    let mut lists = Lists::default();
    for (i, at) in named.into_iter().enumerate() {
        let place = at * width..(at + 1) * width;
        // One in eight did not change after all.
        if !random.bits().is_multiple_of(8) {
            new[at * width] ^= 1 + (random.bits() % 255) as u8;
        }
        let mut false_one = random.bytes(width);
        if false_one == base[place.clone()] {
            false_one[0] ^= 1;
        }
        match (i < doubts, random.bits() % 4) {
            (true, 0) => lists.push(at, Sure::Either, &base[place.clone()], &false_one),
            (true, 1) => lists.push(at, Sure::Either, &false_one, &base[place.clone()]),
            (true, 2) => {
                // It was zero, which nobody told.
                base[place.clone()].fill(0);
                lists.push(at, Sure::Unknown, &new[place.clone()], &new[place]);
            }
            (true, _) => {
                new[place.clone()].copy_from_slice(&base[place.clone()]);
                lists.push(at, Sure::Unknown, &new[place.clone()], &new[place]);
            }
            _ => lists.push(at, Sure::Certain, &base[place.clone()], &base[place]),
        }
    }
    (alone(entry, base, new), lists)
}

/// Digests of every tile of one of the case's states.
fn kept(entry: &Tensor, state: &Matrix<'_>) -> Vec<Vec<Digest>> {
    (0..entry.tiles())
        .map(|tile| digests(entry, tile, state).unwrap())
        .collect()
}

/// The delta that is made without the base, and how each tile went.
fn detected(case: &Case, lists: &Lists, profile: Profile) -> (Vec<u8>, Vec<Outcome>) {
    let header = Header {
        run: "run".into(),
        version: 8,
        base_version: Some(7),
        profile: profile.name().into(),
        tensors: case.tensors.clone(),
        ..Header::default()
    };
    let mut w = Writer::new(vec![], header, profile, Limits::default(), pool(2)).unwrap();
    let (old, new) = (
        matrices(&case.tensors, &case.base)[0],
        matrices(&case.tensors, &case.new)[0],
    );
    let entry = &case.tensors[0];
    let findings = lists.findings(entry);
    let before = kept(entry, &old);
    w.begin(0, &findings).unwrap();
    let items: Vec<After<'_>> = (before.iter().enumerate())
        .map(|(tile, before)| After {
            tensor: 0,
            tile: tile as u32,
            new,
            before,
        })
        .collect();
    let told = w.add_after(&findings, &items).unwrap();
    for (told, after) in told.iter().zip(kept(entry, &new)) {
        assert_eq!(told.after, after);
    }
    let (bytes, _) = w.finish().unwrap();
    (bytes, told.iter().map(|told| told.outcome).collect())
}

fn check(case: &Case, lists: &Lists) {
    for profile in Profile::ALL {
        let (bytes, outcomes) = detected(case, lists, profile);
        assert!(outcomes.iter().all(|o| !o.is_whole()), "{outcomes:?}");
        let twin = write(case, profile, 1);
        // Row groups are learnt from samples; alike, but not the same ones.
        let size = (bytes.len() as i64 - twin.len() as i64).unsigned_abs() as usize;
        assert!(
            size <= twin.len() / 1000,
            "{} for {}",
            bytes.len(),
            twin.len()
        );
        assert!(case.tensors[0].elements() > 1 << 16 || bytes == twin);
        let mut state = case.base.clone();
        apply(&bytes, case, &mut state).unwrap();
        assert!(state == case.new);
    }
    let entry = &case.tensors[0];
    let findings = lists.findings(entry);
    let (old, new) = (
        matrices(&case.tensors, &case.base)[0],
        matrices(&case.tensors, &case.new)[0],
    );
    with_word!(entry.width, W => {
        let mut scratch = Scratch::default();
        for (tile, before) in kept(entry, &old).iter().enumerate() {
            let got = findings.rewind::<W>(tile as u32, &new, before, &mut scratch).unwrap();
            let block = entry.tile_box(tile as u32).unwrap().block(entry.width);
            let rows = (0..block.rows).flat_map(|row| old.row(&block, row));
            assert!(rows.eq(scratch.base.iter()));
            let changed = got.old.iter().zip(&got.new).all(|(a, b)| a != b);
            assert!(changed && got.positions.is_sorted());
        }
    });
}

proptest! {
    #[test]
    fn as_with_both_states(
        dtype in prop::sample::select(vec!["BF16", "F32", "F8_E4M3", "I64"]),
        rows in 1u64..40, cols in 1u64..70, seed: u64, changes in 0usize..200, doubts in 0usize..13,
    ) {
        let (case, lists) = made(dtype, rows, cols, seed, changes, doubts);
        check(&case, &lists);
    }

    #[test]
    fn a_change_that_is_missing_is_noticed(
        rows in 1u64..40, cols in 1u64..70, seed: u64, changes in 1usize..200, doubts in 0usize..5,
        drop: prop::sample::Index,
    ) {
        let (case, lists) = made("BF16", rows, cols, seed, changes, doubts);
        let dropped = drop.index(lists.positions.len());
        let at = 2 * lists.positions[dropped] as usize;
        let broken = lists.without(dropped, 2);
        let (bytes, outcomes) = detected(&case, &broken, Profile::Compact);
        // It matters if that element changed.
        prop_assert_eq!(outcomes[0].is_whole(), case.base[0][at..at + 2] != case.new[0][at..at + 2]);
        let certain = broken.sure.iter().all(|&s| s == 0);
        prop_assert!(!certain || !outcomes[0].is_whole() || outcomes[0] == Outcome::Wrong);
        // Sent whole, it is as it was to be all the same.
        let mut state = case.base.clone();
        apply(&bytes, &case, &mut state).unwrap();
        prop_assert!(state == case.new);
    }
}

#[test]
fn tiles_in_several_columns_and_pieces() {
    for (name, rows, cols) in [("down_proj.weight", 1100, 2048), ("w", 3000, 1000)] {
        let (mut case, lists) = made("BF16", rows, cols, 5, 20_000, 3);
        let tile = deltawire_format::Tiling::default().tile(name, "BF16", rows, cols);
        case.tensors[0] = Tensor::new(name.into(), "BF16".into(), vec![rows, cols], tile).unwrap();
        assert!(case.tensors[0].tiles() > 1);
        check(&case, &lists);
    }
}

#[test]
fn many_in_doubt() {
    // One an element's word: 32 can be told apart, 40 cannot.
    for (count, outcome) in [(32, Outcome::Settled), (40, Outcome::Open)] {
        let entry = tensor("BF16", 64, 64);
        let mut random = Random(count as u64);
        let base = random.bytes(64 * 64 * 2);
        let mut new = base.clone();
        let mut lists = Lists::default();
        for i in 0..count {
            let at = 8 * i;
            new[2 * at] ^= 1;
            let true_one = base[2 * at..2 * at + 2].to_vec();
            let mut false_one = true_one.clone();
            false_one[0] ^= 2;
            let (first, second) = if random.bits().is_multiple_of(2) {
                (true_one, false_one)
            } else {
                (false_one, true_one)
            };
            lists.push(at, Sure::Either, &first, &second);
        }
        let case = alone(entry, base, new);
        let (bytes, outcomes) = detected(&case, &lists, Profile::Compact);
        assert_eq!(outcomes, [outcome]);
        let mut state = case.base.clone();
        apply(&bytes, &case, &mut state).unwrap();
        assert!(state == case.new);
    }
}

#[test]
fn any_value_of_a_few() {
    for count in 1..=3 {
        let entry = tensor("BF16", 64, 64);
        let base = Random(count as u64).bytes(64 * 64 * 2);
        let mut new = base.clone();
        let mut lists = Lists::default();
        for i in 0..count {
            // Two of them in one word.
            let at = [700, 701, 900][i];
            new[2 * at..2 * at + 2].copy_from_slice(&[1, 2]);
            lists.push(at, Sure::Unknown, &[1, 2], &[1, 2]);
        }
        lists.push(1000, Sure::Either, &[3, 3], &base[2000..2002]);
        let case = alone(entry, base, new);
        let (_, outcomes) = detected(&case, &lists, Profile::Compact);
        let expected = [Outcome::Settled, Outcome::Open, Outcome::Open];
        assert_eq!(outcomes, [expected[count - 1]]);
    }
    // In words of their own, two can be told.
    let entry = tensor("BF16", 64, 64);
    let base = Random(9).bytes(64 * 64 * 2);
    let mut new = base.clone();
    let mut lists = Lists::default();
    for at in [700, 900] {
        new[2 * at..2 * at + 2].copy_from_slice(&[1, 2]);
        lists.push(at, Sure::Unknown, &[0, 0], &[0, 0]);
    }
    check(&alone(entry, base, new), &lists);
}

#[test]
fn a_tensor_that_starts_at_zero() {
    // Each element has a word of its own, and nobody knows what any was; and two were one of two.
    for unchanged in [false, true] {
        let entry = Tensor::new("b".into(), "BF16".into(), vec![500], [500, 1]).unwrap();
        let mut base = vec![0; 1000];
        let mut new = Random(3).bytes(1000);
        if unchanged {
            base.clone_from(&new);
        }
        base[20..24].copy_from_slice(&[1, 2, 3, 4]);
        new[20..24].copy_from_slice(&[5, 6, 7, 8]);
        let mut lists = Lists::default();
        for at in 0..500 {
            let value = &new[2 * at..2 * at + 2];
            match at {
                10 => lists.push(at, Sure::Either, &[9, 9], &[1, 2]),
                11 => lists.push(at, Sure::Either, &[3, 4], &[9, 9]),
                // What is told of these counts for nothing.
                _ => lists.push(at, Sure::Unknown, &[7, 7], value),
            }
        }
        check(&alone(entry, base, new), &lists);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (case, lists) = made("BF16", 10, 10, 1, 20, 2);
    let entry = &case.tensors[0];
    let named = |lists: &Lists| {
        let held = deltawire_kernels::Block {
            row: 0,
            rows: 10,
            byte: 0,
            bytes: 20,
        };
        let named = Named {
            positions: &lists.positions,
            sure: &lists.sure,
            old: &lists.old,
            other: &lists.other,
            blind: false,
        };
        Findings::new(entry.clone(), held, &named)
            .unwrap_err()
            .message
    };
    let mut bad = lists.clone();
    bad.positions[0] = -1;
    assert!(named(&bad).contains("ascend"));
    bad = lists.clone();
    *bad.positions.last_mut().unwrap() = 100;
    assert!(named(&bad).contains("ascend"));
    bad = lists.clone();
    bad.old.pop();
    assert!(named(&bad).contains("positions with"));
    bad = lists.clone();
    bad.sure[0] = 3;
    assert!(named(&bad).contains("flags"));

    let header = Header {
        tensors: case.tensors.clone(),
        ..Header::default()
    };
    let start = || {
        let (header, limits) = (header.clone(), Limits::default());
        Writer::new(vec![], header, Profile::Compact, limits, pool(1)).unwrap()
    };
    let findings = lists.findings(entry);
    let mut w = start();
    w.begin(0, &findings).unwrap();
    assert!(w.finish().unwrap_err().message.contains("missing"));
    let mut w = start();
    let new = matrices(&case.tensors, &case.new)[0];
    let item = After {
        tensor: 0,
        tile: 0,
        new,
        before: &[],
    };
    // Before it was begun, and with digests of something else.
    assert!(w
        .add_after(&findings, &[item])
        .unwrap_err()
        .message
        .contains("not the next"));
    w.begin(0, &findings).unwrap();
    assert!(w
        .add_after(&findings, &[item])
        .unwrap_err()
        .message
        .contains("digests"));
    let other = Lists::default().findings(&tensor("BF16", 3, 3));
    assert!(start()
        .begin(0, &other)
        .unwrap_err()
        .message
        .contains("another tensor"));
}
