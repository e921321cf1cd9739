//! A composed delta does what the deltas do one after the other.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::sync::Arc;

use deltawire_format::apply::{commit, plan, KEEP};
use deltawire_format::compose::compose;
use deltawire_format::error::Kind;
use deltawire_format::writer::{Found, Pair, Partitioned};
use deltawire_format::{Delta, Error, Header, Limits, Profile, Tensor, Writer};
use deltawire_kernels::{Digest, Matrix, Target};
use proptest::prelude::*;

/// A matrix of BF16 elements in tiles of 4 by 8, a vector of integers, and a matrix of one tile.
const SHAPES: [(&str, [u64; 2], [u64; 2]); 3] = [
    ("BF16", [10, 24], [4, 8]),
    ("I32", [30, 1], [8, 1]),
    ("BF16", [8, 32], [8, 32]),
];

type State = [Vec<u8>; 3];
type Opened<'a> = Delta<&'a [u8]>;

fn pool() -> Arc<rayon::ThreadPool> {
    Arc::new(
        rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap(),
    )
}

fn tensors() -> Vec<Tensor> {
    let names = ["w", "ids", "v"].into_iter().zip(SHAPES);
    names
        .map(|(name, (dtype, shape, tile))| {
            let shape = if shape[1] == 1 {
                vec![shape[0]]
            } else {
                shape.to_vec()
            };
            Tensor::new(name.into(), dtype.into(), shape, tile).unwrap()
        })
        .collect()
}

fn matrices(state: &State) -> Vec<Matrix<'_>> {
    let tensors = tensors();
    let sizes = tensors
        .iter()
        .map(|t| (t.rows as usize, t.cols as usize * usize::from(t.width)));
    state
        .iter()
        .zip(sizes)
        .map(|(b, (rows, row))| Matrix::new(b, rows, row).unwrap())
        .collect()
}

fn header(version: u64, profile: Profile) -> Header {
    Header {
        run: "run".into(),
        version,
        base_version: Some(version - 1),
        profile: profile.name().into(),
        tensors: tensors(),
        ..Header::default()
    }
}

fn diff(version: u64, profile: Profile, old: &State, new: &State) -> Vec<u8> {
    let limits = Limits::default();
    let mut writer =
        Writer::new(vec![], header(version, profile), profile, limits, pool()).unwrap();
    let pairs: Vec<Pair<'_>> = (0..3)
        .map(|t| Pair {
            tensor: t as u32,
            base: matrices(old)[t],
            new: matrices(new)[t],
        })
        .collect();
    writer.add(&pairs, |_| Ok(())).unwrap();
    writer.finish().unwrap().0
}

/// As [`diff`], with the table's last tensor first.
fn diff_turned(version: u64, profile: Profile, old: &State, new: &State) -> Vec<u8> {
    let mut header = header(version, profile);
    header.tensors.rotate_right(1);
    let mut writer = Writer::new(vec![], header, profile, Limits::default(), pool()).unwrap();
    let pairs: Vec<Pair<'_>> = (0..3)
        .map(|t| Pair {
            tensor: (t as u32 + 1) % 3,
            base: matrices(old)[t],
            new: matrices(new)[t],
        })
        .collect();
    let (last, first) = pairs.split_last().unwrap();
    writer.add(&[*last], |_| Ok(())).unwrap();
    writer.add(first, |_| Ok(())).unwrap();
    writer.finish().unwrap().0
}

fn open(bytes: &[u8]) -> Opened<'_> {
    Delta::open(bytes, Limits::default()).unwrap()
}

