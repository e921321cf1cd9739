//! Any tensors through writer and readers.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use deltawire_format::writer::Pair;
use deltawire_format::{apply, Delta, Header, Limits, Profile, PushReader, Tensor, Writer};
use deltawire_kernels::{Matrix, Target};

use crate::pool;
use crate::stream::Bytes;

const DTYPES: [&str; 8] = ["U8", "F8_E4M3", "BF16", "I16", "F32", "U32", "F64", "I64"];

struct Case {
    entry: Tensor,
    base: Vec<u8>,
    new: Vec<u8>,
}

impl Case {
    fn matrix<'a>(&self, bytes: &'a [u8]) -> Matrix<'a> {
        let width = usize::from(self.entry.width);
        Matrix::new(
            bytes,
            self.entry.rows as usize,
            self.entry.cols as usize * width,
        )
        .expect("sizes agree")
    }
}

fn case(u: &mut Unstructured<'_>, name: String) -> Result<Case> {
    let dtype = *u.choose(&DTYPES)?;
    let rank = u.int_in_range(0..=3)?;
    let shape = (0..rank)
        .map(|_| u.int_in_range(0..=12u64))
        .collect::<Result<Vec<_>>>()?;
    let elements = shape.iter().product::<u64>() as usize;
    let cols = if rank < 2 { 1 } else { shape[rank - 1] };
    let width = deltawire_format::dtype::width_of(dtype).expect("a known dtype");
    let tile = if elements == 0 {
        [0, 0]
    } else {
        let unit = 8 / u64::from(width);
        let part = u.int_in_range(1..=4u64)? * unit;
        [
            u.int_in_range(1..=9)?,
            if part < cols { part } else { cols },
        ]
    };
    let bytes = elements * usize::from(width);
    let mut base = vec![0; bytes];
    u.fill_buffer(&mut base)?;
    let mut new = base.clone();
    for _ in 0..u.int_in_range(0..=40)? {
        if bytes > 0 {
            let at = u.choose_index(bytes)?;
            new[at] = u.arbitrary()?;
        }
    }
    let entry = Tensor::new(name, dtype.to_owned(), shape, tile).expect("the tile is allowed");
    Ok(Case { entry, base, new })
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
    let header = Header {
        tensors: cases.iter().map(|c| c.entry.clone()).collect(),
        profile: profile.name().to_owned(),
        ..Header::default()
    };
    let limits = Limits::default();
    let mut writer =
        Writer::new(Vec::new(), header, profile, limits, Arc::clone(pool())).expect("a header");
    for (i, case) in cases.iter().enumerate() {
        let pair = Pair {
            tensor: i as u32,
            base: case.matrix(&case.base),
            new: case.matrix(&case.new),
        };
        writer.add(&[pair], |_| Ok(())).expect("a tensor");
    }
    let (bytes, summary) = writer.finish().expect("an index");
    assert_eq!(summary.bytes, bytes.len() as u64);

    let mut reader = PushReader::new(limits);
    let mut chunks = Vec::new();
    for part in bytes.chunks(1 + bytes.len() % 97) {
        chunks.extend(reader.feed(part).expect("a good delta"));
    }
    reader.finish().expect("a whole delta");
    let delta = Delta::open(Bytes(&bytes), limits).expect("a good delta");
    let tensors = &delta.header.tensors;

    let mut streamed: Vec<Vec<u8>> = cases.iter().map(|c| c.base.clone()).collect();
    for chunk in &chunks {
        let i = chunk.header.tensor as usize;
        let row = cases[i].entry.cols as usize * usize::from(cases[i].entry.width);
        let rows = cases[i].entry.rows as usize;
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
    assert_eq!(plan.proof.map(|p| p.result_state), summary.result_state);
    let targets: Vec<_> = cases
        .iter()
        .zip(&mut planned)
        .map(|(c, bytes)| {
            let row = c.entry.cols as usize * usize::from(c.entry.width);
            Target::new(bytes, c.entry.rows as usize, row).expect("sizes agree")
        })
        .collect();
    apply::commit(&delta, &plan, targets, pool()).expect("nothing changed underneath");
    for ((case, a), b) in cases.iter().zip(&streamed).zip(&planned) {
        assert_eq!(&case.new, a);
        assert_eq!(&case.new, b);
    }
    Ok(())
}
