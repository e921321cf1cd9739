//! Both twins against the definition.

use super::*;
use proptest::prelude::*;

/// Classes and ranks by definition, sorted as `ranks` sorts them.
fn naive<W: Word>(
    elements: &[W],
    cols: usize,
    map: &ClassMap,
    rows: &[u8],
    positions: &[u32],
) -> (Vec<u32>, Vec<u32>) {
    let class = |i: usize| {
        let group = rows.get(i / cols).map_or(0, |&g| usize::from(g));
        group * map.count as usize + map.class(elements[i])
    };
    let mut counts = vec![0; map.count as usize * MAX_GROUPS];
    let mut ranks = vec![];
    for wanted in 0..counts.len() {
        for &p in positions.iter().filter(|&&p| class(p as usize) == wanted) {
            counts[wanted] += 1;
            ranks.push((0..p as usize).filter(|&i| class(i) == wanted).count() as u32);
        }
    }
    (counts, ranks)
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
    let (counts, expected) = naive(&elements, cols, &map, &groups_of, &positions);
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
    let mut places = vec![0u32; counts.len()];
    let mut sum = 0;
    for (place, count) in places.iter_mut().zip(&counts) {
        *place = sum;
        sum += count;
    }
    for level in Level::offered() {
        for (matrix, block) in [(&plain, plain.whole()), (&matrix, inner)] {
            let mut out = vec![u32::MAX; positions.len()];
            ranks_at::<W>(
                level,
                matrix,
                &block,
                &map,
                &groups_of,
                &positions,
                &classes,
                &mut places.clone(),
                &mut out,
            );
            assert_eq!(out, expected, "{level:?}");
            let (mut found, mut order) = (vec![], vec![]);
            assert!(select_at::<W>(
                level, matrix, &block, &map, &groups_of, &counts, &out, &mut found, &mut order,
            ));
            let mut pairs: Vec<(u32, u32)> = found.into_iter().zip(order).collect();
            // Positions in the order of the ranks: those of each class ascend.
            pairs.sort_unstable_by_key(|p| p.1);
            assert!(pairs.iter().enumerate().all(|(i, p)| p.1 == i as u32));
            let mut at = 0;
            for &count in &counts {
                let class = &pairs[at..at + count as usize];
                assert!(class.windows(2).all(|w| w[0].0 < w[1].0), "{level:?}");
                at += count as usize;
            }
            pairs.sort_unstable();
            assert!(pairs.iter().map(|p| p.0).eq(positions.iter().copied()));
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
        let all = select::<u16>(
            &matrix, &matrix.whole(), &map, &[], &counts, &ranks, &mut positions, &mut order,
        );
        prop_assert!(positions.iter().all(|&p| (p as usize) < bytes.len() / 2));
        prop_assert_eq!(all, positions.len() == ranks.len());
    }
}
