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

pub(crate) fn store_error(error: &object_store::Error, path: &str) -> Error {
    let kind = match error {
        object_store::Error::NotFound { .. } => ErrorKind::NotFound,
        _ => ErrorKind::Store,
    };
    let message = if kind == ErrorKind::NotFound {
        "no such object; it was never committed, or it was collected".to_owned()
    } else {
        root_cause(error)
    };
    Error::new(kind, message).at(path)
}
