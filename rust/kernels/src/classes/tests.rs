//! Both twins against the definition.

use super::*;
use proptest::prelude::*;

/// Class by group, and rank, by definition.
fn naive<W: Word>(
    elements: &[W],
    cols: usize,
    map: &ClassMap,
    rows: &[u8],
    positions: &[u32],
) -> Vec<(usize, u32)> {
    let class = |i: usize| {
        let group = rows.get(i / cols).map_or(0, |&g| usize::from(g));
        group * map.count as usize + map.class(elements[i])
    };
    let rank = |p: usize| (0..p).filter(|&i| class(i) == class(p)).count() as u32;
    positions
        .iter()
        .map(|&p| (class(p as usize), rank(p as usize)))
        .collect()
}

/// The public functions and both twins against the definition.
fn check<W: Word>(bytes: &[u8], cols: usize, groups: u8, map: ClassMap, picks: &[usize]) {
    let rows = bytes.len() / W::WIDTH / cols;
    if rows == 0 {
        return;
    }
    let bytes = &bytes[..rows * cols * W::WIDTH];
    let elements: Vec<W> = bytes.chunks_exact(W::WIDTH).map(W::read).collect();
    let mut positions: Vec<u32> = picks.iter().map(|p| (p % elements.len()) as u32).collect();
    positions.sort_unstable();
    positions.dedup();
    let groups_of: Vec<u8> = match groups {
        0 => vec![],
        n => (0..rows).map(|r| (r * 7 % n as usize) as u8).collect(),
    };
    let expected = naive(&elements, cols, &map, &groups_of, &positions);
    let mut counts = vec![0u32; map.count as usize * MAX_GROUPS];
    let mut sorted = expected.clone();
    sorted.sort_unstable();
    sorted.iter().for_each(|&(class, _)| counts[class] += 1);
    let ranks: Vec<u32> = sorted.iter().map(|s| s.1).collect();
    let classes: Vec<u8> = positions
        .iter()
        .map(|&p| map.class(elements[p as usize]) as u8)
        .collect();
    // Contiguous, and as a block of a wider matrix.
    let wide: Vec<u8> = bytes
        .chunks_exact(cols * W::WIDTH)
        .flat_map(|row| [&[1; 8][..], row, &[2; 8][..]].concat())
        .collect();
    let plain = Matrix::new(bytes, rows, cols * W::WIDTH).unwrap();
    let matrix = Matrix::new(&wide, rows, cols * W::WIDTH + 16).unwrap();
    let inner = Block {
        row: 0,
        rows,
        byte: 8,
        bytes: cols * W::WIDTH,
    };
    for level in Level::offered() {
        for (matrix, block) in [(&plain, plain.whole()), (&matrix, inner)] {
            // In one part, and in two.
            for cut in [0, rows / 2] {
                let parts = [(0, cut), (cut, rows - cut)].map(|(row, n)| Part {
                    matrix,
                    block: Block {
                        row,
                        rows: n,
                        ..block
                    },
                    map,
                    rows: groups_of.get(row..row + n).unwrap_or(&[]),
                });
                let first = positions.partition_point(|&p| (p as usize) < cut * cols);
                let (mut progress, mut out) = (Progress::default(), vec![]);
                for (part, range) in parts.iter().zip([0..first, first..positions.len()]) {
                    let (positions, classes) = (&positions[range.clone()], &classes[range]);
                    ranks_at::<W>(level, part, &mut progress, positions, classes, &mut out);
                }
                assert!(out.iter().eq(expected.iter().map(|e| &e.1)), "{level:?}");
                let (mut found, mut order) = (vec![9], vec![9]);
                let classes = map.count as usize;
                let mut selector = Selector::new(classes, &counts, &ranks, &mut found, &mut order);
                progress.restart();
                for part in &parts {
                    selector.next_at::<W>(level, part, &mut progress);
                }
                assert!(selector.is_complete());
                let mut pairs: Vec<(u32, u32)> = found.into_iter().zip(order).collect();
                pairs.sort_unstable();
                assert!(pairs.iter().map(|p| p.0).eq(positions.iter().copied()));
                for ((_, i), expected) in pairs.iter().zip(&expected) {
                    assert_eq!(sorted[*i as usize], *expected, "{level:?}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn ranks_and_positions_of_every_width(
        bytes in prop::collection::vec(any::<u8>(), 8..9000), cols in 1usize..200, groups in 0u8..9,
        picks in prop::collection::vec(any::<usize>(), 1..200), top in 0u32..300, count in 1u32..17,
    ) {
        let map = |shift, mask| ClassMap { shift, mask, top: top.min(mask), count };
        check::<u8>(&bytes, cols, groups, map(3, 0xf), &picks);
        check::<u16>(&bytes, cols, groups, map(7, 0xff), &picks);
        check::<u32>(&bytes, cols, groups, map(23, 0xff), &picks);
        check::<u64>(&bytes, cols, groups, map(52, 0x7ff), &picks);
    }

    #[test]
    fn rows_that_share_batches(
        bytes in prop::collection::vec(any::<u8>(), 1000..40_000), lines in 1usize..5, groups in 0u8..4,
        picks in prop::collection::vec(any::<usize>(), 1..200), top in 0u32..300, count in 1u32..17,
    ) {
        let map = |shift, mask| ClassMap { shift, mask, top: top.min(mask), count };
        check::<u8>(&bytes, 64 * lines, groups, map(3, 0xf), &picks);
        check::<u16>(&bytes, 64 * lines, groups, map(7, 0xff), &picks);
    }

    #[test]
    fn ranks_that_do_not_exist(
        bytes in prop::collection::vec(any::<u8>(), 2..3000),
        ranks in prop::collection::vec(0u32..2000, 1..20), split in any::<prop::sample::Index>(),
    ) {
        let bytes = &bytes[..bytes.len() / 2 * 2];
        let matrix = Matrix::new(bytes, 1, bytes.len()).unwrap();
        let map = ClassMap { shift: 7, mask: 0xff, top: 128, count: 2 };
        let first = split.index(ranks.len() + 1) as u32;
        let counts = [first, ranks.len() as u32 - first];
        let (mut positions, mut order) = (vec![], vec![]);
        let part = Part { matrix: &matrix, block: matrix.whole(), map, rows: &[] };
        let mut selector = Selector::new(2, &counts, &ranks, &mut positions, &mut order);
        selector.next::<u16>(&part, &mut Progress::default());
        let (all, found) = (selector.is_complete(), selector.found);
        prop_assert!(positions.iter().all(|&p| (p as usize) < bytes.len() / 2));
        prop_assert_eq!(all, found == ranks.len());
    }
}
