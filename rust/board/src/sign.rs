//! Signatures of records: which bytes are signed, and how they are found again.
//!
//! A signature is the last member of a record, in one fixed spelling. What is signed is every other
//! byte of the record as stored, so nothing has to be put into a canonical form in order to verify,
//! and keys that a reader does not know are covered like all others.

use std::fmt;

use ed25519_dalek::{Signer, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::hex::{Hex, State};
use crate::manifest::{untrusted, MAX_RECORD};

/// Longest name of a key, in bytes.
pub const MAX_KEY_NAME: usize = 64;

/// What kind of record a signature is for; one never counts as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signed {
    /// A manifest.
    Manifest,
    /// An anchor record.
    Anchor,
    /// The introduction of a new key.
    Key,
    /// A skip record.
    Skip,
}

impl Signed {
    /// What the signed bytes begin with.
    #[must_use]
    pub fn domain(self) -> &'static [u8] {
        match self {
            Self::Manifest => b"deltawire board v1 manifest\0",
            Self::Anchor => b"deltawire board v1 anchor\0",
            Self::Key => b"deltawire board v1 key\0",
            Self::Skip => b"deltawire board v1 skip\0",
        }
    }
}

/// A public key and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    name: String,
    bytes: Hex<32>,
}

impl PublicKey {
    /// A key from its 32 bytes.
    ///
    /// # Errors
    /// [`ErrorKind::KeyFile`] for an impossible name or bytes that are no Ed25519 public key, or a weak one.
    pub fn new(name: &str, bytes: Hex<32>) -> Result<Self> {
        check_key_name(name)?;
        match VerifyingKey::from_bytes(&bytes.0) {
            // One spelling for each key, as RFC 8032 demands.
            Ok(key) if !key.is_weak() && key.to_edwards().compress().to_bytes() == bytes.0 => {
                Ok(Self {
                    name: name.to_owned(),
                    bytes,
                })
            }
            _ => Err(Error::new(
                ErrorKind::KeyFile,
                format!("the bytes of key {name:?} are no Ed25519 public key"),
            )),
        }
    }

    /// The key's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> Hex<32> {
        self.bytes
    }

    /// What people compare: the first 16 bytes of the BLAKE3 of the key.
    #[must_use]
    pub fn fingerprint(&self) -> State {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(&self.bytes.0).as_bytes()[..16]);
        Hex(short)
    }

    /// Checks a signature over `payload`. Signatures that another spelling of theirs could replace are
    /// refused.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`].
    pub fn verify(&self, kind: Signed, payload: &[u8], signature: Hex<64>) -> Result<()> {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        VerifyingKey::from_bytes(&self.bytes.0)
            .and_then(|key| key.verify_strict(&message(kind, payload), &signature))
            .map_err(|_| {
                untrusted(format!(
                    "the signature is not that of key {:?} (fingerprint {}) over these bytes; do \
                     not use it, and find out who can write to the board",
                    self.name,
                    self.fingerprint()
                ))
            })
    }
}

/// A private key and its name. Erased from memory when dropped, and shown by no formatter.
pub struct SigningKey {
    name: String,
    inner: ed25519_dalek::SigningKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl SigningKey {
    /// The key of a seed, 32 random bytes.
    ///
    /// # Errors
    /// [`ErrorKind::KeyFile`] for an impossible name.
    pub fn from_seed(name: &str, seed: &[u8; 32]) -> Result<Self> {
        check_key_name(name)?;
        Ok(Self {
            name: name.to_owned(),
            inner: ed25519_dalek::SigningKey::from_bytes(seed),
        })
    }

    pub(crate) fn seed(&self) -> &[u8; 32] {
        self.inner.as_bytes()
    }

    /// The key's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey {
            name: self.name.clone(),
            bytes: Hex(self.inner.verifying_key().to_bytes()),
        }
    }

    /// The record `unsigned` with this key's signature in it.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] if the record becomes too large; [`ErrorKind::Untrusted`] if `unsigned` is no
    /// JSON object with members, or has a signature.
    pub fn sign_record(&self, kind: Signed, unsigned: &[u8]) -> Result<Vec<u8>> {
        if unsigned.len() < 3 || unsigned.last() != Some(&b'}') || has_signature(unsigned)? {
            return Err(untrusted("not a record that can be signed".to_owned()));
        }
        let signature = Signature {
            key: self.name.clone(),
            ed25519: Hex(self.inner.sign(&message(kind, unsigned)).to_bytes()),
        };
        let mut signed = unsigned[..unsigned.len() - 1].to_vec();
        signed.extend_from_slice(signature.member().as_bytes());
        if signed.len() as u64 > MAX_RECORD {
            return Err(Error::new(
                ErrorKind::Limit,
                format!(
                    "the signed record has {} bytes, more than {MAX_RECORD}",
                    signed.len()
                ),
            ));
        }
        Ok(signed)
    }
}

