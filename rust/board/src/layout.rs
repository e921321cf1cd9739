//! Names of everything on a board.
//!
//! Versions in names of manifests and control objects have twenty digits, so that names sort as
//! numbers do.

use crate::error::{Error, ErrorKind, Result};
use crate::hex::WriteId;

/// The hint at the newest version; never trusted.
pub const LATEST: &str = "latest.json";
/// Number of the first version; created before it.
pub const FIRST: &str = "control/first.json";
/// Directory of the manifests.
pub const MANIFESTS: &str = "manifests";
/// Directory of the epochs and claims.
pub const CONTROL: &str = "control";
/// Directory of the deltas.
pub const OBJECTS: &str = "objects";
/// Directory of the full checkpoints.
pub const ANCHORS: &str = "anchors";
/// Directory within an anchor's, of the hashes of its files' blocks.
pub const BLOCK_HASHES: &str = "block-hashes";
/// Directory of the leases.
pub const READERS: &str = "readers";
/// Versions are at most this, so that they fit a signed 64-bit integer everywhere.
pub const MAX_VERSION: u64 = i64::MAX as u64;

const MAX_PATH: usize = 1024;
const MAX_SEGMENT: usize = 200;

/// `manifests/<version>.json`
#[must_use]
pub fn manifest(version: u64) -> String {
    format!("{MANIFESTS}/{version:020}.json")
}

/// `manifests/<version>.anchor.json`: an anchor added after its version was committed.
#[must_use]
pub fn anchor_record(version: u64) -> String {
    format!("{MANIFESTS}/{version:020}.anchor.json")
}

/// `objects/<version>/<part>-<write id>.dw`
#[must_use]
pub fn object(version: u64, part: u32, write_id: WriteId) -> String {
    format!("{OBJECTS}/{version}/{part}-{write_id}.dw")
}

/// `objects/<version>/<part>-<write id>.records`: hashes of the delta's records.
#[must_use]
pub fn records(version: u64, part: u32, write_id: WriteId) -> String {
    format!("{OBJECTS}/{version}/{part}-{write_id}.records")
}

/// `objects/<version>/from-<base>.json`: the record of a delta over several versions. It lies beside its
/// objects, so that it goes with them when the version is collected.
#[must_use]
pub fn skip_record(version: u64, base: u64) -> String {
    format!("{OBJECTS}/{version}/from-{base}.json")
}

/// `objects/<version>/from-<base>-<write id>.dw` and its `.records`: a delta over several versions.
#[must_use]
pub fn skip_upload(version: u64, base: u64, write_id: WriteId) -> [String; 2] {
    with_records(&format!("{OBJECTS}/{version}/from-{base}-{write_id}"))
}

/// The base of a skip record's file name, if it is one.
#[must_use]
pub fn parse_skip_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("from-")?.strip_suffix(".json")?;
    let base = digits.parse().ok()?;
    (digits == format!("{base}")).then_some(base)
}

/// `objects/<version>/<part>-<write id>-`: what names of one of several parts begin with.
#[must_use]
pub fn part_prefix(version: u64, part: u32, write_id: WriteId) -> String {
    format!("{OBJECTS}/{version}/{part}-{write_id}-")
}

/// `objects/<version>/<part>-<write id>-<upload>.dw` and its `.records`: one upload of one of several parts.
#[must_use]
pub fn part_upload(version: u64, part: u32, write_id: WriteId, upload: WriteId) -> [String; 2] {
    with_records(&format!("{}{upload}", part_prefix(version, part, write_id)))
}

fn with_records(stem: &str) -> [String; 2] {
    [format!("{stem}.dw"), format!("{stem}.records")]
}

/// `anchors/<version>`, and `anchors/<version>-<attempt>` from the second attempt on.
#[must_use]
pub fn anchor_directory(version: u64, attempt: u32) -> String {
    if attempt <= 1 {
        format!("{ANCHORS}/{version}")
    } else {
        format!("{ANCHORS}/{version}-{attempt}")
    }
}

/// `<anchor directory>/block-hashes/<number>`: hashes of the blocks of a file of the anchor.
///
/// In a directory of their own, which loaders of checkpoints, and copies of one, leave alone.
#[must_use]
pub fn anchor_blocks(directory: &str, number: usize) -> String {
    format!("{directory}/{BLOCK_HASHES}/{number}")
}

/// `control/anchor-<version>-<attempt>.json`: who may write into that anchor directory.
#[must_use]
pub fn anchor_claim(version: u64, attempt: u32) -> String {
    format!("{CONTROL}/anchor-{version:020}-{attempt}.json")
}

/// `control/epoch-<epoch>.json`
#[must_use]
pub fn epoch(epoch: u64) -> String {
    format!("{CONTROL}/epoch-{epoch:020}.json")
}

/// `control/key-<name>.json`: who introduced a signing key
#[must_use]
pub fn key_statement(name: &str) -> String {
    format!("{CONTROL}/key-{name}.json")
}

/// `control/collected-<version>.json`: versions below this one are collected, or are about to be.
#[must_use]
pub fn collected(version: u64) -> String {
    format!("{CONTROL}/collected-{version:020}.json")
}

