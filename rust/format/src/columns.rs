//! The tensor table by columns, as the header stores it.
//!
//! The layers of a model have the same names but for their numbers, and the same shapes. With numbers
//! taken out of the names, and each column by itself, a general compressor sees layer after layer as
//! repetitions of the first one.

use crate::bits::{put_varint, take_varint, unzigzag, zigzag};
use crate::error::{Error, Result};
use crate::table::{matrix, Tensor};

/// Stands for a number in a name.
const NUMBER: char = '\u{1}';
/// Stands before what would be taken for a number, or for itself.
const ESCAPE: char = '\u{2}';
/// Digits of the longest number that is taken out.
const DIGITS: usize = 18;

/// The columns of a tensor table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    /// Names with their numbers taken out.
    pub(crate) names: Vec<String>,
    /// Varints: each number as a difference from the one in its place in the last name that had one.
    pub(crate) numbers: Vec<u8>,
    /// Different dtypes.
    pub(crate) dtypes: Vec<String>,
    /// Index of each tensor's dtype.
    pub(crate) dtype: Vec<u8>,
    /// Number of dimensions of each tensor.
    pub(crate) rank: Vec<u8>,
    /// Varints: dimensions, tensor after tensor.
    pub(crate) shapes: Vec<u8>,
    /// Varints: rows and columns of a tile; 0 for all.
    pub(crate) tiles: Vec<u8>,
}

/// Takes the numbers out of a name.
fn split(name: &str, numbers: &mut Vec<u64>) -> String {
    let mut pattern = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let plain = digits == 1 || !rest.starts_with('0');
        match rest[..digits].parse() {
            Ok(number) if plain && digits <= DIGITS => {
                numbers.push(number);
                pattern.push(NUMBER);
                rest = &rest[digits..];
                continue;
            }
            _ => {}
        }
        // A run of digits that is no number stays as a whole.
        let length = digits.max(first.len_utf8());
        if first == NUMBER || first == ESCAPE {
            pattern.push(ESCAPE);
        }
        pattern.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    pattern
}

fn wrong(what: &str) -> Error {
    Error::corrupt(format!("the tensor table {what} [F8]"))
}

impl Columns {
    /// The columns of a table.
    pub(crate) fn of(tensors: &[Tensor]) -> Self {
        let mut out = Self::default();
        let mut last: Vec<u64> = Vec::new();
        let mut numbers = Vec::new();
        for tensor in tensors {
            numbers.clear();
            out.names.push(split(&tensor.name, &mut numbers));
            last.resize(last.len().max(numbers.len()), 0);
            for (&number, last) in numbers.iter().zip(&mut last) {
                put_varint(zigzag(number as i64 - *last as i64), &mut out.numbers);
                *last = number;
            }
            let known = out.dtypes.iter().position(|d| *d == tensor.dtype);
            let index = known.unwrap_or(out.dtypes.len());
            if known.is_none() {
                out.dtypes.push(tensor.dtype.clone());
            }
            out.dtype.push(index as u8);
            out.rank.push(tensor.shape.len() as u8);
            for &dimension in &tensor.shape {
                put_varint(dimension, &mut out.shapes);
            }
            for (size, all) in tensor.tile.into_iter().zip([tensor.rows, tensor.cols]) {
                put_varint(if size == all { 0 } else { size }, &mut out.tiles);
            }
        }
        out
    }

