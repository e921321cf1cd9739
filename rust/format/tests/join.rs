//! What several writers make of their parts is, joined, what one writer makes of the whole.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod common;

use common::{apply, matrices, open, pool, Bytes, Case};
use deltawire_format::apply::plan;
use deltawire_format::error::Kind;
use deltawire_format::join::{Joined, Part, Refused};
use deltawire_format::writer::{Pair, Summary};
use deltawire_format::{Delta, Header, Limits, Profile, Tensor, Writer};
use deltawire_kernels::{Digest, Matrix};
use proptest::prelude::*;

const RANKS: usize = 4;
const DTYPES: [&str; 4] = ["BF16", "F16", "I16", "U16"];

/// Rows, columns (top, bottom, left, right) of a shard.
type Place = [usize; 4];

/// Tensors of 16-bit elements in tiles of 4 by 8, and which rank has which box of which.
#[derive(Clone, Debug)]
struct Run {
    case: Case,
    held: Vec<Vec<(usize, Place)>>,
}

#[derive(Clone, Debug)]
struct Made {
    rows: usize,
    cols: usize,
    seed: u64,
    changes: Vec<(prop::sample::Index, u16)>,
    cuts: (usize, usize),
    first: usize,
    /// Whole, rows of two ranks, boxes of four.
    split: usize,
}

fn made() -> impl Strategy<Value = Made> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 1u16..9), 0..40);
    (
        (0usize..20, 1usize..40),
        any::<u64>(),
        changes,
        (0usize..6, 0usize..6),
        0..RANKS,
        0usize..3,
    )
        .prop_map(|((rows, cols), seed, changes, cuts, first, split)| Made {
            rows,
            cols,
            seed,
            changes,
            cuts,
            first,
            split,
        })
}

fn places(made: &Made) -> Vec<Place> {
    let (rows, cols) = (made.rows, made.cols);
    let (r, c) = ((4 * made.cuts.0).min(rows), (8 * made.cuts.1).min(cols));
    match made.split {
        // A tensor without elements has one owner all the same: its start value counts once.
        _ if rows * cols == 0 => vec![[0, rows, 0, cols]],
        0 => vec![[0, rows, 0, cols]],
        1 => vec![[0, r, 0, cols], [r, rows, 0, cols]],
        _ => [(0, r), (r, rows)]
            .into_iter()
            .flat_map(|(a, b)| [(0, c), (c, cols)].map(|(x, y)| [a, b, x, y]))
            .collect(),
    }
}

fn run() -> impl Strategy<Value = Run> {
    prop::collection::vec(made(), 1..5).prop_map(|all| {
        let mut run = Run {
            case: Case {
                tensors: vec![],
                base: vec![],
                new: vec![],
            },
            held: vec![vec![]; RANKS],
        };
        for (t, made) in all.into_iter().enumerate() {
            let n = made.rows * made.cols;
            let seed = made.seed;
            let words = (0..n).map(|i| (seed.wrapping_mul(i as u64 * 2 + 1) >> 33) as u16);
            let mut new: Vec<u16> = words.collect();
            let bytes = |words: &[u16]| words.iter().flat_map(|w| w.to_le_bytes()).collect();
            run.case.base.push(bytes(&new));
            for (at, add) in made.changes.iter().filter(|_| n > 0) {
                let i = at.index(n);
                new[i] = new[i].wrapping_add(*add);
            }
            run.case.new.push(bytes(&new));
            let tile = if n == 0 { [0, 0] } else { [4, 8] };
            let shape = vec![made.rows as u64, made.cols as u64];
            let dtype = DTYPES[t].into();
            let tensor = Tensor::new(format!("t{t}"), dtype, shape, tile).unwrap();
            run.case.tensors.push(tensor);
            for (i, place) in places(&made).into_iter().enumerate() {
                // In an order of the rank's own.
                let held = &mut run.held[(made.first + i) % RANKS];
                held.insert(held.len() / 2, (t, place));
            }
        }
        run
    })
}

fn cut(tensor: &Tensor, bytes: &[u8], [top, bottom, left, right]: Place) -> Vec<u8> {
    let rows = bytes.chunks_exact(2 * tensor.cols as usize);
    let rows = rows.take(bottom).skip(top);
    rows.flat_map(|row| &row[2 * left..2 * right])
        .copied()
        .collect()
}

fn shard<'a>(tensor: &Tensor, bytes: &'a [u8], [top, bottom, left, right]: Place) -> Matrix<'a> {
    let (rows, row_bytes) = (tensor.rows as usize, 2 * tensor.cols as usize);
    Matrix::new(bytes, bottom - top, 2 * (right - left))
        .unwrap()
        .within(rows, row_bytes, top, 2 * left)
        .unwrap()
}

