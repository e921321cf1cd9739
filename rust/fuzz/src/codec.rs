//! Position, value and class streams on their own.

use arbitrary::{Result, Unstructured};
use deltawire_format::codec::{classes, positions, values, Partition, PositionCodec};
use deltawire_format::codec::{ValueCodec, Values};
use deltawire_kernels::classes::{MAX_CLASSES, MAX_GROUPS};
use deltawire_kernels::ordered::Order;
use deltawire_kernels::Word;

use crate::with_width;

/// Most elements of a tile [F5].
const TILE: u32 = 1 << 22;

/// Decodes any streams; what is accepted must be in bounds and survive encoding.
pub fn codec(data: &[u8]) {
    let _ = lists(&mut Unstructured::new(data));
    let _ = any_classes(&mut Unstructured::new(data));
    let _ = made_classes(&mut Unstructured::new(data));
}

/// Streams of positions and of values.
fn lists(u: &mut Unstructured<'_>) -> Result<()> {
    let elements = u.int_in_range(1..=5000u32)?;
    let count = u.int_in_range(1..=elements)?;
    let width = *u.choose(&[1usize, 2, 4, 8])?;
    let codec = *u.choose(&PositionCodec::ALL)?;
    let value_codec = *u.choose(&ValueCodec::ALL)?;
    let cut = u.int_in_range(0..=u.len())?;
    let bytes = u.bytes(u.len())?;
    let (stream, value_stream) = bytes.split_at(cut.min(bytes.len()));
    let mut out = vec![9; 3];
    if positions::decode(codec, stream, count, elements, &mut out).is_ok() {
        assert_ne!(codec, PositionCodec::Classes);
        assert_eq!(out.len(), count as usize);
        assert!(out.windows(2).all(|p| p[0] < p[1]) && *out.last().unwrap_or(&0) < elements);
        assert!(stream.len() as u64 <= codec.max_len(count, elements));
        for plan in positions::plans(&out, elements) {
            let (mut again, mut back) = (Vec::new(), Vec::new());
            positions::encode(&plan, &out, elements, &mut again);
            positions::decode(plan.codec, &again, count, elements, &mut back)
                .expect("what was encoded decodes");
            assert_eq!(back, out);
        }
    }
    with_width!(width, W => check_values::<W>(value_codec, value_stream, count));
    Ok(())
}

fn check_values<W: Word>(codec: ValueCodec, stream: &[u8], count: u32) {
    let mut out = Values::<W>::default();
    if values::decode(codec, stream, count, &mut out).is_err() {
        return;
    }
    assert_eq!(out.len(), count as usize);
    assert_eq!(out.are_steps(), codec.is_step());
    assert!(stream.len() as u64 <= codec.max_len(count, W::WIDTH));
    let order = Order::Float;
    let old: Vec<W> = (0..u64::from(count))
        .map(|i| W::from_u64(i.wrapping_mul(0x9e37)))
        .collect();
    let new: Vec<W> = old
        .iter()
        .enumerate()
        .map(|(i, &w)| out.resolve(i, w, order))
        .collect();
    let mut again = Vec::new();
    match codec {
        ValueCodec::Raw => values::encode_raw(&new, &mut again),
        ValueCodec::Planes => values::encode_planes(&new, &mut again),
        ValueCodec::Step => {
            assert!(old.iter().zip(&new).all(|(a, b)| a != b), "a step of zero");
            values::encode_steps(&old, &new, order, &mut again);
        }
        ValueCodec::Classes => unreachable!("these steps come with their positions"),
    }
    let mut back = Values::<W>::default();
    values::decode(codec, &again, count, &mut back).expect("what was encoded decodes");
    assert!((0..old.len()).all(|i| back.resolve(i, old[i], order) == new[i]));
}

/// Any bytes as changes by class, in elements of every width.
fn any_classes(u: &mut Unstructured<'_>) -> Result<()> {
    let cols = u.int_in_range(1..=200u32)?;
    let most = if u.arbitrary()? { 300 } else { TILE / cols };
    let rows = u.int_in_range(1..=most)?;
    let elements = rows * cols;
    let count = u.int_in_range(1..=elements)?;
    let stream = u.bytes(u.len())?;
    // The number of changes comes from elsewhere in the record, so a small one is tried too.
    for count in [count, 1 + count % 64] {
        check_classes::<u8>(stream, count.min(elements), elements, rows);
        check_classes::<u16>(stream, count.min(elements), elements, rows);
        check_classes::<u32>(stream, count.min(elements), elements, rows);
        check_classes::<u64>(stream, count.min(elements), elements, rows);
    }
    Ok(())
}

