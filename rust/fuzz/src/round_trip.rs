//! Any tensors through writer and readers.

use arbitrary::{Result, Unstructured};
use deltawire_format::codec::PositionCodec;
use deltawire_format::writer::Partitioned;
use deltawire_format::{apply, Delta, Limits, Profile, PushReader, Tensor, Writer};
use deltawire_kernels::{Target, Word};

use crate::made::{begin, write, Case, Random};
use crate::stream::{open, Bytes};
use crate::{pool, with_width};

const DTYPES: [&str; 10] = [
    "U8", "F8_E4M3", "F8_E5M2", "BF16", "F16", "I16", "F32", "U32", "F64", "I64",
];

fn case(u: &mut Unstructured<'_>, name: String) -> Result<Case> {
    let dtype = *u.choose(&DTYPES)?;
    if u.ratio(1, 3)? {
        return many(u, name, dtype);
    }
    let rank = u.int_in_range(0..=3)?;
    let shape = (0..rank)
        .map(|_| u.int_in_range(0..=12u64))
        .collect::<Result<Vec<_>>>()?;
    let elements = shape.iter().product::<u64>() as usize;
    let cols = if rank < 2 { 1 } else { shape[rank - 1] };
    let tile = match elements {
        0 => [0, 0],
        _ => [
            u.int_in_range(1..=9)?,
            part(u.int_in_range(1..=4u64)?, dtype, cols),
        ],
    };
    let entry = Tensor::new(name, dtype.to_owned(), shape, tile).expect("the tile is allowed");
    let bytes = entry.bytes() as usize;
    let mut base = vec![0; bytes];
    u.fill_buffer(&mut base)?;
    let mut new = base.clone();
    for _ in 0..u.int_in_range(0..=40)? {
        if bytes > 0 {
            let at = u.choose_index(bytes)?;
            new[at] = u.arbitrary()?;
        }
    }
    Ok(Case { entry, base, new })
}

/// Columns of a tile: so many words of eight bytes, or all.
fn part(words: u64, dtype: &str, cols: u64) -> u64 {
    let width = deltawire_format::dtype::width_of(dtype).expect("a known dtype");
    let part = words * 8 / u64::from(width);
    if part < cols {
        part
    } else {
        cols
    }
}

/// Many changes from a few bytes of input: tiles by class, with rows that differ.
fn many(u: &mut Unstructured<'_>, name: String, dtype: &str) -> Result<Case> {
    let cols = *u.choose(&[1, 63, 64, 65, 96])?;
    let rows = u.int_in_range(1..=80u64)?;
    let tile = [
        u.int_in_range(1..=rows)?,
        part(u.int_in_range(1..=96u64)?, dtype, cols),
    ];
    let entry =
        Tensor::new(name, dtype.to_owned(), vec![rows, cols], tile).expect("the tile is allowed");
    let every = (0..u.int_in_range(1..=4)?)
        .map(|_| u.int_in_range(0..=60))
        .collect::<Result<Vec<u64>>>()?;
    let far = u.int_in_range(1..=200)?;
    Ok(Case::steps(entry, &every, far, &mut Random(u.arbitrary()?)))
}

/// Writes a delta and reads it back in every way.
pub fn round_trip(data: &[u8]) {
    let _ = run(&mut Unstructured::new(data));
}

