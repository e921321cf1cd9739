//! What a board's URL or path names.

use std::path::PathBuf;

use crate::error::{Error, ErrorKind, Result};

/// The URL schemes that this build reads and writes.
pub const SCHEMES: &[&str] = &["file", "memory", "s3", "gs", "az", "http", "https"];

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
    /// A store behind a network: `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix`, `https://host/path`.
    Remote {
        /// The store.
        bucket: Bucket,
        /// The board within it, empty for its root.
        prefix: String,
    },
}

/// Who runs a remote store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon S3, or another service that speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// Any web server; read only.
    Http,
}

/// A bucket or container, or the URL of a directory on a web server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Whose it is.
    pub cloud: Cloud,
    /// Its name; for a web server the whole URL.
    pub name: String,
}

impl Location {
    /// Reads a URL, or else a path.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] for a scheme that this build does not know, a `file` URL with a host, a
    /// URL without the name of a store, one with credentials in it, or empty text.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse =
            |message: String| Err(Error::new(ErrorKind::Store, message).at(without_secrets(text)));
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
            "s3" => remote(Cloud::S3, text, rest),
            "gs" => remote(Cloud::Gcs, text, rest),
            "az" => remote(Cloud::Azure, text, rest),
            scheme @ ("http" | "https") => {
                check_no_secrets(text)?;
                if rest.split('/').next().is_none_or(str::is_empty) {
                    return refuse(format!("name the server: {scheme}://host/path"));
                }
                Ok(Self::Remote {
                    bucket: Bucket {
                        cloud: Cloud::Http,
                        name: format!("{scheme}://{}", rest.trim_end_matches('/')),
                    },
                    prefix: String::new(),
                })
            }
            other => refuse(format!(
                "this build does not know the scheme {other}://; it knows paths and {}",
                known_schemes()
            )),
        }
    }
}

fn remote(cloud: Cloud, text: &str, rest: &str) -> Result<Location> {
    check_no_secrets(text)?;
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if name.is_empty() {
        let message = "the URL names no bucket: scheme://bucket/prefix";
        return Err(Error::new(ErrorKind::Store, message).at(text));
    }
    Ok(Location::Remote {
        bucket: Bucket {
            cloud,
            name: name.to_owned(),
        },
        prefix: prefix.trim_matches('/').to_owned(),
    })
}

/// The URL without user, password, query and fragment, where people put secrets.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Refuses a URL with a user, password, query or fragment, without repeating it.
pub(crate) fn check_no_secrets(text: &str) -> Result<()> {
    let shown = without_secrets(text);
    if shown == text {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Store,
        "the URL has a user, a query or a fragment; give credentials in the environment or the \
         options, where they are not shown",
    )
    .at(shown))
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
    fn remote_stores() {
        let remote = |cloud, name: &str, prefix: &str| Location::Remote {
            bucket: Bucket {
                cloud,
                name: name.into(),
            },
            prefix: prefix.into(),
        };
        for (text, wanted) in [
            ("s3://b", remote(Cloud::S3, "b", "")),
            ("S3://b/run/a/", remote(Cloud::S3, "b", "run/a")),
            ("gs://b/run", remote(Cloud::Gcs, "b", "run")),
            ("az://c/run", remote(Cloud::Azure, "c", "run")),
            (
                "http://h:80/run/",
                remote(Cloud::Http, "http://h:80/run", ""),
            ),
            ("HTTPS://h", remote(Cloud::Http, "https://h", "")),
        ] {
            assert_eq!(Location::parse(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn urls_with_secrets_are_refused_and_not_repeated() {
        for text in [
            "https://me:hidden@host/run",
            "https://host/run?signature=hidden",
            "https://host/run#hidden",
            "s3://hidden:hidden@bucket/run",
            "az://container/run?sig=hidden",
            "hidden://me:hidden@host",
        ] {
            let error = Location::parse(text).unwrap_err();
            let shown = error.to_string().replace("hidden://", "");
            assert_eq!(error.kind, ErrorKind::Store);
            assert!(!shown.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn refusals_name_the_known_schemes() {
        let error = Location::parse("hdfs://host/run").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Store);
        assert!(error.message.contains("s3://") && error.message.contains("memory://"));
        for bad in [
            "",
            "memory://",
            "memory:///x",
            "file://host/x",
            "file:///%zz",
            "ftp://x/y",
            "s3://",
            "gs:///x",
            "az://",
            "https://",
            "http:///x",
        ] {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }
}
