//! Deltas of several writers, each with its part of the tensors, put together into one.
//!
//! Their tiles are disjoint, so nothing is decoded: the table is the union of theirs, in the order of names,
//! and records are copied, with a new number of their tensor where the tables differ. So how the writers
//! shared the tensors does not show, but for the digests of tensors that one of them had whole.

use std::collections::BTreeMap;
use std::io::Write;

use deltawire_kernels::Digest;

use crate::error::{Error, Kind};
use crate::header::Header;
use crate::index::{encode_trailer, ChunkPlace, Index};
use crate::limits::{Limits, MAX_TENSORS};
use crate::reader::{Delta, ReadAt};
use crate::table::Tensor;
use crate::writer::Summary;

/// One writer's delta.
pub struct Part<'a, R> {
    /// The delta.
    pub delta: &'a Delta<R>,
    /// Numbers of the chunks to take; `None`: all. Others are not read.
    pub chunks: Option<&'a [usize]>,
}

/// Why parts cannot be joined.
#[derive(Debug)]
pub struct Refused {
    /// The part that it is about, the later one of two; `None`: the whole.
    pub part: Option<usize>,
    /// What is wrong.
    pub error: Error,
}

/// Result of joining.
pub type Result<T> = std::result::Result<T, Refused>;

/// Parts that fit together, and where their chunks go.
pub struct Joined<'a, R> {
    parts: &'a [Part<'a, R>],
    header: Header,
    result_state: Option<Digest>,
    digests: Vec<Option<u32>>,
    order: Vec<Taken>,
}

/// A chunk in its place: by tensor of the joined table and tile, then by where it comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Taken {
    tensor: u32,
    tile: u32,
    part: usize,
    chunk: usize,
}

fn about(part: usize) -> impl Fn(Error) -> Refused {
    move |error| Refused {
        part: Some(part),
        error,
    }
}

fn misfit(part: usize, message: String) -> Refused {
    about(part)(Error::new(Kind::Layout, message))
}

fn whole(error: Error) -> Refused {
    Refused { part: None, error }
}

impl<'a, R: ReadAt> Joined<'a, R> {
    /// Checks that the parts fit together, from their headers and indexes; reads no chunk.
    ///
    /// `header` is that of the joined delta but for its tensors and, where it names none, its profile. It
    /// states the base state of the whole, `result_state` is that after the delta; parts know neither.
    ///
    /// # Errors
    /// `Layout` for no parts, parts of another run, version or base version, a tensor that differs between
    /// parts, and a tile that is in two; `Limit`.
    pub fn new(
        parts: &'a [Part<'a, R>],
        mut header: Header,
        result_state: Option<Digest>,
    ) -> Result<Self> {
        if parts.is_empty() {
            return Err(whole(Error::new(Kind::Layout, "no parts to join")));
        }
        for (p, part) in parts.iter().enumerate() {
            check_header(p, &part.delta.header, &header)?;
        }
        if header.profile.is_empty() {
            header.profile.clone_from(&parts[0].delta.header.profile);
        }
        let table = union(parts)?;
        if table.len() > MAX_TENSORS {
            let n = table.len();
            let message = format!("{n} tensors, at most {MAX_TENSORS} [F8]");
            return Err(whole(Error::limit(message)));
        }
        header.tensors = table
            .values()
            .map(|(tensor, _)| (*tensor).clone())
            .collect();
        let numbers: BTreeMap<&str, u32> = table.keys().copied().zip(0..).collect();
        let digests = table.values().map(|(_, digest)| *digest).collect();
        let mut order = Vec::new();
        for (p, part) in parts.iter().enumerate() {
            let own = part.delta.header.tensors.iter();
            // Every name is in the union.
            let numbers: Vec<u32> = own.filter_map(|t| numbers.get(&*t.name).copied()).collect();
            let mut take = |chunk: usize| {
                let place = part.delta.index.chunks.get(chunk)?;
                order.push(Taken {
                    tensor: *numbers.get(place.tensor as usize)?,
                    tile: place.tile,
                    part: p,
                    chunk,
                });
                Some(())
            };
            let count = part.delta.index.chunks.len();
            let missing = match part.chunks {
                Some(chunks) => chunks.iter().copied().find(|&chunk| take(chunk).is_none()),
                None => (0..count).find(|&chunk| take(chunk).is_none()),
            };
            if let Some(chunk) = missing {
                return Err(misfit(p, format!("chunk {chunk} of {count}")));
            }
        }
        order.sort_unstable();
        let joined = Self {
            parts,
            header,
            result_state,
            digests,
            order,
        };
        joined.check_disjoint()?;
        Ok(joined)
    }

    fn check_disjoint(&self) -> Result<()> {
        let twice = |w: &[Taken]| (w[0].tensor, w[0].tile) == (w[1].tensor, w[1].tile);
        let Some(pair) = self.order.windows(2).find(|w| twice(w)) else {
            return Ok(());
        };
        let (first, second) = (pair[0], pair[1]);
        let message = format!(
            "tile {} is in part {} and in part {}; every element belongs to the shards of one rank",
            first.tile, first.part, second.part
        );
        let name = &self.header.tensors[first.tensor as usize].name;
        Err(about(second.part)(
            Error::new(Kind::Layout, message).of(name),
        ))
    }

    /// The joined table.
    pub fn tensors(&self) -> &[Tensor] {
        &self.header.tensors
    }

    /// Writes the joined delta, one record a call. Holds one chunk at a time, and a few integers for each.
    ///
    /// # Errors
    /// `Corrupt` for records that fail a check; `Store` where `sink` fails.
    pub fn write<S: Write>(&self, mut sink: S) -> Result<(S, Summary)> {
        let failed = |error: std::io::Error| whole(error.into());
        let limits = Limits::default();
        let head = self.header.encode(&limits).map_err(whole)?;
        sink.write_all(&head).map_err(failed)?;
        let mut offset = head.len() as u64;
        let mut changed = vec![0u64; self.parts.len()];
        let mut index = Index {
            digests: self.digests.clone(),
            result_state: self.result_state,
            ..Index::default()
        };
        for taken in &self.order {
            let chunk = self.parts[taken.part].delta.chunk(taken.chunk);
            let chunk = chunk.map_err(about(taken.part))?;
            changed[taken.part] += u64::from(chunk.header.changes);
            let record = chunk.renumbered(taken.tensor);
            sink.write_all(&record).map_err(failed)?;
            // A record is bounded by the limits, and by 32 bits in the part's index.
            let length = record.len() as u32;
            index.chunks.push(ChunkPlace {
                tensor: taken.tensor,
                tile: taken.tile,
                length,
                offset,
            });
            offset += u64::from(length);
        }
        for (p, (part, counted)) in self.parts.iter().zip(&changed).enumerate() {
            if part.chunks.is_none() && *counted != part.delta.index.changed {
                let message = "the index does not count the chunks' changes [F19]";
                let error = Error::corrupt(message).at(part.delta.index_at);
                return Err(about(p)(error));
            }
        }
        index.changed = changed.iter().sum();
        let mut end = index.encode(&limits).map_err(whole)?;
        end.extend_from_slice(&encode_trailer(end.len() as u32));
        sink.write_all(&end).map_err(failed)?;
        sink.flush().map_err(failed)?;
        let summary = Summary {
            bytes: offset + end.len() as u64,
            changed: index.changed,
            chunks: index.chunks.len() as u64,
            base_state: self.header.base_state,
            result_state: self.result_state,
        };
        Ok((sink, summary))
    }
}

