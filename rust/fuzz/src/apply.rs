//! Any sealed delta on a small target.

use deltawire_format::apply::{apply_chunk, commit, plan, KEEP};
use deltawire_format::chunk::{Scratch, CLASSES_RECORD};
use deltawire_format::state::tensor_digests;
use deltawire_format::{Chunk, Delta, Tensor};
use deltawire_kernels::{digest, Digest, Matrix, Target, Word};

use crate::seal::{seal_all, seal_record, varint};
use crate::stream::{open, pattern, Bytes, LIMITS, MOST};
use crate::{pool, with_width};

/// Plans on a target of zeros with the delta's layout: what a plan proves, the commit does. And each
/// chunk on a target of many patterns, once its digests are those of this target.
pub fn apply(data: &[u8]) {
    let mut data = data.to_vec();
    seal_all(&mut data);
    let Ok(delta) = open(&data) else {
        return;
    };
    for i in 0..delta.index.chunks.len() {
        let Ok(chunk) = delta.chunk(i) else { continue };
        let tensor = chunk.tensor(&delta.header.tensors);
        if tensor.bytes() <= MOST && tensor.rows <= MOST {
            let record = &data[chunk.offset as usize..][..chunk.len()];
            with_width!(tensor.width, W => one::<W>(&chunk, record, &delta.header.tensors));
        }
    }
    whole(&delta, data.len().is_multiple_of(2));
}

/// Applies a chunk that decodes, with digests that are right, and compares with its decoded changes.
fn one<W: Word>(chunk: &Chunk, record: &[u8], tensors: &[Tensor]) {
    let tensor = chunk.tensor(tensors);
    let block = chunk
        .tile_box(tensors)
        .expect("a parsed chunk has a tile")
        .block(tensor.width);
    let (rows, row) = (tensor.rows as usize, tensor.cols as usize * W::WIDTH);
    let mut state = pattern(tensor);
    let matrix = Matrix::new(&state, rows, row).expect("sizes agree");
    let mut scratch = Scratch::<W>::default();
    let located = chunk
        .decode(tensors, &mut scratch)
        .and_then(|()| scratch.locate(tensor, &matrix, &block));
    if located.is_err() {
        return;
    }
    let mut wanted = state.clone();
    let cols = block.bytes / W::WIDTH;
    for (i, &position) in scratch.positions.iter().enumerate() {
        let (r, c) = (position as usize / cols, position as usize % cols);
        let at = (block.row + r) * row + block.byte + c * W::WIDTH;
        let mut bytes = Vec::new();
        let old = W::read(&state[at..]);
        scratch
            .values
            .resolve(i, old, tensor.order())
            .append(&mut bytes);
        wanted[at..at + W::WIDTH].copy_from_slice(&bytes);
    }
    let lane0 = |bytes: &[u8]| {
        let matrix = Matrix::new(bytes, rows, row).expect("sizes agree");
        digest::block(tensor.key(), &matrix, &block).lanes[0]
    };
    let digests = [chunk.header.base, chunk.header.result];
    let record = with_digests(record, digests, [lane0(&state), lane0(&wanted)]);
    let chunk = Chunk::parse(record, chunk.offset, tensors, &LIMITS).expect("as it was");
    let target = Target::new(&mut state, rows, row).expect("sizes agree");
    apply_chunk(&chunk, tensors, target).expect("a chunk on its base");
    assert_eq!(state, wanted);
}

/// The record with other digests where it has any.
fn with_digests(record: &[u8], has: [Option<u64>; 2], digests: [u64; 2]) -> Vec<u8> {
    let field = |at| varint(record, at).expect("a parsed record").1;
    let mut at = field(1);
    if record[0] != CLASSES_RECORD {
        at += 2;
    }
    for _ in 0..3 {
        at = field(at);
    }
    let mut record = record.to_vec();
    for (old, new) in has.into_iter().zip(digests) {
        if let Some(old) = old {
            assert_eq!(record[at..at + 8], old.to_le_bytes());
            record[at..at + 8].copy_from_slice(&new.to_le_bytes());
            at += 8;
        }
    }
    seal_record(&mut record);
    record
}

/// Plans and commits all of a delta.
fn whole(delta: &Delta<Bytes<'_>>, kept: bool) {
    let tensors = &delta.header.tensors;
    let dense = tensors
        .iter()
        .try_fold(0u64, |sum, t| sum.checked_add(t.bytes()));
    let rows = tensors
        .iter()
        .try_fold(0u64, |sum, t| sum.checked_add(t.rows));
    if dense.is_none_or(|n| n > MOST) || rows.is_none_or(|n| n > MOST) {
        return;
    }
    let mut memory: Vec<Vec<u8>> = tensors
        .iter()
        .map(|t| vec![0; t.bytes() as usize])
        .collect();
    let row_bytes = |i: usize| tensors[i].cols as usize * usize::from(tensors[i].width);
    let matrices: Vec<_> = memory
        .iter()
        .enumerate()
        .map(|(i, m)| Matrix::new(m, tensors[i].rows as usize, row_bytes(i)).expect("sizes agree"))
        .collect();
    // Half of the inputs commit from kept changes, the others read their chunks again.
    let keep = if kept { KEEP } else { 0 };
    let alone = vec![None; tensors.len()];
    let before = state(tensors, &matrices);
    let Ok(planned) = plan(delta, &matrices, &alone, true, keep, pool(), |_| Ok(())) else {
        return;
    };
    drop(matrices);
    let targets: Vec<_> = memory
        .iter_mut()
        .enumerate()
        .map(|(i, m)| Target::new(m, tensors[i].rows as usize, row_bytes(i)).expect("sizes agree"))
        .collect();
    commit(delta, &planned, targets, pool()).expect("a plan can be carried out");
    let matrices: Vec<_> = memory
        .iter()
        .enumerate()
        .map(|(i, m)| Matrix::new(m, tensors[i].rows as usize, row_bytes(i)).expect("sizes agree"))
        .collect();
    let after = state(tensors, &matrices);
    let proof = planned.proof.expect("a full plan has a proof");
    match delta.index.result_state {
        Some(named) => {
            assert_eq!((named, named), (proof.result_state, after));
            let is_named = |d: Digest| Some(d) == delta.index.base_state || d == named;
            assert!(proof.base_state.is_none_or(|d| is_named(d) && d == before));
        }
        None => assert_eq!(
            (proof.base_state, proof.result_state),
            (Some(before), after)
        ),
    }
}

/// State digest over all tensors.
fn state(tensors: &[Tensor], matrices: &[Matrix<'_>]) -> Digest {
    let digests = tensor_digests(tensors, matrices, pool(), |_| Ok(())).expect("sizes agree");
    digests.iter().fold(Digest::default(), |a, d| a.plus(*d))
}