/// What decodes is in bounds, has taken no memory that the stream has not earned, and encodes again.
fn check_classes<W: Word>(stream: &[u8], count: u32, elements: u32, rows: u32) {
    let mut out = Partition::<W>::default();
    let decoded = classes::decode(stream, count, elements, rows, &mut out);
    // A sign each: a change is a bit at least.
    let most = (count as usize).min(8 * stream.len()).max(8);
    assert!(out.ranks.capacity() <= most && out.steps.capacity() <= most);
    assert!(out.counts.capacity() <= 2 * MAX_CLASSES * MAX_GROUPS);
    // Rows in groups have 64 elements each at least.
    assert!(out.rows.capacity() <= 2 * (elements as usize / 64).max(8));
    // Memory that was used before changes nothing.
    let mut used = Partition {
        top: 9,
        classes: 3,
        rows: vec![1; 5],
        counts: vec![7; 3],
        ranks: vec![2; 21],
        steps: vec![W::SIGN; 21],
    };
    let same = classes::decode(stream, count, elements, rows, &mut used);
    assert_eq!(decoded.is_ok(), same.is_ok());
    if decoded.is_err() {
        return;
    }
    assert_eq!(out, used);
    assert_in_bounds(&out, count, elements, rows);
    let mut again = Vec::new();
    classes::encode(&out, &mut classes::Scratch::default(), &mut again);
    let mut back = Partition::default();
    classes::decode(&again, count, elements, rows, &mut back).expect("what was encoded decodes");
    assert_eq!(back, out);
}

/// What the rest of the crate and the kernels rely on.
pub(crate) fn assert_in_bounds<W: Word>(
    partition: &Partition<W>,
    count: u32,
    elements: u32,
    rows: u32,
) {
    let groups = partition.counts.len() / partition.classes;
    assert!((1..=MAX_CLASSES).contains(&partition.classes) && (1..=MAX_GROUPS).contains(&groups));
    assert_eq!(partition.counts.len(), groups * partition.classes);
    assert_eq!(partition.counts.iter().sum::<u32>(), count);
    assert_eq!(partition.needs_base(), partition.counts.len() > 1);
    if groups > 1 {
        assert_eq!(partition.rows.len(), rows as usize);
        assert!(partition.rows.iter().all(|&g| usize::from(g) < groups));
        assert!(u64::from(elements) >= classes::GROUPED_COLS * u64::from(rows));
    } else {
        assert!(partition.rows.is_empty());
    }
    // A writer gives every group rows; a reader does not care.
    let used = (0..groups as u8).all(|group| partition.rows.contains(&group));
    assert_eq!(
        partition.is_valid(rows as usize, elements),
        groups == 1 || used
    );
    assert_eq!(partition.ranks.len(), count as usize);
    assert_eq!(partition.steps.len(), count as usize);
    assert!(partition.steps.iter().all(|&step| step != W::default()));
    let mut ranks = &partition.ranks[..];
    for &count in &partition.counts {
        let (class, others) = ranks.split_at(count as usize);
        assert!(class.windows(2).all(|r| r[0] < r[1]));
        assert!(class.last().is_none_or(|&rank| rank < elements));
        ranks = others;
    }
}

/// Any partition: it encodes and decodes, and its damaged stream is refused or in bounds.
fn made_classes(u: &mut Unstructured<'_>) -> Result<()> {
    let width = *u.choose(&[1usize, 2, 4, 8])?;
    with_width!(width, W => made::<W>(u))
}

fn made<W: Word>(u: &mut Unstructured<'_>) -> Result<()> {
    let classes = u.int_in_range(1..=MAX_CLASSES)?;
    let cols = u.int_in_range(64..=100u32)?;
    let rows = u.int_in_range(1..=90u32)?;
    let elements = rows * cols;
    let groups = u.int_in_range(1..=MAX_GROUPS)?;
    let mut partition = Partition::<W> {
        top: u.int_in_range(0..=2047)?,
        classes,
        ..Partition::default()
    };
    if groups > 1 {
        let first = u.int_in_range(0..=groups - 1)?;
        let turn = u.int_in_range(1..=9usize)?;
        partition.rows = (0..rows as usize)
            .map(|row| (first + row / turn) as u8 % groups as u8)
            .collect();
    }
    if classes * groups == 1 {
        partition.top = 0;
    }
    for _ in 0..classes * groups {
        // Dense classes come cheap: their gaps and steps repeat.
        let (mut rank, before) = (u.int_in_range(0..=300u32)?, partition.ranks.len());
        let gaps = [u.int_in_range(1..=40u32)?, u.int_in_range(1..=3)?];
        let shift = u.int_in_range(0..=63u32)?;
        let steps = [
            u.arbitrary::<i64>()? >> shift,
            u.arbitrary::<i64>()? >> shift,
        ];
        let most = if u.ratio(1, 8)? { 3000 } else { 20 };
        for i in 0..u.int_in_range(0..=most)? {
            if rank >= elements {
                break;
            }
            let step = W::from_u64(steps[i % 2] as u64);
            partition.ranks.push(rank);
            partition.steps.push(if step == W::default() {
                W::from_u64(1)
            } else {
                step
            });
            rank += gaps[i % 2];
        }
        partition
            .counts
            .push((partition.ranks.len() - before) as u32);
    }
    let count = partition.ranks.len() as u32;
    if count == 0 || count > elements {
        return Ok(());
    }
    let mut stream = Vec::new();
    classes::encode(&partition, &mut classes::Scratch::default(), &mut stream);
    let mut back = Partition::default();
    classes::decode(&stream, count, elements, rows, &mut back).expect("what was encoded decodes");
    assert_eq!(back, partition);
    for _ in 0..u.int_in_range(1..=3)? {
        let at = u.choose_index(stream.len())?;
        stream[at] = u.arbitrary()?;
    }
    check_classes::<W>(&stream, count, elements, rows);
    Ok(())
}