/// A part must be of the same step.
fn check_header(part: usize, own: &Header, wanted: &Header) -> Result<()> {
    if own.run != wanted.run {
        let message = format!("is of run {:?}, not {:?}", own.run, wanted.run);
        return Err(misfit(part, message));
    }
    if own.version != wanted.version {
        let message = format!("leads to version {}, not {}", own.version, wanted.version);
        return Err(misfit(part, message));
    }
    match (own.base_version, wanted.base_version) {
        (Some(own), Some(wanted)) if own != wanted => {
            let message = format!("starts from version {own}, not {wanted}");
            Err(misfit(part, message))
        }
        _ => Ok(()),
    }
}

/// All tensors by name, and the digest of each that is in the table of one part only.
type Union<'a> = BTreeMap<&'a str, (&'a Tensor, Option<u32>)>;

fn union<'a, R: ReadAt>(parts: &'a [Part<'a, R>]) -> Result<Union<'a>> {
    let mut table: BTreeMap<&str, (&Tensor, Option<u32>, usize)> = BTreeMap::new();
    for (p, part) in parts.iter().enumerate() {
        let digests = part.delta.index.digests.iter();
        for (tensor, digest) in part.delta.header.tensors.iter().zip(digests) {
            let entry = table.entry(&tensor.name).or_insert((tensor, *digest, p));
            let (first, _, q) = *entry;
            if q == p {
                continue;
            }
            if first != tensor {
                let shown = |t: &Tensor| format!("{} {:?} in tiles {:?}", t.dtype, t.shape, t.tile);
                let message = format!(
                    "is {} in part {p}, but {} in part {q}; ranks need the same whole shapes and \
                     tiling",
                    shown(tensor),
                    shown(first)
                );
                let error = Error::new(Kind::Layout, message).of(&tensor.name);
                return Err(about(p)(error));
            }
            // What one part says of its shard is not the tensor's.
            entry.1 = None;
        }
    }
    let bare = table.into_iter();
    Ok(bare
        .map(|(name, (tensor, digest, _))| (name, (tensor, digest)))
        .collect())
}
