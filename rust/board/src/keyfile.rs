//! Key files: one line for each key, and comments.
//!
//! ```text
//! deltawire-signing-key-v1 NAME SEED        the private half; 64 hexadecimal digits
//! deltawire-public-key-v1 NAME KEY          the public half, which readers are given
//! deltawire-public-key-v1 NAME KEY from=11 until=99
//! deltawire-public-key-v1 NAME KEY revoked
//! ```
//!
//! Public key files can be put one after the other: that is a keyring. No message of this file shows
//! a line of a key file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::hex::Hex;
use crate::layout::MAX_VERSION;
use crate::sign::{PublicKey, SigningKey};
use crate::trust::TrustedKey;

const SIGNING: &str = "deltawire-signing-key-v1";
const PUBLIC: &str = "deltawire-public-key-v1";
/// A key file or keyring larger than this is refused, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Others may neither read nor write a private key. A group may read it, as secrets that a cluster
/// mounts for a group are.
const FORBIDDEN_MODE: u32 = 0o027;

/// Reads a private key.
///
/// # Errors
/// [`ErrorKind::KeyFile`] for a file that is no private key, or that others can read;
/// [`ErrorKind::Store`] if it cannot be read.
pub fn load_signing_key(path: &Path) -> Result<SigningKey> {
    let (text, mode) = read(path)?;
    if mode & FORBIDDEN_MODE != 0 {
        return Err(bad(
            path,
            &format!(
                "mode {:04o} lets others at this private key; make it `chmod 600`, and replace the \
                 key if they may have read it",
                mode & 0o7777
            ),
        ));
    }
    let mut found = None;
    for (number, line) in lines(&text) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let key = match words.as_slice() {
            [SIGNING, name, seed] => {
                let mut bytes = Zeroizing::new([0; 32]);
                decode(seed, &mut bytes).and_then(|()| SigningKey::from_seed(name, &bytes).ok())
            }
            [PUBLIC, ..] => {
                return Err(bad(
                    path,
                    "this is the public half; name the private key's file",
                ))
            }
            _ => None,
        };
        let key = key.ok_or_else(|| {
            bad(
                path,
                &format!("line {number} is not `{SIGNING} NAME` and 64 hexadecimal digits"),
            )
        })?;
        if found.replace(key).is_some() {
            return Err(bad(path, "more than one private key; a file holds one"));
        }
    }
    found.ok_or_else(|| bad(path, "no private key in this file"))
}

/// Writes a private key to a new file that its owner alone may read.
///
/// # Errors
/// [`ErrorKind::KeyFile`] if the file exists; [`ErrorKind::Store`] if it cannot be written.
pub fn save_signing_key(key: &SigningKey, path: &Path) -> Result<()> {
    let mut text = Zeroizing::new(String::with_capacity(512));
    text.push_str("# Private key of a deltawire publisher: whoever reads it can publish as you.\n");
    text.push_str(SIGNING);
    text.push(' ');
    text.push_str(key.name());
    text.push(' ');
    for byte in key.seed() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text.push('\n');
    create(path, 0o600, text.as_bytes())
}

/// Writes a public key to a new file.
///
/// # Errors
/// As [`save_signing_key`].
pub fn save_public_key(key: &PublicKey, path: &Path) -> Result<()> {
    create(path, 0o644, public_text(key).as_bytes())
}

/// The content of a public key file.
#[must_use]
pub fn public_text(key: &PublicKey) -> String {
    format!(
        "# Public key of a deltawire publisher, fingerprint {}\n{PUBLIC} {} {}\n",
        key.fingerprint(),
        key.name(),
        key.bytes()
    )
}

/// Reads a keyring: a file of public keys.
///
/// # Errors
/// [`ErrorKind::KeyFile`] for a file that is none; [`ErrorKind::Store`] if it cannot be read.
pub fn load_keyring(path: &Path) -> Result<Vec<TrustedKey>> {
    let (text, _) = read(path)?;
    let mut keys = Vec::new();
    for (number, line) in lines(&text) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [PUBLIC, name, bytes, rest @ ..] = words.as_slice() else {
            let message = if words.first() == Some(&SIGNING) {
                "this is a private key, which readers must not have; give them the public half"
                    .to_owned()
            } else {
                format!("line {number} is not `{PUBLIC} NAME` and 64 hexadecimal digits")
            };
            return Err(bad(path, &message));
        };
        let key = Hex::parse(bytes)
            .and_then(|bytes| PublicKey::new(name, bytes))
            .map_err(|error| bad(path, &format!("line {number}: {}", error.message)))?;
        let mut trusted = TrustedKey::new(key);
        for word in rest {
            apply(&mut trusted, word).ok_or_else(|| {
                bad(
                    path,
                    &format!(
                        "line {number}: after the key there may be from=VERSION, until=VERSION \
                         and revoked"
                    ),
                )
            })?;
        }
        keys.push(trusted);
    }
    if keys.is_empty() {
        return Err(bad(path, "no public key in this file"));
    }
    Ok(keys)
}