fn header(tensors: Vec<Tensor>) -> Header {
    Header {
        run: "run".into(),
        version: 8,
        base_version: Some(7),
        tensors,
        ..Header::default()
    }
}

fn write(case: &Case, held: &[(usize, Place)], profile: Profile) -> (Vec<u8>, Summary) {
    let cuts: Vec<[Vec<u8>; 2]> = held
        .iter()
        .map(|&(t, place)| {
            [&case.base, &case.new].map(|state| cut(&case.tensors[t], &state[t], place))
        })
        .collect();
    let table: Vec<Tensor> = held.iter().map(|(t, _)| case.tensors[*t].clone()).collect();
    let mut header = header(table);
    header.profile = profile.name().into();
    let mut writer = Writer::new(vec![], header, profile, Limits::default(), pool(1)).unwrap();
    let pairs: Vec<Pair<'_>> = held
        .iter()
        .zip(&cuts)
        .enumerate()
        .map(|(i, (&(t, place), [base, new]))| Pair {
            tensor: i as u32,
            base: shard(&case.tensors[t], base, place),
            new: shard(&case.tensors[t], new, place),
        })
        .collect();
    writer.add(&pairs, |_| Ok(())).unwrap();
    writer.finish().unwrap()
}

fn everything(case: &Case) -> Vec<(usize, Place)> {
    let tensors = case.tensors.iter().enumerate();
    tensors
        .map(|(t, tensor)| (t, [0, tensor.rows as usize, 0, tensor.cols as usize]))
        .collect()
}

/// Joins deltas under the header of [`header`]; `chunks` are those to take of each.
fn join(
    deltas: &[Vec<u8>],
    states: [Digest; 2],
    chunks: Option<&[Vec<usize>]>,
) -> Result<Vec<u8>, Refused> {
    let mut opened = Vec::new();
    for (part, delta) in deltas.iter().enumerate() {
        opened.push(open(delta).map_err(|error| Refused {
            part: Some(part),
            error,
        })?);
    }
    let parts: Vec<Part<'_, Bytes<'_>>> = opened
        .iter()
        .enumerate()
        .map(|(p, delta)| Part {
            delta,
            chunks: chunks.map(|chunks| &chunks[p][..]),
        })
        .collect();
    let header = Header {
        base_state: Some(states[0]),
        ..header(vec![])
    };
    let joined = Joined::new(&parts, header, Some(states[1]))?;
    Ok(joined.write(vec![])?.0)
}

fn parts(run: &Run, profile: Profile) -> (Vec<Vec<u8>>, [Digest; 2]) {
    let mut sums = [Digest::default(); 2];
    let deltas = run
        .held
        .iter()
        .map(|held| {
            let (delta, summary) = write(&run.case, held, profile);
            let states = [summary.base_state, summary.result_state];
            sums = [0, 1].map(|i| sums[i].plus(states[i].unwrap()));
            delta
        })
        .collect();
    (deltas, sums)
}

