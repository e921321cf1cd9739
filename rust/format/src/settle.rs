//! Which of several elements it was, where a digest tells.

use deltawire_kernels::digest::{mix, words_per_row};
use deltawire_kernels::{Block, Digest, Word};

use crate::table::Tensor;

/// Most combinations that are tried of each half of the words in doubt.
const MOST: usize = 1 << 18;

/// An element that was one of several.
#[derive(Clone, Debug)]
pub(crate) struct Doubt<W> {
    /// Whatever the caller knows it by.
    pub(crate) index: usize,
    /// Within the tile.
    pub(crate) position: u32,
    /// What it was, if not what the tile has there.
    pub(crate) others: Vec<W>,
}

/// What a word's digest changes by for each combination of its elements in doubt; the first changes nothing.
type Choices = Vec<Digest>;

/// Those elements that were another one than `base` holds, with what they were, so that the digest of a tile's
/// rows changes by `missing`.
///
/// Sums are found from both ends: all sums of one half of the words, sorted, against those of the other. So
/// `n` words with two choices each cost `2^(n / 2)` sums, and a word with all of 16 bits open 65,536; `None`
/// where these are more than some 260,000, or nothing fits.
pub(crate) fn settle<W: Word>(
    entry: &Tensor,
    block: &Block,
    base: &[u8],
    doubts: &[Doubt<W>],
    missing: Digest,
) -> Option<Vec<(usize, W)>> {
    let words = by_word(block, doubts);
    let counts: Option<Vec<usize>> = words.iter().map(|word| combinations(word)).collect();
    let middle = halves(&counts?)?;
    let choices: Option<Vec<Choices>> = (words.iter())
        .map(|word| choices(entry, block, base, word))
        .collect();
    let choices = choices?;
    let (left, right) = choices.split_at(middle);
    let mut sums = all_sums(left)?;
    sums.sort_unstable_by_key(|(sum, _)| sum.lanes);
    for (sum, right_code) in all_sums(right)? {
        let goal = missing.minus(sum);
        let Ok(at) = sums.binary_search_by_key(&goal.lanes, |(sum, _)| sum.lanes) else {
            continue;
        };
        let mut chosen = Vec::new();
        for (half, mut code) in [(0..middle, sums[at].1), (middle..words.len(), right_code)] {
            for word in half {
                let mut choice = code % choices[word].len();
                code /= choices[word].len();
                for doubt in words[word] {
                    let radix = doubt.others.len() + 1;
                    if choice % radix > 0 {
                        chosen.push((doubt.index, doubt.others[choice % radix - 1]));
                    }
                    choice /= radix;
                }
            }
        }
        return Some(chosen);
    }
    None
}

/// Doubts that share a word of the digest.
fn by_word<'a, W: Word>(block: &Block, doubts: &'a [Doubt<W>]) -> Vec<&'a [Doubt<W>]> {
    let cols = block.bytes / W::WIDTH;
    let word = |doubt: &Doubt<W>| {
        let (row, col) = (
            doubt.position as usize / cols,
            doubt.position as usize % cols,
        );
        (row, col * W::WIDTH / 8)
    };
    doubts.chunk_by(|a, b| word(a) == word(b)).collect()
}

fn choices<W: Word>(
    entry: &Tensor,
    block: &Block,
    base: &[u8],
    doubts: &[Doubt<W>],
) -> Option<Choices> {
    let cols = block.bytes / W::WIDTH;
    let (row, col) = (
        doubts[0].position as usize / cols,
        doubts[0].position as usize % cols,
    );
    let begin = col * W::WIDTH / 8 * 8;
    let end = (begin + 8).min(block.bytes);
    let mut bytes = [0; 8];
    bytes[..end - begin].copy_from_slice(&base[row * block.bytes + begin..row * block.bytes + end]);
    let word = u64::from_le_bytes(bytes);
    let per_row = words_per_row(entry.cols as usize * W::WIDTH);
    let place = (block.row + row) as u64 * per_row + ((block.byte + begin) / 8) as u64;
    let before = mix(entry.key(), place, word);
    let low = u64::MAX >> (64 - 8 * W::WIDTH);
    let combinations = combinations(doubts)?;
    Some(
        (0..combinations)
            .map(|mut choice| {
                let mut changed = word;
                for doubt in doubts {
                    let radix = doubt.others.len() + 1;
                    if choice % radix > 0 {
                        let other = doubt.others[choice % radix - 1];
                        let shift = 8 * (doubt.position as usize % cols * W::WIDTH - begin);
                        changed = (changed & !(low << shift)) | (other.to_u64() << shift);
                    }
                    choice /= radix;
                }
                mix(entry.key(), place, changed).minus(before)
            })
            .collect(),
    )
}

/// How many choices a word has, if they are not too many.
fn combinations<W>(doubts: &[Doubt<W>]) -> Option<usize> {
    let radices = doubts.iter().map(|doubt| doubt.others.len() + 1);
    product(radices)
}

fn product(mut counts: impl Iterator<Item = usize>) -> Option<usize> {
    counts.try_fold(1usize, |n, m| n.checked_mul(m).filter(|&n| n <= MOST))
}

/// Where to cut so that neither side has too many combinations.
fn halves(counts: &[usize]) -> Option<usize> {
    (0..=counts.len())
        .filter_map(|at| {
            let sides = [&counts[..at], &counts[at..]].map(|side| product(side.iter().copied()));
            // As even as it goes: the fewest sums altogether.
            Some((sides[0]?.max(sides[1]?), at))
        })
        .min()
        .map(|(_, at)| at)
}

/// Every sum of one choice a word, with the choices as the digits of a number.
fn all_sums(choices: &[Choices]) -> Option<Vec<(Digest, usize)>> {
    let mut sums = vec![(Digest::default(), 0)];
    let mut digit = 1usize;
    for word in choices {
        let longer = sums.len().checked_mul(word.len()).filter(|&n| n <= MOST)?;
        let mut next = Vec::with_capacity(longer);
        for (choice, &change) in word.iter().enumerate() {
            next.extend(
                sums.iter()
                    .map(|&(sum, code)| (sum.plus(change), code + choice * digit)),
            );
        }
        digit = digit.checked_mul(word.len())?;
        sums = next;
    }
    Some(sums)
}
