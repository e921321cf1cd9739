//! Old elements of a piece that a detector was not sure of: which ones its digest fits.

use deltawire_kernels::{digest, scan, Block, Digest, Word};

use crate::rewind::{boxed, put, Findings, Outcome, Place, Sure};
use crate::settle::{settle, Doubt};

/// Elements of a piece of which nothing is known, at most, that are tried with every value.
const FEW: usize = 2;

impl Findings {
    /// Which old elements of a piece are others than what `base` holds, so that its digest changes by
    /// `missing`: their indices in `picked`, and values.
    pub(crate) fn find<W: Word>(
        &self,
        place: &Place<'_>,
        base: &[u8],
        missing: Digest,
    ) -> std::result::Result<Vec<(usize, W)>, Outcome> {
        let block = &place.piece;
        let doubts: Vec<(Sure, Doubt<W>)> = (place.picked.iter().enumerate())
            .filter_map(|(index, &(_, position, at))| {
                let position = position - place.offset;
                let other = match self.sure[at] {
                    Sure::Certain => return None,
                    Sure::Either => W::read(&self.other[at * W::WIDTH..]),
                    // What starts at zero takes on values that say nothing of where they came from.
                    Sure::Unknown => W::default(),
                };
                let others = vec![other];
                Some((
                    self.sure[at],
                    Doubt {
                        index,
                        position,
                        others,
                    },
                ))
            })
            .collect();
        if doubts.is_empty() {
            return Err(if self.blind {
                Outcome::Open
            } else {
                Outcome::Wrong
            });
        }
        let of = |wanted: Sure| {
            let some = doubts.iter().filter(move |(sure, _)| *sure == wanted);
            some.map(|(_, doubt)| doubt.clone()).collect::<Vec<_>>()
        };
        let (known, unknown) = (of(Sure::Either), of(Sure::Unknown));
        let settled = |doubts: &[Doubt<W>], base: &[u8], missing| {
            settle(&self.entry, block, base, doubts, missing)
        };
        let all: Vec<Doubt<W>> = doubts.iter().map(|(_, doubt)| doubt.clone()).collect();
        // Those that nobody knows of were zero, or what they are now.
        if let Some(chosen) = settled(&all, base, missing) {
            return Ok(chosen);
        }
        if unknown.is_empty() {
            return Err(Outcome::Open);
        }
        // Too many to tell one by one: perhaps none of them has changed, or all were zero.
        if let Some(chosen) = settled(&known, base, missing) {
            return Ok(chosen);
        }
        let mut emptied = base.to_vec();
        for doubt in &unknown {
            put(
                &mut emptied,
                doubt.position as usize * W::WIDTH,
                W::default(),
            );
        }
        let change = self.change_to(block, base, &unknown, &emptied);
        if let Some(mut chosen) = settled(&known, &emptied, missing.minus(change)) {
            chosen.extend(unknown.iter().map(|doubt| (doubt.index, W::default())));
            return Ok(chosen);
        }
        // A few near zero: any value at all.
        if W::WIDTH > 2 || unknown.len() > FEW {
            return Err(Outcome::Open);
        }
        let any: Vec<W> = (0..1u64 << (8 * W::WIDTH)).map(W::from_u64).collect();
        let open = |(sure, doubt): &(Sure, Doubt<W>)| match sure {
            Sure::Unknown => Doubt {
                others: any.clone(),
                ..doubt.clone()
            },
            _ => doubt.clone(),
        };
        let wide: Vec<Doubt<W>> = doubts.iter().map(open).collect();
        settled(&wide, base, missing).ok_or(Outcome::Open)
    }

    /// What the digest of a piece changes by where `after` has other elements than `before`.
    fn change_to<W: Word>(
        &self,
        block: &Block,
        before: &[u8],
        doubts: &[Doubt<W>],
        after: &[u8],
    ) -> Digest {
        let positions: Vec<u32> = doubts.iter().map(|doubt| doubt.position).collect();
        let matrix = |bytes| boxed(&self.entry, block, bytes);
        match (matrix(before), matrix(after)) {
            (Some(a), Some(b)) => {
                let (mut old, mut new) = (vec![], vec![]);
                scan::gather::<W>(&a, block, &positions, &mut old);
                scan::gather::<W>(&b, block, &positions, &mut new);
                digest::change(self.entry.key(), &a, block, &positions, &old, &new)
            }
            _ => Digest::default(),
        }
    }
}