fn records(delta: &[u8]) -> Vec<&[u8]> {
    let opened = open(delta).unwrap();
    let places = opened.index.chunks.iter();
    places
        .map(|c| &delta[c.offset as usize..][..c.length as usize])
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn parts_join_into_what_one_writer_makes(
        run in run(), profile in prop::sample::select(Profile::ALL.to_vec()),
    ) {
        let (whole, stats) = write(&run.case, &everything(&run.case), profile);
        let (deltas, sums) = parts(&run, profile);
        prop_assert_eq!([stats.base_state, stats.result_state], sums.map(Some));

        let joined = join(&deltas, sums, None).unwrap();
        // The names are in order, so that the tables are equal, and the records to the byte.
        prop_assert_eq!(records(&joined), records(&whole));
        let (a, b) = (open(&joined).unwrap(), open(&whole).unwrap());
        prop_assert_eq!(&a.header.tensors, &b.header.tensors);
        prop_assert_eq!((a.index.base_state, a.index.result_state), (stats.base_state, stats.result_state));
        prop_assert_eq!((a.index.changed, a.header.profile), (b.index.changed, b.header.profile));
        for (mine, digest) in a.index.digests.iter().zip(&b.index.digests) {
            prop_assert!(mine.is_none() || mine == digest);
        }
        let mut state = run.case.base.clone();
        apply(&joined, &run.case, &mut state).unwrap();
        prop_assert!(state == run.case.new);

        // However the parts are ordered, and joined again.
        let mut turned = deltas.clone();
        turned.rotate_left(1);
        prop_assert_eq!(&join(&turned, sums, None).unwrap(), &joined);
        let again = join(std::slice::from_ref(&joined), sums, None).unwrap();
        prop_assert_eq!(&again, &joined);
        let alone = join(&[whole], sums, None).unwrap();
        prop_assert_eq!(records(&alone), records(&joined));
        let mut state = run.case.base.clone();
        apply(&alone, &run.case, &mut state).unwrap();
        prop_assert!(state == run.case.new);
    }

    #[test]
    fn a_reader_joins_the_chunks_that_it_needs(run in run(), rank in 0..RANKS) {
        let (deltas, sums) = parts(&run, Profile::Compact);
        // A rank of a reader that has the same shards as one of the writers.
        let held = &run.held[rank];
        let needed: Vec<Vec<usize>> = deltas
            .iter()
            .map(|delta| {
                let opened = open(delta).unwrap();
                let places = opened.index.chunks.iter().enumerate();
                places
                    .filter(|(_, place)| {
                        let tensor = &opened.header.tensors[place.tensor as usize];
                        held.iter().any(|&(t, place_of)| {
                            let own = &run.case.tensors[t];
                            let bytes = cut(own, &run.case.base[t], place_of);
                            own.name == tensor.name
                                && tensor.holds(&shard(own, &bytes, place_of), place.tile)
                        })
                    })
                    .map(|(i, _)| i)
                    .collect()
            })
            .collect();
        let joined = join(&deltas, sums, Some(&needed)).unwrap();
        prop_assert_eq!(records(&joined).len(), records(&deltas[rank]).len());
        let delta = open(&joined).unwrap();
        // What it lacks of a tensor is a shard without elements.
        let mut memory = Vec::new();
        for tensor in &delta.header.tensors {
            let own = held.iter().find(|(t, _)| run.case.tensors[*t].name == tensor.name);
            let (t, place) = own.copied().unwrap_or((0, [0, 0, 0, 0]));
            memory.push((cut(tensor, if own.is_some() { &run.case.base[t] } else { &[] }, place), place));
        }
        let views: Vec<Matrix<'_>> = delta.header.tensors.iter().zip(&memory)
            .map(|(tensor, (bytes, place))| shard(tensor, bytes, *place))
            .collect();
        let alone = vec![None; views.len()];
        let made = plan(&delta, &views, &alone, true, 1 << 20, &pool(1), |_| Ok(())).unwrap();
        prop_assert_eq!(made.changed, open(&deltas[rank]).unwrap().index.changed);
    }

    #[test]
    fn altered_parts_are_refused(
        run in run(), part in 0..RANKS, place in any::<prop::sample::Index>(), bit in 0..8u32,
    ) {
        let (mut deltas, sums) = parts(&run, Profile::Fast);
        let place = place.index(deltas[part].len());
        deltas[part][place] ^= 1 << bit;
        let refused = join(&deltas, sums, None).unwrap_err();
        prop_assert_eq!(refused.part, Some(part));
        prop_assert!(matches!(
            refused.error.kind,
            Kind::Corrupt | Kind::Unsupported | Kind::Limit
        ), "{}", refused.error);
    }

    #[test]
    fn any_bytes_give_an_error_or_a_delta(
        run in run(), part in 0..RANKS,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut deltas, sums) = parts(&run, Profile::Compact);
        let delta = &mut deltas[part];
        for (at, byte) in edits {
            let at = at.index(delta.len());
            delta[at] = byte;
        }
        delta.truncate(cut.index(delta.len() + 1));
        if let Ok(joined) = join(&deltas, sums, None) {
            open(&joined).unwrap();
        }
    }
}

/// Two ranks with halves of the rows of `w`, all of it changed.
fn halves() -> (Case, Vec<Vec<u8>>, [Digest; 2]) {
    let tensor = Tensor::new("w".into(), "U16".into(), vec![8, 8], [4, 8]).unwrap();
    let case = Case {
        tensors: vec![tensor],
        base: vec![vec![1; 128]],
        new: vec![vec![2; 128]],
    };
    let halves =
        [[0, 4, 0, 8], [4, 8, 0, 8]].map(|place| write(&case, &[(0, place)], Profile::Fast));
    let sums = [0, 1].map(|side| {
        halves.iter().fold(Digest::default(), |sum, (_, s)| {
            sum.plus([s.base_state, s.result_state][side].unwrap())
        })
    });
    (case, halves.map(|half| half.0).to_vec(), sums)
}

