//! MessagePack payloads of header and index: one map, string keys, nothing implied.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Cursor;

use deltawire_kernels::Digest;
use serde::de::{self, DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::stage;
use crate::error::{Error, Kind, Result};
use crate::limits::Limits;

/// A MessagePack str. Plain `String` would take a bin too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(pub(crate) String);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(de: D) -> std::result::Result<Self, D::Error> {
        struct Str;
        impl Visitor<'_> for Str {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a str")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<Text, E> {
                Ok(Text(text.to_owned()))
            }
        }
        de.deserialize_any(Str)
    }
}

/// A MessagePack bin. `serde_bytes` would take a str and an array of integers too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bin(pub(crate) Vec<u8>);

impl Serialize for Bin {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(de: D) -> std::result::Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Bin;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a bin")
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> std::result::Result<Bin, E> {
                Ok(Bin(bytes.to_vec()))
            }
            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> std::result::Result<Bin, E> {
                Ok(Bin(bytes))
            }
        }
        de.deserialize_any(Bytes)
    }
}

/// A digest as a bin of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) Digest);

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0.to_bytes())
    }
}

impl<'de> Deserialize<'de> for State {
    fn deserialize<D: Deserializer<'de>>(de: D) -> std::result::Result<Self, D::Error> {
        let Bin(bytes) = Bin::deserialize(de)?;
        let bytes: [u8; 16] = bytes
            .try_into()
            .map_err(|_| de::Error::custom("a state has 16 bytes"))?;
        Ok(Self(Digest::from_bytes(bytes)))
    }
}

/// An array of at most `MOST` entries: more are refused before memory is taken for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct List<T, const MOST: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for List<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(de: D) -> std::result::Result<Self, D::Error> {
        struct Entries<T, const MOST: usize>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Entries<T, MOST> {
            type Value = List<T, MOST>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of at most {MOST} entries")
            }
            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> std::result::Result<List<T, MOST>, A::Error> {
                let mut out = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    if out.len() == MOST {
                        return Err(de::Error::invalid_length(MOST + 1, &self));
                    }
                    out.push(entry);
                }
                Ok(List(out))
            }
        }
        de.deserialize_seq(Entries(std::marker::PhantomData))
    }
}

/// A map of str to str whose keys do not repeat.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextMap(pub(crate) BTreeMap<String, String>);

impl Serialize for TextMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: Deserializer<'de>>(de: D) -> std::result::Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = TextMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of str to str")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<TextMap, A::Error> {
                let mut out = BTreeMap::new();
                while let Some((Text(key), Text(value))) = map.next_entry()? {
                    if out.insert(key, value).is_some() {
                        return Err(de::Error::custom("a key repeats"));
                    }
                }
                Ok(TextMap(out))
            }
        }
        de.deserialize_any(Map)
    }
}

/// A struct that is a map on the wire: every key required, none twice, unknown ones ignored.
macro_rules! payload {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(serde::Serialize)]
        struct $name {
            $($field: $type),*
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(de: D) -> std::result::Result<Self, D::Error> {
                struct Fields;
                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a map")
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> std::result::Result<$name, A::Error> {
                        use serde::de::Error;
                        $(let mut $field: Option<$type> = None;)*
                        let mut unknown = std::collections::BTreeSet::new();
                        while let Some($crate::payload::Text(key)) = map.next_key()? {
                            match key.as_str() {
                                $(stringify!($field) => {
                                    if $field.replace(map.next_value()?).is_some() {
                                        return Err(A::Error::duplicate_field(stringify!($field)));
                                    }
                                })*
                                _ => {
                                    map.next_value::<serde::de::IgnoredAny>()?;
                                    if !unknown.insert(key) {
                                        return Err(A::Error::custom("a key repeats"));
                                    }
                                }
                            }
                        }
                        Ok($name {
                            $($field: $field
                                .ok_or_else(|| A::Error::missing_field(stringify!($field)))?),*
                        })
                    }
                }
                de.deserialize_map(Fields)
            }
        }
    };
}
pub(crate) use payload;

/// What payloads are likely to contain, for LZ4; part of the format.
const DICTIONARY: &[u8] = include_bytes!("dictionary-v1.bin");

/// A payload as MessagePack with string keys, and whether LZ4 made it smaller.
pub(crate) fn pack<T: Serialize>(payload: &T) -> Result<(Vec<u8>, bool)> {
    let plain = rmp_serde::to_vec_named(payload)
        .map_err(|e| Error::new(Kind::Layout, format!("cannot be written: {e}")))?;
    let packed = stage::compress_with(&plain, DICTIONARY);
    if packed.len() < plain.len() {
        return Ok((packed, true));
    }
    Ok((plain, false))
}

/// Undoes `pack`.
pub(crate) fn unpack<T: DeserializeOwned>(
    stored: &[u8],
    lz4: bool,
    limits: &Limits,
    what: &str,
) -> Result<T> {
    let mut scratch = Vec::new();
    let plain = if lz4 {
        stage::decompress_with(stored, limits.max_header_bytes, DICTIONARY, &mut scratch)?;
        &scratch[..]
    } else {
        stored
    };
    let mut de = rmp_serde::Deserializer::new(Cursor::new(plain));
    let payload = T::deserialize(&mut de)
        .map_err(|e| Error::corrupt(format!("the {what} is not the expected map: {e} [F8]")))?;
    if de.position() != plain.len() as u64 {
        return Err(Error::corrupt(format!(
            "bytes follow the {what}'s map [F8]"
        )));
    }
    Ok(payload)
}