fn apply(key: &mut TrustedKey, word: &str) -> Option<()> {
    let number = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| text.parse().ok().filter(|version| *version <= MAX_VERSION))
            .flatten()
    };
    if word == "revoked" {
        key.revoked = true;
    } else if let Some(version) = word.strip_prefix("from=") {
        key.first = number(version)?;
    } else {
        key.last = Some(number(word.strip_prefix("until=")?)?);
    }
    Some(())
}

/// The lines that are no comment, with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
}

fn decode(text: &str, bytes: &mut [u8; 32]) -> Option<()> {
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let mut value = 0;
        for digit in pair {
            value = value << 4 | char::from(*digit).to_digit(16)? as u8;
        }
        *byte = value;
    }
    Some(())
}

fn read(path: &Path) -> Result<(Zeroizing<String>, u32)> {
    let failed = |error: std::io::Error| failed(path, "cannot be read", &error);
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(bad(path, "this is a directory; name a key file in it"));
    }
    if metadata.len() > MAX_FILE {
        return Err(bad(path, "too large for a key file"));
    }
    // Whole at once: a buffer that grows would leave copies behind.
    let mut bytes = Zeroizing::new(vec![0; MAX_FILE as usize + 1]);
    let mut length = 0;
    let mut file = file;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let text = std::str::from_utf8(&bytes[..length])
        .ok()
        .filter(|_| length as u64 <= MAX_FILE)
        .ok_or_else(|| bad(path, "not a key file"))?;
    Ok((Zeroizing::new(text.to_owned()), metadata.mode()))
}

fn create(path: &Path, mode: u32, content: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => bad(
                path,
                "exists already; keys are never overwritten: choose another name",
            ),
            _ => failed(path, "cannot be made", &error),
        })?;
    file.write_all(content)
        .and_then(|()| file.sync_all())
        .map_err(|error| {
            // Half a key is of no use; the first error is the one to tell.
            let _ = std::fs::remove_file(path);
            failed(path, "cannot be written", &error)
        })
}

fn bad(path: &Path, message: &str) -> Error {
    Error::new(ErrorKind::KeyFile, message).at(path.display().to_string())
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Store, format!("{what}: {error}")).at(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("deltawire-keys-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn saved_and_loaded() {
        let directory = directory("saved");
        let path = directory.join("a.key");
        let key = SigningKey::from_seed("night-2", &[0xa5; 32]).unwrap();
        save_signing_key(&key, &path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let again = load_signing_key(&path).unwrap();
        assert_eq!((again.name(), again.seed()), ("night-2", &[0xa5; 32]));
        let error = save_signing_key(&key, &path).unwrap_err();
        assert_eq!(error.kind, ErrorKind::KeyFile);
        save_public_key(&key.public(), &directory.join("a.pub")).unwrap();
        let keys = load_keyring(&directory.join("a.pub")).unwrap();
        assert_eq!(keys, [TrustedKey::new(key.public())]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn refusals_show_no_line() {
        let directory = directory("refused");
        let path = directory.join("x");
        let secret = "a5".repeat(32);
        let write = |text: &str, mode: u32| {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let line = format!("{SIGNING} a {secret}\n");
        for (text, mode) in [
            (line.clone(), 0o644),
            (line.clone(), 0o620),
            (format!("{line}{line}"), 0o600),
            (format!("{SIGNING} a {secret}0"), 0o600),
            (format!("{SIGNING} a/b {secret}"), 0o600),
            (format!("{SIGNING} {secret}"), 0o600),
            (secret.clone(), 0o600),
            (String::new(), 0o600),
            ("# nothing\n".to_owned(), 0o600),
        ] {
            write(&text, mode);
            let error = load_signing_key(&path).unwrap_err();
            assert_eq!(error.kind, ErrorKind::KeyFile, "{text}");
            assert!(!format!("{error} {error:?}").contains(&secret), "{error}");
            assert!(!format!("{}", load_keyring(&path).unwrap_err()).contains(&secret));
        }
        write(&line, 0o440);
        load_signing_key(&path).unwrap();
        let public = SigningKey::from_seed("a", &[1; 32]).unwrap().public();
        let line = public_text(&public);
        let line = line.trim_end();
        for tail in [
            "from=",
            "from=-1",
            "until=+3",
            "until=9223372036854775808",
            "since=3",
            "x",
        ] {
            write(&format!("{line} {tail}"), 0o644);
            assert_eq!(
                load_keyring(&path).unwrap_err().kind,
                ErrorKind::KeyFile,
                "{tail}"
            );
        }
        write(&format!("\n{line} from=3 until=9\n # x\n"), 0o644);
        let found = load_keyring(&path).unwrap();
        assert_eq!(
            (found[0].first, found[0].last, found[0].revoked),
            (3, Some(9), false)
        );
        assert_eq!(
            load_signing_key(&path).unwrap_err().kind,
            ErrorKind::KeyFile
        );
        std::fs::remove_dir_all(directory).unwrap();
    }
}
