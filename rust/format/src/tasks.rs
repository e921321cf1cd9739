//! Which tiles a plan looks at, and which tensors are the same memory.

use crate::reader::{Delta, ReadAt};

/// For each tensor, the later ones that are the same memory.
pub(crate) fn followers(aliases: &[Option<usize>]) -> Vec<Vec<usize>> {
    let mut followers = vec![Vec::new(); aliases.len()];
    for (t, first) in aliases.iter().enumerate() {
        if let Some(list) = first.and_then(|first| followers.get_mut(first)) {
            list.push(t);
        }
    }
    followers
}

/// A tile to check: tensor, tile, and the chunk that changes it, if any.
pub(crate) type Task = (u32, u32, Option<usize>);

/// Every tile of every tensor, or only those with chunks; made one at a time, since a tensor may
/// have very many tiles.
pub(crate) fn tasks<R: ReadAt>(
    delta: &Delta<R>,
    full: bool,
) -> Box<dyn Iterator<Item = Task> + '_> {
    let places = &delta.index.chunks;
    if !full {
        return Box::new(
            places
                .iter()
                .enumerate()
                .map(|(i, c)| (c.tensor, c.tile, Some(i))),
        );
    }
    let tensors = &delta.header.tensors;
    let mut first = vec![None; tensors.len()];
    for (i, c) in places.iter().enumerate() {
        first[c.tensor as usize].get_or_insert(i);
    }
    Box::new(
        first
            .into_iter()
            .enumerate()
            .flat_map(move |(t, mut next)| {
                (0..tensors[t].tiles()).map(move |tile| {
                    let here =
                        |i: &usize| places[*i].tensor as usize == t && places[*i].tile == tile;
                    let chunk = next.filter(here);
                    if let Some(i) = chunk {
                        next = (i + 1 < places.len()).then_some(i + 1);
                    }
                    (t as u32, tile, chunk)
                })
            }),
    )
}