fn run(u: &mut Unstructured<'_>) -> Result<()> {
    let profile = *u.choose(&Profile::ALL)?;
    let count = u.int_in_range(0..=3)?;
    let cases = (0..count)
        .map(|i| case(u, format!("t{i}")))
        .collect::<Result<Vec<_>>>()?;
    let (bytes, summary) = write(&cases, profile);
    assert_eq!(summary.bytes, bytes.len() as u64);

    let mut reader = PushReader::new(Limits::default());
    let mut chunks = Vec::new();
    for part in bytes.chunks(1 + bytes.len() % 97) {
        chunks.extend(reader.feed(part).expect("a good delta"));
    }
    reader.finish().expect("a whole delta");
    let delta = open(&bytes).expect("a good delta");
    let tensors = &delta.header.tensors;

    let mut streamed: Vec<Vec<u8>> = cases.iter().map(|c| c.base.clone()).collect();
    for chunk in &chunks {
        let i = chunk.header.tensor as usize;
        let (rows, row) = cases[i].rows();
        let target = Target::new(&mut streamed[i], rows, row).expect("sizes agree");
        assert!(apply::apply_chunk(chunk, tensors, target).expect("the base is right"));
    }
    let mut planned: Vec<Vec<u8>> = cases.iter().map(|c| c.base.clone()).collect();
    let matrices: Vec<_> = cases.iter().map(|c| c.matrix(&c.base)).collect();
    let alone = vec![None; cases.len()];
    let plan = apply::plan(&delta, &matrices, &alone, true, apply::KEEP, pool(), |_| {
        Ok(())
    })
    .expect("the base is right");
    let proof = plan.proof.expect("a full plan has a proof");
    assert_eq!(proof.base_state, summary.base_state);
    assert_eq!(Some(proof.result_state), summary.result_state);
    let targets: Vec<_> = cases
        .iter()
        .zip(&mut planned)
        .map(|(c, bytes)| {
            let (rows, row) = c.rows();
            Target::new(bytes, rows, row).expect("sizes agree")
        })
        .collect();
    apply::commit(&delta, &plan, targets, pool()).expect("nothing changed underneath");
    for ((case, a), b) in cases.iter().zip(&streamed).zip(&planned) {
        assert_eq!(&case.new, a);
        assert_eq!(&case.new, b);
    }
    by_partition(&cases, &bytes);
    Ok(())
}

/// The same tensors packed from partitions: the same bytes where comparing takes classes too, and in any
/// case the same result.
fn by_partition(cases: &[Case], compared: &[u8]) {
    let mut writer = begin(cases, Profile::Compact);
    for (i, case) in cases.iter().enumerate() {
        let width = case.entry.width;
        with_width!(width, W => add_partitions::<W>(&mut writer, i as u32, case));
    }
    let (bytes, _) = writer.finish().expect("an index");
    let [delta, other] = [&bytes, compared].map(|b| open(b).expect("a good delta"));
    let states = |d: &Delta<Bytes<'_>>| (d.index.base_state, d.index.result_state);
    assert_eq!(states(&delta), states(&other));
    assert_eq!(delta.index.changed, other.index.changed);
    let chunk = |d: &Delta<Bytes<'_>>, i| d.chunk(i).expect("a good delta");
    let is_class = |i| chunk(&other, i).header.positions.0 == PositionCodec::Classes;
    let same_profile = other.header.profile == delta.header.profile;
    if same_profile && (0..other.index.chunks.len()).all(is_class) {
        assert_eq!(bytes, compared);
    }
    let mut state: Vec<Vec<u8>> = cases.iter().map(|c| c.base.clone()).collect();
    for i in 0..delta.index.chunks.len() {
        let chunk = chunk(&delta, i);
        let t = chunk.header.tensor as usize;
        let (rows, row) = cases[t].rows();
        let target = Target::new(&mut state[t], rows, row).expect("sizes agree");
        assert!(apply::apply_chunk(&chunk, &delta.header.tensors, target).expect("its base"));
    }
    assert!(cases.iter().zip(&state).all(|(case, now)| case.new == *now));
}

fn add_partitions<W: Word>(writer: &mut Writer<Vec<u8>>, tensor: u32, case: &Case) {
    let pair = case.pair(tensor);
    let mut digests = [case.entry.start(); 2];
    let mut partitions = Vec::new();
    for tile in 0..case.entry.tiles() {
        let (partition, sums) = writer.partition::<W>(&pair, tile).expect("sizes agree");
        digests = [0, 1].map(|side| digests[side].plus(sums[side]));
        partitions.extend(partition.map(|p| (tile, p, sums[1].lanes[0])));
    }
    let items: Vec<_> = partitions
        .iter()
        .map(|(tile, partition, result)| Partitioned {
            tile: *tile,
            partition,
            result: *result,
        })
        .collect();
    writer
        .add_partitions(tensor, digests, &items)
        .expect("partitions of the writer's own");
}