fn fold(deltas: &[Opened<'_>], base: Option<&State>, profile: Profile) -> Result<Vec<u8>, Error> {
    let base = base.map(matrices);
    let deltas: Vec<&Opened<'_>> = deltas.iter().collect();
    compose(&deltas, base.as_deref(), profile, vec![], &pool(), |_| {
        Ok(())
    })
    .map(|done| done.0)
}

fn applied(delta: &[u8], state: &State) -> State {
    let (delta, mut state) = (open(delta), state.clone());
    let planned = plan(
        &delta,
        &matrices(&state),
        &[None; 3],
        true,
        KEEP,
        &pool(),
        |_| Ok(()),
    )
    .unwrap();
    assert_eq!(
        planned.proof.map(|p| Some(p.result_state)),
        Some(delta.index.result_state)
    );
    let sizes: Vec<(usize, usize)> = matrices(&state)
        .iter()
        .map(|m| (m.rows(), m.row_bytes()))
        .collect();
    let targets = state.iter_mut().zip(sizes);
    let targets = targets
        .map(|(b, (rows, row))| Target::new(b, rows, row).unwrap())
        .collect();
    commit(&delta, &planned, targets, &pool()).unwrap();
    state
}

/// A state and what follows it: some elements move by a little, or become something else.
fn states() -> impl Strategy<Value = Vec<State>> {
    let change = (any::<prop::sample::Index>(), -2i32..3, 0usize..3);
    let changes = prop::collection::vec(prop::collection::vec(change, 0..40), 2..5);
    (any::<u64>(), changes).prop_map(|(seed, steps)| {
        let random = |i: usize| (seed.wrapping_mul(i as u64 * 2 + 1) >> 29) as u8;
        let mut states: Vec<State> = vec![[
            (0..2 * 10 * 24).map(random).collect(),
            (0..4 * 30).map(random).collect(),
            (0..2 * 256).map(random).collect(),
        ]];
        for changes in steps {
            let mut next = states.last().unwrap().clone();
            for (at, by, tensor) in changes {
                let bytes = &mut next[tensor];
                let i = at.index(bytes.len() / 2) * 2;
                let word = u16::from_le_bytes([bytes[i], bytes[i + 1]]).wrapping_add(by as u16);
                bytes[i..i + 2].copy_from_slice(&word.to_le_bytes());
            }
            states.push(next);
        }
        states
    })
}

fn records(delta: &[u8]) -> Vec<&[u8]> {
    let opened = open(delta);
    let places = opened.index.chunks.iter();
    places
        .map(|c| &delta[c.offset as usize..][..c.length as usize])
        .collect()
}

proptest! {
    #[test]
    fn with_the_base(states in states(), profiles in prop::collection::vec(0usize..3, 5)) {
        let chain: Vec<Vec<u8>> = (1..states.len())
            .map(|v| diff(v as u64, Profile::ALL[profiles[v]], &states[v - 1], &states[v]))
            .collect();
        let deltas: Vec<Opened<'_>> = chain.iter().map(|d| open(d)).collect();
        let (first, last) = (&states[0], states.last().unwrap());
        for profile in Profile::ALL {
            let folded = fold(&deltas, Some(first), profile).unwrap();
            let direct = diff(deltas.len() as u64, profile, first, last);
            // The very chunks of the delta from the first state to the last.
            prop_assert_eq!(records(&folded), records(&direct));
            let (a, b) = (open(&folded), open(&direct));
            prop_assert_eq!(
                (a.index.base_state, a.index.result_state, a.index.changed),
                (b.index.base_state, b.index.result_state, b.index.changed)
            );
            prop_assert_eq!((a.header.base_version, a.header.version), (Some(0), deltas.len() as u64));
            prop_assert_eq!(&applied(&folded, first), last);
        }
    }

    #[test]
    fn tables_may_differ_in_their_order(states in states(), base in any::<bool>()) {
        let profile = if base { Profile::Compact } else { Profile::Overwrite };
        let folded = [false, true].map(|mixed| {
            let chain: Vec<Vec<u8>> = (1..states.len())
                .map(|v| {
                    let make = if mixed && v % 2 == 0 { diff_turned } else { diff };
                    make(v as u64, profile, &states[v - 1], &states[v])
                })
                .collect();
            let deltas: Vec<Opened<'_>> = chain.iter().map(|d| open(d)).collect();
            fold(&deltas, base.then_some(&states[0]), profile).unwrap()
        });
        // That of the first one counts.
        prop_assert_eq!(&folded[0], &folded[1]);
        prop_assert_eq!(&applied(&folded[1], &states[0]), states.last().unwrap());
    }

    #[test]
    fn without_the_base(states in states(), overwrite in any::<bool>()) {
        let profile = if overwrite { Profile::Overwrite } else { Profile::Fast };
        let chain: Vec<Vec<u8>> = (1..states.len())
            .map(|v| diff(v as u64, profile, &states[v - 1], &states[v]))
            .collect();
        let deltas: Vec<Opened<'_>> = chain.iter().map(|d| open(d)).collect();
        match fold(&deltas, None, profile) {
            Ok(folded) => prop_assert_eq!(&applied(&folded, &states[0]), states.last().unwrap()),
            // `fast` sends new elements where they take fewer bytes than steps.
            Err(error) => {
                prop_assert!(!overwrite && error.message.contains("another"), "{:?}", error);
            }
        }
    }
}

/// Three states: in the first step just the elements below 2 change, so that classes pay.
fn plain() -> (State, State, State) {
    let random = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
    let old: State = [
        (0..480).map(random).collect(),
        vec![1; 120],
        (0..512).map(random).collect(),
    ];
    let mut new = old.clone();
    for word in new[2]
        .chunks_exact_mut(2)
        .filter(|word| word[1] & 0x40 == 0)
    {
        word[0] ^= 1;
    }
    let mut newer = new.clone();
    newer[1][0] = 7;
    (old, new, newer)
}

#[test]
fn classes_need_the_base_and_the_right_one() {
    let (old, new, newer) = plain();
    let chain = [
        diff(1, Profile::Compact, &old, &new),
        diff(2, Profile::Compact, &new, &newer),
    ];
    let deltas: Vec<Opened<'_>> = chain.iter().map(|d| open(d)).collect();
    let error = fold(&deltas, None, Profile::Fast).unwrap_err();
    assert!(error.kind == Kind::WrongBase && error.message.contains("give the state"));
    assert_eq!(error.tensor.as_deref(), Some("v"));
    let mut other = old.clone();
    other[2][0] ^= 2;
    let error = fold(&deltas, Some(&other), Profile::Compact).unwrap_err();
    assert_eq!(error.kind, Kind::WrongBase, "{error:?}");
    assert!(error.message.contains("version 1"), "{error:?}");
    assert_eq!(
        applied(&fold(&deltas, Some(&old), Profile::Compact).unwrap(), &old),
        newer
    );
}

#[test]
fn deltas_must_follow_one_another() {
    let (old, new, newer) = plain();
    let a = diff(1, Profile::Fast, &old, &new);
    for b in [
        diff(3, Profile::Fast, &new, &newer),
        diff(2, Profile::Fast, &old, &newer),
    ] {
        let error = fold(&[open(&a), open(&b)], None, Profile::Fast).unwrap_err();
        assert_eq!(error.kind, Kind::Layout, "{error:?}");
    }
    let mut other = header(2, Profile::Fast);
    other.tensors.pop();
    let writer = Writer::new(vec![], other, Profile::Fast, Limits::default(), pool()).unwrap();
    let c = writer.finish().unwrap().0;
    let error = fold(&[open(&a), open(&c)], None, Profile::Fast).unwrap_err();
    assert!(
        error.kind == Kind::Layout && error.message.contains("tiles"),
        "{error:?}"
    );
    assert_eq!(
        fold(&[], None, Profile::Fast).unwrap_err().kind,
        Kind::Layout
    );
}

#[test]
fn steps_and_new_elements_of_one_tile_need_the_base() {
    let (old, new, _) = plain();
    let a = diff(1, Profile::Fast, &old, &new);
    let mut writer = Writer::new(
        vec![],
        header(2, Profile::Fast),
        Profile::Fast,
        Limits::default(),
        pool(),
    )
    .unwrap();
    let found = |base| Found {
        tensor: 2,
        positions: &[0, 100],
        values: &[9; 4],
        base,
    };
    writer.add_found(&found(None)).unwrap();
    let b = writer.finish().unwrap().0;
    let deltas = [open(&a), open(&b)];
    let error = fold(&deltas, None, Profile::Fast).unwrap_err();
    assert!(
        error.kind == Kind::WrongBase && error.message.contains("tile 0"),
        "{error:?}"
    );
    // With the base it works, though nobody named the state.
    let folded = fold(&deltas, Some(&old), Profile::Compact).unwrap();
    assert_eq!(open(&folded).index.result_state, None);
}

#[test]
fn changes_that_cancel_out_leave_nothing() {
    let (old, new, _) = plain();
    for profile in Profile::ALL {
        let chain = [diff(1, profile, &old, &new), diff(2, profile, &new, &old)];
        let deltas: Vec<Opened<'_>> = chain.iter().map(|d| open(d)).collect();
        let folded = fold(&deltas, Some(&old), profile).unwrap();
        assert_eq!(open(&folded).index.changed, 0);
        assert_eq!(applied(&folded, &old), old);
    }
}

#[test]
fn changes_must_add_up_to_the_states() {
    let (old, new, _) = plain();
    let (before, after) = (matrices(&old), matrices(&new));
    let profile = Profile::Compact;
    let limits = Limits::default();
    let mut writer = Writer::new(vec![], header(1, profile), profile, limits, pool()).unwrap();
    let pair = |t: usize| Pair {
        tensor: t as u32,
        base: before[t],
        new: after[t],
    };
    writer.add(&[pair(0), pair(1)], |_| Ok(())).unwrap();
    let (partition, [a, b]) = writer.partition::<u16>(&pair(2), 0).unwrap();
    let start = tensors()[2].start();
    let item = Partitioned {
        tile: 0,
        partition: &partition.unwrap(),
        result: b.lanes[0],
    };
    // A scanner that computes lane 1 of the result wrongly.
    let wrong = Digest::new(b.lanes[0], b.lanes[1] + 1);
    let digests = [start.plus(a), start.plus(wrong)];
    writer.add_partitions(2, digests, &[item]).unwrap();
    let delta = writer.finish().unwrap().0;
    let error = fold(&[open(&delta)], Some(&old), profile).unwrap_err();
    assert!(
        error.kind == Kind::Corrupt && error.message.contains("[F20]"),
        "{error:?}"
    );
}
