//! Fixed-size byte strings that are lowercase hexadecimal in JSON.

use std::fmt;

use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Result};

/// `N` bytes, written as `2 * N` lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hex<const N: usize>(pub [u8; N]);

/// BLAKE3 of an object's or manifest's bytes.
pub type Blake3 = Hex<32>;
/// State digest v1.
pub type State = Hex<16>;
/// The random name of one attempt to write.
pub type WriteId = Hex<16>;

impl<const N: usize> Hex<N> {
    /// Parses exactly `2 * N` lowercase hexadecimal digits.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] for any other text.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            let shown: String = text.chars().take(80).collect();
            Error::new(
                ErrorKind::Untrusted,
                format!(
                    "expected {} lowercase hexadecimal digits, got {shown:?}",
                    2 * N
                ),
            )
        };
        if text.len() != 2 * N {
            return Err(bad());
        }
        let mut bytes = [0; N];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(bad());
            };
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

impl Blake3 {
    /// BLAKE3 of `data`.
    #[must_use]
    pub fn of(data: &[u8]) -> Self {
        blake3::hash(data).into()
    }
}

impl From<blake3::Hash> for Blake3 {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|error| de::Error::custom(error.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let value = Hex([0x00, 0xab, 0xff]);
        assert_eq!(value.to_string(), "00abff");
        assert_eq!(Hex::<3>::parse("00abff").unwrap(), value);
        for bad in ["", "00abf", "00ABff", "00abff0", "00abfg", "é0abf"] {
            assert!(Hex::<3>::parse(bad).is_err(), "{bad}");
        }
    }
}
