//! Which exponent classes suit a tile's changes, and the changes in their order.

use deltawire_kernels::classes::{self, ClassMap, MAX_CLASSES};
use deltawire_kernels::{Block, Matrix, Word};

use crate::codec::Partition;
use crate::table::Tensor;

/// Fewest changes of a tile, and of a class at either end, that pay for a class of their own.
const FEW: u32 = 24;

/// A partition, and for each of its ranks the index among the ascending positions.
#[derive(Debug)]
pub struct Classified {
    /// Counts and ranks.
    pub partition: Partition,
    /// Order of the partition's ranks.
    pub order: Vec<u32>,
}

/// Highest and lowest exponent that get a class of their own, from the exponents of changes.
fn bounds(counts: &[u32], total: u32) -> Option<(u32, u32)> {
    let few = FEW.max(total / 128);
    let reach = |mut exponents: Box<dyn Iterator<Item = usize> + '_>| {
        let mut sum = 0;
        exponents.find(|&e| {
            sum += counts[e];
            sum > few
        })
    };
    let top = reach(Box::new((0..counts.len()).rev()))?;
    let low = reach(Box::new(0..counts.len()))?;
    (low < top).then_some((top as u32, low as u32))
}

/// Groups a tile's changes by exponent of the base; `None` where that does not pay.
///
/// `old` are the elements at `positions`.
pub fn classify<W: Word>(
    tensor: &Tensor,
    base: &Matrix<'_>,
    block: &Block,
    positions: &[u32],
    old: &[W],
) -> Option<Classified> {
    let total = positions.len() as u32;
    // Where many elements change, the classes say little, and their lists are long.
    if total < 2 * FEW || 4 * total as usize > block.len() / W::WIDTH {
        return None;
    }
    let probe = tensor.class_map(0, 1)?;
    let mut counts = vec![0u32; probe.mask as usize + 1];
    for &bits in old {
        counts[probe.exponent(bits) as usize] += 1;
    }
    let (top, low) = bounds(&counts, total)?;
    let count = (top - low + 1).min(MAX_CLASSES as u32);
    let map = ClassMap {
        top,
        count,
        ..probe
    };
    let mut found = Vec::with_capacity(positions.len());
    classes::ranks::<W>(base, block, &map, positions, &mut found);

    let mut counts = vec![0u32; count as usize];
    for (class, _) in &found {
        counts[usize::from(*class)] += 1;
    }
    let mut next: Vec<usize> = Vec::with_capacity(counts.len());
    let mut sum = 0;
    for &n in &counts {
        next.push(sum);
        sum += n as usize;
    }
    let mut ranks = vec![0; found.len()];
    let mut order = vec![0; found.len()];
    for (i, (class, rank)) in found.into_iter().enumerate() {
        let at = &mut next[usize::from(class)];
        ranks[*at] = rank;
        order[*at] = i as u32;
        *at += 1;
    }
    Some(Classified {
        partition: Partition {
            top: top as u16,
            counts,
            ranks,
        },
        order,
    })
}