/// The value of a record's `signature`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Name of the key.
    pub key: String,
    /// The signature, of [`Signed::domain`] and the rest of the record.
    pub ed25519: Hex<64>,
}

impl Signature {
    /// The end of a signed record.
    fn member(&self) -> String {
        format!(
            ",\"signature\":{{\"key\":\"{}\",\"ed25519\":\"{}\"}}}}",
            self.key, self.ed25519
        )
    }
}

#[derive(Deserialize)]
struct OnlySignature<'a> {
    #[serde(default, borrow)]
    signature: Option<&'a serde_json::value::RawValue>,
}

fn only_signature(record: &[u8]) -> Result<Option<&serde_json::value::RawValue>> {
    serde_json::from_slice::<OnlySignature<'_>>(record)
        .map(|found| found.signature)
        .map_err(|error| untrusted(format!("not a record: {error}")))
}

fn has_signature(record: &[u8]) -> Result<bool> {
    Ok(only_signature(record)?.is_some())
}

/// The signature of a record and the bytes that it is for: the record without it. `None` for a record
/// that has none.
///
/// # Errors
/// [`ErrorKind::Untrusted`] for a signature in another place or spelling than the one allowed.
pub fn split(record: &[u8]) -> Result<Option<(Signature, Vec<u8>)>> {
    let Some(raw) = only_signature(record)? else {
        return Ok(None);
    };
    let malformed = || {
        untrusted(
            "its signature is not in the place and spelling that signed records have; do not use \
             it, or update if a newer deltawire wrote it"
                .to_owned(),
        )
    };
    let signature: Signature = serde_json::from_str(raw.get()).map_err(|_| malformed())?;
    check_key_name(&signature.key).map_err(|_| malformed())?;
    let rest = record
        .strip_suffix(signature.member().as_bytes())
        .ok_or_else(malformed)?;
    let payload = [rest, b"}"].concat();
    // What is acted upon is read from the whole record: the same, less its signature.
    if has_signature(&payload)? {
        return Err(malformed());
    }
    Ok(Some((signature, payload)))
}

/// Checks that `name` may be a key's: `A-Z a-z 0-9 . _ -`, no dot in front.
///
/// # Errors
/// [`ErrorKind::KeyFile`].
pub fn check_key_name(name: &str) -> Result<()> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=MAX_KEY_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
    {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Error::new(
        ErrorKind::KeyFile,
        format!(
            "a key cannot have the name {shown:?}; use 1 to {MAX_KEY_NAME} of A-Z a-z 0-9 . _ - \
             without a dot in front"
        ),
    ))
}

