//! The one error type, grouped by what a handler would do.

/// Result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure; the names are those of `deltawire.errors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A storage operation failed; nothing was changed, try again.
    Store,
    /// A named object is not there.
    NotFound,
    /// Another writer committed this version first, or fenced this writer.
    Conflict,
    /// Bytes that are not what the manifest, or the protocol, says.
    Untrusted,
    /// A record that needs a newer deltawire.
    Unsupported,
    /// A record larger than this reader accepts.
    Limit,
    /// Manifests that do not link up.
    BrokenChain,
    /// A version that does not follow or does not exist.
    WrongVersion,
    /// A key file that cannot be used, or must not be replaced.
    KeyFile,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Store,
        Self::NotFound,
        Self::Conflict,
        Self::Untrusted,
        Self::Unsupported,
        Self::Limit,
        Self::BrokenChain,
        Self::WrongVersion,
        Self::KeyFile,
    ];

    /// The stable name, equal to the `kind` of the Python class.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Store | Self::NotFound => "store",
            Self::Conflict => "conflict",
            Self::Untrusted => "untrusted",
            Self::Unsupported => "unsupported",
            Self::Limit => "limit",
            Self::BrokenChain => "broken-chain",
            Self::WrongVersion => "wrong-version",
            Self::KeyFile => "key-file",
        }
    }
}

/// A failure, with the place where it is known.
#[derive(Debug, thiserror::Error)]
#[error("{}{message}", self.place())]
pub struct Error {
    /// What a handler would do.
    pub kind: ErrorKind,
    /// What happened and what to do next.
    pub message: String,
    /// The object or board, where known.
    pub path: Option<String>,
    /// The version concerned, where known.
    pub version: Option<u64>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            path: None,
            version: None,
        }
    }

    pub(crate) fn at(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    pub(crate) fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    fn place(&self) -> String {
        match (&self.path, self.version) {
            (Some(path), Some(version)) => format!("{path}, version {version}: "),
            (Some(path), None) => format!("{path}: "),
            (None, Some(version)) => format!("version {version}: "),
            (None, None) => String::new(),
        }
    }
}

/// Names the innermost cause: `object_store` wraps the reason (a full disk, say) several deep.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}

/// Longest text of a remote error that is passed on.
const MAX_TEXT: usize = 400;

/// The cause of a store's error in one line: of a server's XML only code and message, of a URL no query,
/// which may hold a signature.
pub(crate) fn explain(error: &object_store::Error) -> String {
    let text = root_cause(error);
    let tag = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0.trim().to_owned())
    };
    let status = text.split_once("status code: ").map(|(_, rest)| {
        rest.split([':', '\n'])
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned()
    });
    let short = match (status, tag("Code"), tag("Message")) {
        (Some(status), Some(code), message) => {
            format!("{status}, {code}: {}", message.unwrap_or_default())
        }
        (Some(status), None, _) => status,
        _ => text,
    };
    let words = short
        .split_whitespace()
        .map(|word| match word.split_once('?') {
            Some((url, _)) if word.contains("://") => format!("{url}?..."),
            _ => word.to_owned(),
        });
    let line = words.collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MAX_TEXT {
        return line;
    }
    line.chars().take(MAX_TEXT).chain("...".chars()).collect()
}

pub(crate) fn store_error(error: &object_store::Error, path: &str) -> Error {
    let (kind, message) = match error {
        object_store::Error::NotFound { .. } => (
            ErrorKind::NotFound,
            "no such object; it was never committed, or it was collected".to_owned(),
        ),
        object_store::Error::PermissionDenied { .. } => (
            ErrorKind::Store,
            format!(
                "permission denied: {}; check what the credentials may do. S3 also says so of a \
                 missing object where they may not list the bucket",
                explain(error)
            ),
        ),
        object_store::Error::Unauthenticated { .. } => (
            ErrorKind::Store,
            format!("not authenticated: {}; give credentials", explain(error)),
        ),
        _ => (ErrorKind::Store, explain(error)),
    };
    Error::new(kind, message).at(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_quoted_in_one_line_without_signatures() {
        let error = |source: &str| object_store::Error::Generic {
            store: "S3",
            source: source.to_owned().into(),
        };
        let xml = "Server returned non-2xx status code: 403 Forbidden: <Error><Code>Sig</Code>\n\
                   <Message>does not\nmatch</Message><StringToSign>hidden</StringToSign></Error>";
        assert_eq!(explain(&error(xml)), "403 Forbidden, Sig: does not match");
        let url = "Error performing GET https://h/x?X-Amz-Signature=hidden in 3s";
        assert!(!explain(&error(url)).contains("hidden"));
        assert!(explain(&error(&"long ".repeat(1000))).len() < 500);
        // The text of a local error stays.
        assert!(explain(&error("No space left on device")).contains("No space left"));
    }
}
