//! Position and value streams on their own.

use arbitrary::{Result, Unstructured};
use deltawire_format::codec::{
    grouped, positions, ranks, values, Partition, PositionCodec, ValueCodec, Values,
};
use deltawire_kernels::Word;

use crate::with_width;

/// Decodes any streams; what is accepted must be in bounds and survive encoding.
pub fn codec(data: &[u8]) {
    let _ = run(&mut Unstructured::new(data));
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
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
    let mut partition = Partition::default();
    if ranks::decode(stream, count, elements, &mut partition).is_ok() {
        let (mut again, mut back) = (Vec::new(), Partition::default());
        ranks::encode(&partition, &mut again);
        ranks::decode(&again, count, elements, &mut back).expect("what was encoded decodes");
        assert_eq!(back, partition);
    }
    with_width!(width, W => check_values::<W>(value_codec, value_stream, count));
    Ok(())
}

fn check_values<W: Word>(codec: ValueCodec, stream: &[u8], count: u32) {
    let mut out = Values::<W>::default();
    if values::decode(codec, stream, count, &[count], &mut out).is_err() {
        return;
    }
    assert_eq!(out.len(), count as usize);
    assert_eq!(out.are_steps(), codec.is_step());
    assert!(stream.len() as u64 <= codec.max_len(count, W::WIDTH));
    let order = deltawire_format::dtype::order_of("F32");
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
        ValueCodec::Grouped => {
            let steps = values::steps(&old, &new, order);
            assert!(
                grouped::encode(&steps, &[count], &mut again),
                "steps that were read"
            );
        }
    }
    let mut back = Values::<W>::default();
    values::decode(codec, &again, count, &[count], &mut back).expect("what was encoded decodes");
    assert!((0..old.len()).all(|i| back.resolve(i, old[i], order) == new[i]));
}