/// `readers/<id>.json`
///
/// # Errors
/// [`ErrorKind::Untrusted`] for an id that is not one plain segment.
pub fn lease(id: &str) -> Result<String> {
    let path = format!("{READERS}/{id}.json");
    check_path(&path, READERS)?;
    if id.is_empty() || id.contains('/') {
        return Err(Error::new(
            ErrorKind::Untrusted,
            format!("{id:?} is no name for a lease; use letters, digits and . _ + = @ -"),
        ));
    }
    Ok(path)
}

/// The id of a lease's file name, if it is one.
#[must_use]
pub fn parse_lease_name(name: &str) -> Option<&str> {
    let id = name.strip_suffix(".json")?;
    lease(id).is_ok().then_some(id)
}

/// Version and attempt of a claim's file name, if it is one.
#[must_use]
pub fn parse_claim_name(name: &str) -> Option<(u64, u32)> {
    let (version, attempt) = name
        .strip_prefix("anchor-")?
        .strip_suffix(".json")?
        .split_once('-')?;
    let plain = !attempt.starts_with(['0', '+']);
    Some((parse_version(version)?, attempt.parse().ok()?)).filter(|_| plain)
}

/// The version of a collection marker's file name, if it is one.
#[must_use]
pub fn parse_collected_name(name: &str) -> Option<u64> {
    parse_version(name.strip_prefix("collected-")?.strip_suffix(".json")?)
}

/// The version of a manifest's file name, if it is one.
#[must_use]
pub fn parse_manifest_name(name: &str) -> Option<u64> {
    parse_version(name.strip_suffix(".json")?)
}

fn parse_version(digits: &str) -> Option<u64> {
    parse_number(digits).filter(|version| *version <= MAX_VERSION)
}

/// The number of an epoch's file name, if it is one.
#[must_use]
pub fn parse_epoch_name(name: &str) -> Option<u64> {
    parse_number(name.strip_prefix("epoch-")?.strip_suffix(".json")?)
}

fn parse_number(digits: &str) -> Option<u64> {
    if digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        digits.parse().ok()
    } else {
        None
    }
}

/// Checks that a path that came with a manifest stays below `directory` and is plain everywhere:
/// segments of `A-Z a-z 0-9 . _ + = @ -`, none of them `.` or `..`.
///
/// # Errors
/// [`ErrorKind::Untrusted`] for any other path.
pub fn check_path(path: &str, directory: &str) -> Result<()> {
    let plain = |segment: &str| {
        !segment.is_empty()
            && segment.len() <= MAX_SEGMENT
            && segment != "."
            && segment != ".."
            && segment
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._+=@-".contains(&b))
    };
    let below = path
        .strip_prefix(directory)
        .and_then(|rest| rest.strip_prefix('/'))
        .is_some_and(|rest| rest.split('/').all(plain));
    if below && path.len() <= MAX_PATH {
        return Ok(());
    }
    let shown: String = path.chars().take(120).collect();
    Err(Error::new(
        ErrorKind::Untrusted,
        format!("the record names {shown:?}, which is not a plain path below {directory}/"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_and_parse() {
        assert!(manifest(9) < manifest(10));
        assert_eq!(manifest(12), "manifests/00000000000000000012.json");
        assert_eq!(parse_manifest_name("00000000000000000012.json"), Some(12));
        for other in [
            "12.json",
            "00000000000000000012.anchor.json",
            "0000000000000000001x.json",
            "99999999999999999999.json",
            "00000000000000000012.json#1",
        ] {
            assert_eq!(parse_manifest_name(other), None, "{other}");
        }
        assert_eq!(parse_epoch_name("epoch-00000000000000000003.json"), Some(3));
        let claim = anchor_claim(7, 12).replace("control/", "");
        assert_eq!(parse_claim_name(&claim), Some((7, 12)));
        assert_eq!(parse_claim_name(&claim.replace("-12", "-012")), None);
        let marker = collected(7).replace("control/", "");
        assert_eq!(parse_collected_name(&marker), Some(7));
        assert_eq!(parse_collected_name(&claim), None);
        assert_eq!(parse_epoch_name(&marker), None);
        assert_eq!(lease("a-1").unwrap(), "readers/a-1.json");
        assert_eq!(parse_lease_name("a-1.json"), Some("a-1"));
        for other in ["", "a/b", "../x", "a b", "a/../b"] {
            assert!(lease(other).is_err(), "{other}");
        }
        assert_eq!(parse_lease_name(".json"), None);
        assert_eq!(anchor_directory(4, 1), "anchors/4");
        assert_eq!(anchor_directory(4, 2), "anchors/4-2");
    }

    #[test]
    fn paths_cannot_escape() {
        check_path("objects/3/0-ab.dw", "objects").unwrap();
        check_path("anchors/3/original/tokenizer.model", "anchors/3").unwrap();
        for bad in [
            "objects",
            "objects/",
            "objects//x",
            "objects/../latest.json",
            "objects/./x",
            "/objects/x",
            "objectsx/y",
            "objects/a b",
            "objects/a\\b",
            "objects/a%2e",
            "objects/a#1",
            "anchors/3/x",
            "objects/\u{e9}",
        ] {
            assert!(check_path(bad, "objects").is_err(), "{bad}");
        }
        assert!(check_path(&format!("objects/{}", "a".repeat(300)), "objects").is_err());
    }
}
