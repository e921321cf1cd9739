//! Whole deltas: written, read in every way, checked against targets, damaged.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{apply, apply_keeping, feed, matrices, pool, write, Case};
use deltawire_format::writer::Found;
use deltawire_format::{Header, Kind, Limits, Profile, Tensor, Tiling, Writer};
use proptest::prelude::*;

fn case() -> impl Strategy<Value = Case> {
    let tensor = (
        prop::sample::select(vec!["BOOL", "F8_E4M3", "BF16", "F16", "F32", "F64", "I64"]),
        prop::collection::vec(0u64..12, 0..4),
        1u64..80,
        any::<u64>(),
        prop::collection::vec(
            (any::<prop::sample::Index>(), any::<u64>(), any::<bool>()),
            0..30,
        ),
        prop::bool::weighted(0.1),
    );
    prop::collection::vec(tensor, 0..4).prop_map(|specs| {
        let mut case = Case {
            tensors: vec![],
            base: vec![],
            new: vec![],
        };
        for (i, (dtype, shape, most, seed, changes, all)) in specs.into_iter().enumerate() {
            let tiling = Tiling {
                max_elements: most,
                ways: 4,
                min_elements: 1,
            };
            let probe = Tensor::new("x".into(), dtype.into(), shape.clone(), [1, 1 << 16])
                .or_else(|_| Tensor::new("x".into(), dtype.into(), shape.clone(), [0, 0]))
                .unwrap();
            let tile = tiling.tile("down_proj.weight", dtype, probe.rows, probe.cols);
            let t = Tensor::new(format!("t{i}"), dtype.into(), shape, tile).unwrap();
            let width = usize::from(t.width);
            let base: Vec<u8> = (0..t.bytes())
                .map(|j| (seed.wrapping_mul(j | 1).wrapping_add(j) >> 24) as u8)
                .collect();
            let mut new = base.clone();
            for (at, value, near) in changes {
                if t.elements() == 0 {
                    continue;
                }
                let e = at.index(t.elements() as usize) * width;
                if near {
                    new[e] = new[e].wrapping_add(1);
                } else {
                    new[e..e + width].copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            if all {
                new.iter_mut().for_each(|b| *b = b.wrapping_add(3));
            }
            case.tensors.push(t);
            case.base.push(base);
            case.new.push(new);
        }
        case
    })
}

proptest! {
    #[test]
    fn every_way_of_reading_gives_the_new_state(
        case in case(), threads in 1usize..4, piece in 1usize..200,
        profile in prop::sample::select(Profile::ALL.to_vec()),
    ) {
        let bytes = write(&case, profile, threads);
        prop_assert_eq!(&bytes, &write(&case, profile, 1), "threads do not change the bytes");
        let mut state = case.base.clone();
        apply(&bytes, &case, &mut state).unwrap();
        prop_assert_eq!(&state, &case.new);
        // Also where the commit reads the chunks again.
        let mut state = case.base.clone();
        apply_keeping(0, &bytes, &case, &mut state).unwrap();
        prop_assert_eq!(&state, &case.new);
        // Again: recognised, nothing to write.
        prop_assert_eq!(apply(&bytes, &case, &mut state).unwrap(), 0);
        let mut state = case.base.clone();
        feed(&bytes, piece, &mut state, &case).unwrap();
        prop_assert_eq!(&state, &case.new);
    }

    #[test]
    fn damage_is_seen_and_leaves_the_target(
        case in case(), at in any::<prop::sample::Index>(), bit in 0u8..8, piece in 1usize..300,
        profile in prop::sample::select(Profile::ALL.to_vec()),
    ) {
        let good = write(&case, profile, 1);
        let mut bad = good.clone();
        let i = at.index(bad.len());
        bad[i] ^= 1 << bit;
        for bytes in [&bad[..], &good[..i]] {
            let mut state = case.base.clone();
            let error = apply(bytes, &case, &mut state).unwrap_err();
            prop_assert!(matches!(error.kind, Kind::Corrupt | Kind::Unsupported | Kind::Limit), "{error}");
            prop_assert_eq!(&state, &case.base);
            prop_assert!(feed(bytes, piece, &mut state, &case).is_err());
        }
    }

    #[test]
    fn a_foreign_base_is_refused(
        case in case(), at in any::<prop::sample::Index>(), profile in prop::sample::select(Profile::ALL.to_vec()),
    ) {
        let bytes = write(&case, profile, 1);
        let mut state = case.base.clone();
        let sizes: Vec<usize> = state.iter().map(Vec::len).collect();
        let total: usize = sizes.iter().sum();
        prop_assume!(total > 0);
        let mut i = at.index(total);
        let mut t = 0;
        while i >= sizes[t] {
            i -= sizes[t];
            t += 1;
        }
        state[t][i] ^= 1;
        // An absolute delta may overwrite the foreign element; then the result is right.
        let before = state.clone();
        match apply(&bytes, &case, &mut state) {
            Ok(_) => prop_assert_eq!(&state, &case.new),
            Err(error) => {
                prop_assert_eq!(error.kind, Kind::WrongBase);
                prop_assert_eq!(&state, &before);
            }
        }
    }

    #[test]
    fn found_changes_equal_compared_ones(case in case(), profile in prop::sample::select(Profile::ALL.to_vec())) {
        let expected = write(&case, profile, 1);
        let header = Header {
            run: "run".into(), version: 8, base_version: Some(7), profile: profile.name().into(),
            tensors: case.tensors.clone(), ..Header::default()
        };
        let mut relative = Writer::new(Vec::new(), header.clone(), profile, Limits::default(), pool(2)).unwrap();
        let mut absolute = Writer::new(Vec::new(), header, profile, Limits::default(), pool(2)).unwrap();
        let base = matrices(&case.tensors, &case.base);
        for (i, t) in case.tensors.iter().enumerate() {
            let width = usize::from(t.width);
            let element = |bytes: &[u8], p: usize| bytes[p * width..(p + 1) * width].to_vec();
            let positions: Vec<i64> = (0..t.elements() as usize)
                .filter(|&p| element(&case.base[i], p) != element(&case.new[i], p))
                .map(|p| p as i64).collect();
            let values: Vec<u8> =
                positions.iter().flat_map(|&p| element(&case.new[i], p as usize)).collect();
            let found = Found { tensor: i as u32, positions: &positions, values: &values, base: Some(base[i]) };
            relative.add_found(&found).unwrap();
            absolute.add_found(&Found { base: None, ..found }).unwrap();
        }
        prop_assert_eq!(relative.finish().unwrap().0, expected);
        let mut state = case.base.clone();
        apply(&absolute.finish().unwrap().0, &case, &mut state).unwrap();
        prop_assert_eq!(&state, &case.new);
    }

    #[test]
    fn any_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut state = vec![];
        let case = Case { tensors: vec![], base: vec![], new: vec![] };
        prop_assert!(apply(&bytes, &case, &mut state).is_err());
    }
}
