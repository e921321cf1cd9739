//! What AdamW's steps do to elements of one exponent.
//!
//! In a step an element moves by about the learning rate, whatever its size, and the spacing of its
//! format's values doubles with each exponent. So one number a chunk, the distance of its first class
//! from the exponent whose spacing equals the step, predicts for every class how often elements change
//! and how far. The tables were fitted to recorded and synthetic steps; where a class differs, its
//! parameters are written as differences from them.

use super::tables::PARAMETERS;

/// Distances and parameters of ranks are in eighths of an octave.
pub const OCTAVE: i32 = 8;
/// Parameter of the ranks at distances `FIRST`, `FIRST + 1`, ...; above them it is the distance itself.
const FIRST: i32 = -32;
const RANKS: [u8; 48] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4,
    4, 5, 5, 6, 6, 7, 8, 8, 9, 10, 11, 11, 12, 13, 14, 15,
];
/// One more than the parameter of the sizes of steps, at the same distances; 0 where all steps are one.
/// Below them it is two more than the negative distance.
const SIZES: [u8; 56] = [
    34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 17, 16, 15, 14, 13, 12,
    11, 11, 10, 9, 8, 8, 7, 6, 5, 5, 5, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1,
    1,
];

/// The parameter of the ranks of a class at a distance.
pub fn ranks(distance: i32) -> u8 {
    match usize::try_from(distance - FIRST) {
        Err(_) => 0,
        Ok(at) => match RANKS.get(at) {
            Some(&q) => q,
            None => distance.min(PARAMETERS as i32 - 1) as u8,
        },
    }
}

/// One more than the parameter of the sizes of steps less one, of a class at a distance; 0: all are
/// one.
pub fn sizes(distance: i32) -> u8 {
    match usize::try_from(distance - FIRST) {
        Err(_) => (2 - distance).min(PARAMETERS as i32) as u8,
        Ok(at) => SIZES.get(at).copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_go_on_where_they_end() {
        for distance in -400..400 {
            assert!(ranks(distance) <= ranks(distance + 1));
            assert!(sizes(distance) >= sizes(distance + 1));
            assert!(usize::from(ranks(distance)) < PARAMETERS);
            assert!(usize::from(sizes(distance)) <= PARAMETERS);
        }
        assert_eq!(ranks(16), 16);
        assert_eq!(sizes(-33), 35);
        assert_eq!(sizes(24), 0);
    }
}
