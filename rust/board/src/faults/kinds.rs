//! What is asked of a store, and what is done to it.

/// What is asked of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Writing an object that must not exist.
    Create,
    /// Writing an object in the place of any other.
    Overwrite,
    /// Beginning an upload in parts.
    Begin,
    /// One part.
    Part,
    /// Making the parts an object.
    Complete,
    /// Dropping them.
    Abort,
    /// Reading an object or a range.
    Get,
    /// Whether an object is there.
    Head,
    /// Listing.
    List,
    /// Removing an object.
    Delete,
}

/// What is done to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// It fails, and nothing was done.
    Error,
    /// As [`Fault::Error`], after a wait.
    Timeout,
    /// It is done, and fails nevertheless.
    LostReply,
    /// It fails now, and is done some operations later, if it can be done then.
    Late,
    /// Some of the bytes get the name, and it fails. No store may do that to a record.
    Torn,
    /// The answer breaks off after some bytes, with an error.
    Cut,
    /// The answer ends after some bytes as if that were all.
    Short,
    /// A listing leaves out what was written in the last operations.
    StaleList,
    /// It is done after a wait. Further rules may add to it.
    Delay,
    /// The process is cut off: this and everything after fails, and nothing of it is done.
    Crash,
    /// As [`Fault::Crash`], but this one is done.
    CrashAfter,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::Create,
        Self::Overwrite,
        Self::Begin,
        Self::Part,
        Self::Complete,
        Self::Abort,
        Self::Get,
        Self::Head,
        Self::List,
        Self::Delete,
    ];

    /// Its name in Python.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Overwrite => "overwrite",
            Self::Begin => "begin",
            Self::Part => "part",
            Self::Complete => "complete",
            Self::Abort => "abort",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }

    /// The operation of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.as_str() == name)
    }

    fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::Head | Self::List)
    }
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 11] = [
        Self::Error,
        Self::Timeout,
        Self::LostReply,
        Self::Late,
        Self::Torn,
        Self::Cut,
        Self::Short,
        Self::StaleList,
        Self::Delay,
        Self::Crash,
        Self::CrashAfter,
    ];

    /// Its name in Python.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::LostReply => "lost-reply",
            Self::Late => "late",
            Self::Torn => "torn",
            Self::Cut => "cut",
            Self::Short => "short",
            Self::StaleList => "stale-list",
            Self::Delay => "delay",
            Self::Crash => "crash",
            Self::CrashAfter => "crash-after",
        }
    }

    /// The fault of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.as_str() == name)
    }

    /// Whether it can be done to an operation.
    #[must_use]
    pub fn fits(self, operation: Operation) -> bool {
        use Operation::{Complete, Create, Delete, Get, List, Overwrite};
        match self {
            Self::Error | Self::Timeout | Self::Delay | Self::Crash | Self::CrashAfter => true,
            Self::LostReply => operation.writes(),
            Self::Late => matches!(operation, Create | Overwrite | Complete | Delete),
            Self::Torn => matches!(operation, Create | Overwrite | Complete),
            Self::Cut | Self::Short => operation == Get,
            Self::StaleList => operation == List,
        }
    }
}
