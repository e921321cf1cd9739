//! Any sealed delta on a small target.

use deltawire_format::apply::{commit, plan, KEEP};
use deltawire_format::Delta;
use deltawire_kernels::{Matrix, Target};

use crate::pool;
use crate::seal::seal_all;
use crate::stream::{Bytes, LIMITS};

/// Most dense bytes of a delta's tensors that a target is made for.
const MOST: u64 = 1 << 16;

/// Plans on a target of zeros with the delta's layout: what a plan proves, the commit does.
pub fn apply(data: &[u8]) {
    let mut data = data.to_vec();
    seal_all(&mut data);
    let Ok(delta) = Delta::open(Bytes(&data), LIMITS) else {
        return;
    };
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
    let keep = if data.len().is_multiple_of(2) {
        KEEP
    } else {
        0
    };
    let alone = vec![None; tensors.len()];
    let Ok(planned) = plan(&delta, &matrices, &alone, true, keep, pool(), |_| Ok(())) else {
        return;
    };
    drop(matrices);
    let targets: Vec<_> = memory
        .iter_mut()
        .enumerate()
        .map(|(i, m)| Target::new(m, tensors[i].rows as usize, row_bytes(i)).expect("sizes agree"))
        .collect();
    commit(&delta, &planned, targets, pool()).expect("a plan can be carried out");
    let matrices: Vec<_> = memory
        .iter()
        .enumerate()
        .map(|(i, m)| Matrix::new(m, tensors[i].rows as usize, row_bytes(i)).expect("sizes agree"))
        .collect();
    let digests = deltawire_format::state::tensor_digests(tensors, &matrices, pool(), |_| Ok(()))
        .expect("sizes agree");
    let sum = digests
        .iter()
        .fold(deltawire_kernels::Digest::default(), |a, d| a.plus(*d));
    let proof = planned.proof.expect("a full plan has a proof");
    assert_eq!(sum, proof.result_state);
}