    /// The table.
    ///
    /// # Errors
    /// `Corrupt` where the columns do not fit together, and as for [`Tensor::new`].
    pub(crate) fn tensors(&self) -> Result<Vec<Tensor>> {
        let n = self.names.len();
        if self.dtype.len() != n || self.rank.len() != n {
            return Err(wrong("has columns of different lengths"));
        }
        let (mut numbers, mut shapes) = (&self.numbers[..], &self.shapes[..]);
        let mut tiles = &self.tiles[..];
        let mut last = Vec::new();
        let mut tensors = Vec::with_capacity(n);
        for (i, pattern) in self.names.iter().enumerate() {
            let name = join(pattern, &mut numbers, &mut last)?;
            let dtype = self
                .dtypes
                .get(usize::from(self.dtype[i]))
                .ok_or_else(|| wrong("names no such dtype"))?;
            let shape = (0..self.rank[i])
                .map(|_| take_varint(&mut shapes))
                .collect::<Result<Vec<u64>>>()?;
            let mut tile = [take_varint(&mut tiles)?, take_varint(&mut tiles)?];
            // What is wrong with the shape is said by `Tensor::new`, and a tensor without elements has
            // tiles [0, 0].
            if let Some((rows, cols)) = matrix(&shape, 1).filter(|&(r, c)| r > 0 && c > 0) {
                for (size, all) in tile.iter_mut().zip([rows, cols]) {
                    if *size == 0 {
                        *size = all;
                    }
                }
            }
            tensors.push(Tensor::new(name, dtype.clone(), shape, tile)?);
        }
        if !(numbers.is_empty() && shapes.is_empty() && tiles.is_empty()) {
            return Err(wrong("has columns that are too long"));
        }
        Ok(tensors)
    }
}

/// Puts the numbers back into a name.
fn join(pattern: &str, numbers: &mut &[u8], last: &mut Vec<u64>) -> Result<String> {
    let mut name = String::with_capacity(pattern.len() + 8);
    let mut place = 0;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            NUMBER => {
                if place == last.len() {
                    last.push(0);
                }
                let difference = unzigzag(take_varint(numbers)?);
                let number = last[place]
                    .checked_add_signed(difference)
                    .filter(|&n| n < 10u64.pow(DIGITS as u32))
                    .ok_or_else(|| wrong("has a number out of range"))?;
                last[place] = number;
                place += 1;
                name.push_str(&number.to_string());
            }
            ESCAPE => match chars.next() {
                Some(c @ (NUMBER | ESCAPE)) => name.push(c),
                _ => return Err(wrong("has a name with a stray escape")),
            },
            c => name.push(c),
        }
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(names: &[String]) -> Vec<Tensor> {
        names
            .iter()
            .enumerate()
            .map(|(i, name)| {
                let (dtype, shape, tile) = match i % 4 {
                    0 => ("BF16", vec![8, 16], [4, 16]),
                    1 => ("F32", vec![], [1, 1]),
                    2 => ("BF16", vec![3, 0], [0, 0]),
                    _ => ("I8", vec![2, 3, 8], [6, 8]),
                };
                Tensor::new(name.clone(), dtype.into(), shape, tile).unwrap()
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_names(names in prop::collection::vec("[a.0-9\u{1}\u{2}\u{e9}]{1,30}", 0..20)) {
            let tensors = table(&names);
            prop_assert_eq!(Columns::of(&tensors).tensors().unwrap(), tensors);
        }

        #[test]
        fn any_columns_are_a_table_or_an_error(
            names in prop::collection::vec("[a\u{1}\u{2}]{0,5}", 0..4),
            bytes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 5),
        ) {
            let mut bytes = bytes.into_iter();
            let mut next = || bytes.next().unwrap();
            let columns = Columns {
                names,
                numbers: next(),
                dtypes: vec!["BF16".into(), "I8".into()],
                dtype: next(),
                rank: next(),
                shapes: next(),
                tiles: next(),
            };
            if let Ok(tensors) = columns.tensors() {
                prop_assert_eq!(tensors.len(), columns.names.len());
            }
        }
    }

    #[test]
    fn layers_repeat() {
        let names: Vec<String> = (0..60)
            .flat_map(|i| ["q", "k"].map(|p| format!("model.layers.{i}.self_attn.{p}_proj.weight")))
            .collect();
        let columns = Columns::of(&table(&names));
        assert_eq!(columns.names[2..], columns.names[..118]);
        assert_eq!(columns.numbers[..6], [0, 0, 2, 0, 2, 0]);
        assert_eq!(columns.names[0].chars().filter(|&c| c == NUMBER).count(), 1);
    }

    #[test]
    fn digits_that_are_no_numbers() {
        for name in [
            "a.007",
            "x00",
            "0",
            "1234567890123456789",
            "5a5",
            "\u{1}3\u{2}",
        ] {
            let tensors = table(&[name.to_string()]);
            assert_eq!(Columns::of(&tensors).tensors().unwrap(), tensors);
        }
    }
}
