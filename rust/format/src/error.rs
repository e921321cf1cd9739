//! What can go wrong, with the place.

use std::fmt;
use std::sync::Arc;

/// What a handler would do about an error. The names are those of the Python classes' `kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Not a delta, cut short, or a failed check.
    Corrupt,
    /// A delta that needs a newer reader.
    Unsupported,
    /// More than the reader's limits allow.
    Limit,
    /// The target does not hold the bits that the delta starts from.
    WrongBase,
    /// Names, shapes or dtypes that disagree.
    Layout,
    /// Reading or writing failed.
    Store,
    /// A commit that had begun failed.
    Torn,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Corrupt,
        Self::Unsupported,
        Self::Limit,
        Self::WrongBase,
        Self::Layout,
        Self::Store,
        Self::Torn,
    ];

    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Corrupt => "corrupt",
            Self::Unsupported => "unsupported",
            Self::Limit => "limit",
            Self::WrongBase => "wrong-base",
            Self::Layout => "layout",
            Self::Store => "store",
            Self::Torn => "torn",
        }
    }
}

/// An error with what is known of its place.
#[derive(Clone, Debug)]
pub struct Error {
    /// What a handler would do.
    pub kind: Kind,
    /// What is wrong and what to do next.
    pub message: String,
    /// Bytes from the start of the stream.
    pub offset: Option<u64>,
    /// Name of the tensor.
    pub tensor: Option<String>,
    /// The failure underneath, for `Kind::Store` and `Kind::Torn`.
    pub source: Option<Arc<std::io::Error>>,
}

/// Result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a place.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            offset: None,
            tensor: None,
            source: None,
        }
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self::new(Kind::Limit, message)
    }

    /// With an offset, unless it has one.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset.get_or_insert(offset);
        self
    }

    /// With a tensor name, unless it has one.
    #[must_use]
    pub fn of(mut self, tensor: &str) -> Self {
        self.tensor.get_or_insert_with(|| tensor.to_owned());
        self
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        let mut this = Self::new(Kind::Store, error.to_string());
        this.source = Some(Arc::new(error));
        this
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor {tensor:?}: ")?;
        }
        if let Some(offset) = self.offset {
            write!(f, "byte {offset}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
