//! Which of two elements it was, where a digest tells.

use deltawire_kernels::digest::{mix, words_per_row};
use deltawire_kernels::{Block, Digest, Word};

use crate::table::Tensor;

/// Most combinations that are tried of each half of the words in doubt.
const MOST: usize = 1 << 16;

/// An element that was one of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt<W> {
    /// Whatever the caller knows it by.
    pub(crate) index: usize,
    /// Within the tile.
    pub(crate) position: u32,
    /// What it was, if not what the tile has there.
    pub(crate) other: W,
}

/// What a word's digest changes by for each combination of its elements in doubt; the first changes nothing.
type Choices = Vec<Digest>;

/// Those elements that were the other one, with what they were, so that the digest of a tile's rows changes
/// by `missing`. `base` holds them as one of the two.
///
/// Sums are found from both ends: all sums of one half of the words, sorted, against those of the other. So
/// `n` words in doubt cost `2^(n / 2)` sums; `None` where these are more than some 65,000, or nothing fits.
pub(crate) fn settle<W: Word>(
    entry: &Tensor,
    block: &Block,
    base: &[u8],
    doubts: &[Doubt<W>],
    missing: Digest,
) -> Option<Vec<(usize, W)>> {
    let words = by_word(block, doubts);
    let choices: Vec<Choices> = (words.iter())
        .map(|word| choices(entry, block, base, word))
        .collect();
    let middle = halves(&choices)?;
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
                let choice = code % choices[word].len();
                code /= choices[word].len();
                let others = words[word].iter().enumerate();
                let others = others.filter(|(bit, _)| choice >> bit & 1 == 1);
                chosen.extend(others.map(|(_, doubt)| (doubt.index, doubt.other)));
            }
        }
        return Some(chosen);
    }
    None
}

/// Doubts that share a word of the digest.
fn by_word<W: Word>(block: &Block, doubts: &[Doubt<W>]) -> Vec<Vec<Doubt<W>>> {
    let cols = block.bytes / W::WIDTH;
    let word = |doubt: &Doubt<W>| {
        let (row, col) = (
            doubt.position as usize / cols,
            doubt.position as usize % cols,
        );
        (row, col * W::WIDTH / 8)
    };
    doubts
        .chunk_by(|a, b| word(a) == word(b))
        .map(<[Doubt<W>]>::to_vec)
        .collect()
}

fn choices<W: Word>(entry: &Tensor, block: &Block, base: &[u8], doubts: &[Doubt<W>]) -> Choices {
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
    (0..1usize << doubts.len())
        .map(|choice| {
            let others = doubts.iter().enumerate();
            let others = others.filter(|(bit, _)| choice >> bit & 1 == 1);
            let changed = others.fold(word, |word, (_, doubt)| {
                let shift = 8 * (doubt.position as usize % cols * W::WIDTH - begin);
                (word & !(low << shift)) | (doubt.other.to_u64() << shift)
            });
            mix(entry.key(), place, changed).minus(before)
        })
        .collect()
}

/// Where to cut so that neither side has too many combinations.
fn halves(choices: &[Choices]) -> Option<usize> {
    let count = |some: &[Choices]| {
        some.iter()
            .try_fold(1usize, |n, c| n.checked_mul(c.len()).filter(|&n| n <= MOST))
    };
    (0..=choices.len())
        .rev()
        .find(|&at| count(&choices[..at]).is_some())
        .filter(|&at| count(&choices[at..]).is_some())
        .map(|most| {
            // As even as it goes: the fewest sums altogether.
            (0..=most)
                .filter(|&at| count(&choices[at..]).is_some())
                .min_by_key(|&at| count(&choices[..at]).max(count(&choices[at..])))
                .unwrap_or(most)
        })
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