fn refused(deltas: &[Vec<u8>], chunks: Option<&[Vec<usize>]>) -> (Kind, Option<usize>, String) {
    let refused = join(deltas, [Digest::default(); 2], chunks).unwrap_err();
    let error = refused.error;
    (error.kind, refused.part, error.to_string())
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let (case, deltas, _) = halves();
    let layout =
        |deltas: &[Vec<u8>], chunks: Option<&[Vec<usize>]>, part: Option<usize>, text: &str| {
            let (kind, named, message) = refused(deltas, chunks);
            assert_eq!((kind, named), (Kind::Layout, part), "{message}");
            assert!(message.contains(text), "{message}");
        };
    layout(&[], None, None, "no parts");
    // The same tile from two ranks.
    let all = write(&case, &everything(&case), Profile::Fast).0;
    let twice = [deltas[0].clone(), deltas[1].clone(), all];
    layout(
        &twice,
        None,
        Some(2),
        "tensor \"w\": tile 0 is in part 0 and in part 2",
    );
    layout(
        &deltas,
        Some(&[vec![0, 0], vec![]]),
        Some(0),
        "tile 0 is in part 0 and in part 0",
    );
    layout(&deltas, Some(&[vec![0], vec![1]]), Some(1), "chunk 1 of 1");

    let other = |tensor: Tensor, change: &dyn Fn(&mut Header)| {
        let mut header = header(vec![tensor]);
        change(&mut header);
        let writer = Writer::new(vec![], header, Profile::Fast, Limits::default(), pool(1));
        vec![deltas[0].clone(), writer.unwrap().finish().unwrap().0]
    };
    let tensor = |dtype: &str, shape: [u64; 2], tile| {
        Tensor::new("w".into(), dtype.into(), shape.to_vec(), tile).unwrap()
    };
    let w = || tensor("U16", [8, 8], [4, 8]);
    layout(
        &other(tensor("I16", [8, 8], [4, 8]), &|_| ()),
        None,
        Some(1),
        "is I16 [8, 8]",
    );
    layout(
        &other(tensor("U16", [4, 8], [4, 8]), &|_| ()),
        None,
        Some(1),
        "same whole shapes",
    );
    layout(
        &other(tensor("U16", [8, 8], [8, 8]), &|_| ()),
        None,
        Some(1),
        "in tiles [8, 8]",
    );
    layout(
        &other(w(), &|h| h.version = 9),
        None,
        Some(1),
        "leads to version 9",
    );
    layout(
        &other(w(), &|h| h.base_version = Some(6)),
        None,
        Some(1),
        "starts from version 6",
    );
    layout(
        &other(w(), &|h| h.run = "other".into()),
        None,
        Some(1),
        "is of run",
    );
    // A delta without a base version, which the overwrite profile does not need, is no contradiction.
    join(
        &other(w(), &|h| h.base_version = None),
        [Digest::default(); 2],
        None,
    )
    .unwrap();
}

#[test]
fn wrong_sums_do_not_prove_the_result() {
    let (case, deltas, [base, result]) = halves();
    let mut state = case.base.clone();
    let wrong = join(&deltas, [base, result.plus(base)], None).unwrap();
    let error = apply(&wrong, &case, &mut state).unwrap_err();
    assert_eq!(error.kind, Kind::WrongBase);
    assert!(state == case.base);
    // A part that is missing is noticed in the same way.
    let half = join(&deltas[..1], [base, result], None).unwrap();
    assert_eq!(
        apply(&half, &case, &mut state).unwrap_err().kind,
        Kind::WrongBase
    );
    assert!(state == case.base);
    let whole = join(&deltas, [base, result], None).unwrap();
    apply(&whole, &case, &mut state).unwrap();
    assert!(state == case.new);
    let views = matrices(&case.tensors, &state);
    assert_eq!(views.len(), 1);
}

#[test]
fn a_full_sink_and_a_miscounting_index_are_errors() {
    #[derive(Debug)]
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (_, deltas, _) = halves();
    let opened: Vec<Delta<Bytes<'_>>> = deltas.iter().map(|delta| open(delta).unwrap()).collect();
    let parts: Vec<Part<'_, _>> = opened
        .iter()
        .map(|delta| Part {
            delta,
            chunks: None,
        })
        .collect();
    let joined = Joined::new(&parts, header(vec![]), None).unwrap();
    let refused = joined.write(Full).unwrap_err();
    assert_eq!((refused.part, refused.error.kind), (None, Kind::Store));

    let mut opened = opened;
    opened[1].index.changed += 1;
    let parts: Vec<Part<'_, _>> = opened
        .iter()
        .map(|delta| Part {
            delta,
            chunks: None,
        })
        .collect();
    let joined = Joined::new(&parts, header(vec![]), None).unwrap();
    let refused = joined.write(vec![]).unwrap_err();
    assert_eq!((refused.part, refused.error.kind), (Some(1), Kind::Corrupt));
}