fn message(kind: Signed, payload: &[u8]) -> Vec<u8> {
    [kind.domain(), payload].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        Hex::<N>::parse(text).unwrap().0
    }

    fn key() -> SigningKey {
        SigningKey::from_seed("trainer", &[7; 32]).unwrap()
    }

    const RECORD: &[u8] = br#"{"format":1,"version":3,"later":[1,{"x":"y"}]}"#;

    /// RFC 8032, section 7.1, tests 1 to 3 and the one with SHA-512 of "abc".
    #[test]
    fn rfc_8032() {
        for (seed, public, text, signature) in [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
                "",
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
            ),
            (
                "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
                "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
                "72",
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
            ),
            (
                "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
                "af82",
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
            ),
            (
                "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
                "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
                "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
            ),
        ] {
            let signing = ed25519_dalek::SigningKey::from_bytes(&unhex(seed));
            assert_eq!(signing.verifying_key().to_bytes(), unhex::<32>(public));
            let text: Vec<u8> = text
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            let made = signing.sign(&text);
            assert_eq!(made.to_bytes(), unhex::<64>(signature));
            signing.verifying_key().verify_strict(&text, &made).unwrap();
        }
    }

    #[test]
    fn signed_and_found_again() {
        let signed = key().sign_record(Signed::Manifest, RECORD).unwrap();
        let (signature, payload) = split(&signed).unwrap().unwrap();
        assert_eq!((signature.key.as_str(), &payload[..]), ("trainer", RECORD));
        let public = key().public();
        public
            .verify(Signed::Manifest, &payload, signature.ed25519)
            .unwrap();
        for other in [Signed::Anchor, Signed::Key] {
            let error = public
                .verify(other, &payload, signature.ed25519)
                .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Untrusted);
            assert!(error.message.contains("\"trainer\""), "{error}");
        }
        assert!(key().sign_record(Signed::Manifest, &signed).is_err());
        assert_eq!(split(RECORD).unwrap(), None);
    }

    #[test]
    fn other_places_and_spellings_are_refused() {
        let signed = key().sign_record(Signed::Manifest, RECORD).unwrap();
        let text = String::from_utf8(signed).unwrap();
        let (head, member) = text.split_once(",\"signature\":").unwrap();
        let value = &member[..member.len() - 1];
        for altered in [
            format!("{text} "),
            format!("{text}\n"),
            format!("{{\"signature\":{value},{}}}", &head[1..]),
            format!("{head},\"signature\": {value}}}"),
            format!("{head},\"signature\":{value},\"more\":1}}"),
            format!("{head},\"signature\":{value},\"signature\":{value}}}"),
            format!("{head},\"signature\":{{}},\"signature\":{value}}}"),
            text.replace("\"key\":\"trainer\"", "\"key\":\"tr\\u0061iner\""),
            text.replace("\"key\":\"trainer\"", "\"key\":\"../trainer\""),
            text.replace("{\"key\":", "{\"more\":1,\"key\":"),
            format!("{head},\"signature\":\"\"}}"),
            format!("{head},\"signature\":[{value}]}}"),
        ] {
            assert!(split(altered.as_bytes()).is_err(), "{altered}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let shown = format!("{:?} {:#?}", key(), key());
        assert!(shown.contains("trainer"));
        assert!(
            !shown.contains("0707") && !shown.contains("7, 7"),
            "{shown}"
        );
    }

    #[test]
    fn weak_keys_and_names_are_refused() {
        let mut identity = [0; 32];
        identity[0] = 1;
        for bytes in [identity, [0; 32], [255; 32]] {
            assert!(PublicKey::new("x", Hex(bytes)).is_err(), "{bytes:?}");
        }
        for name in ["", ".x", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(SigningKey::from_seed(name, &[1; 32]).is_err(), "{name}");
        }
    }

    proptest! {
        /// Whatever members a record has, its signature covers every byte but its own, and any other
        /// byte at any place is refused, be it by the parser or by the signature.
        #[test]
        fn every_byte_counts(
            members in proptest::collection::btree_map("[a-z\"\\\\,{}é]{1,8}", "[ -~é\u{0}]{0,20}", 1..6),
            seed in any::<[u8; 32]>(),
            place in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            prop_assume!(!members.contains_key("signature"));
            let key = SigningKey::from_seed("k", &seed).unwrap();
            let unsigned = serde_json::to_vec(&members).unwrap();
            let mut signed = key.sign_record(Signed::Anchor, &unsigned).unwrap();
            let (signature, payload) = split(&signed).unwrap().unwrap();
            prop_assert_eq!(&payload, &unsigned);
            key.public().verify(Signed::Anchor, &payload, signature.ed25519).unwrap();
            let again: std::collections::BTreeMap<String, String> =
                serde_json::from_slice(&payload).unwrap();
            prop_assert_eq!(&again, &members);
            let place = place.index(signed.len());
            signed[place] ^= flip;
            let accepted = match split(&signed) {
                Ok(Some((signature, payload))) => {
                    signature.key == "k"
                        && key.public().verify(Signed::Anchor, &payload, signature.ed25519).is_ok()
                }
                _ => false,
            };
            prop_assert!(!accepted, "byte {} of {:?}", place, signed);
        }

        /// Any bytes: an answer, no panic; and what is split off can be put together again.
        #[test]
        fn split_of_anything(record in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((signature, payload))) = split(&record) {
                let mut whole = payload[..payload.len() - 1].to_vec();
                whole.extend_from_slice(signature.member().as_bytes());
                prop_assert_eq!(whole, record);
            }
        }
    }
}
