//! What a board's URL or path names.

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};

/// The URL schemes that this build reads and writes.
pub const SCHEMES: &[&str] = &["file", "memory"];

/// Where a board lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory: `/path`, `relative/path` or `file:///path`.
    Local(PathBuf),
    /// A store shared by all boards of this process that give the same name:
    /// `memory://name/prefix`.
    Memory {
        /// The store.
        name: String,
        /// The board within it, empty for its root.
        prefix: String,
    },
}

impl Location {
    /// Reads a URL, or else a path.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for a scheme that this build does not know, a `file` URL with a host, a
    /// `memory` URL without a name, or empty text.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Store, message).at(text));
        let Some((scheme, rest)) = text.split_once("://") else {
            if text.is_empty() {
                return refuse("a board needs a path or a URL".to_owned());
            }
            return Ok(Self::Local(PathBuf::from(text)));
        };
        match scheme.to_ascii_lowercase().as_str() {
            "file" => {
                let path = rest.strip_prefix("localhost").unwrap_or(rest);
                if !path.starts_with('/') {
                    return refuse("write a local board as file:///absolute/path".to_owned());
                }
                match percent_decode(path) {
                    Some(path) => Ok(Self::Local(PathBuf::from(path))),
                    None => refuse("the URL's percent escapes are malformed".to_owned()),
                }
            }
            "memory" => {
                let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if name.is_empty() {
                    return refuse("give the memory board a name: memory://name".to_owned());
                }
                Ok(Self::Memory {
                    name: name.to_owned(),
                    prefix: prefix.trim_matches('/').to_owned(),
                })
            }
            other => refuse(format!(
                "this build does not know the scheme {other}://; it knows paths and {}",
                known_schemes()
            )),
        }
    }
}

fn known_schemes() -> String {
    SCHEMES
        .iter()
        .map(|scheme| format!("{scheme}://"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls() {
        let local = |path: &str| Location::Local(PathBuf::from(path));
        assert_eq!(Location::parse("/runs/a").unwrap(), local("/runs/a"));
        assert_eq!(Location::parse("runs/a").unwrap(), local("runs/a"));
        assert_eq!(
            Location::parse("file:///runs/a%20b").unwrap(),
            local("/runs/a b")
        );
        assert_eq!(
            Location::parse("FILE://localhost/runs").unwrap(),
            local("/runs")
        );
        assert_eq!(
            Location::parse("memory://m/x/y/").unwrap(),
            Location::Memory {
                name: "m".into(),
                prefix: "x/y".into()
            }
        );
    }

    #[test]
    fn refusals_name_the_known_schemes() {
        let error = Location::parse("s3://bucket/run").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Store);
        assert!(error.message.contains("s3://") && error.message.contains("memory://"));
        for bad in [
            "",
            "memory://",
            "memory:///x",
            "file://host/x",
            "file:///%zz",
            "ftp://x/y",
        ] {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }
}
