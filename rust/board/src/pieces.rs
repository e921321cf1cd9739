//! One object of a remote store in pieces: several requests on their way, delivered in order, each resumed
//! where it broke.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt};
use tokio::task::JoinHandle;

use crate::error::{store_error, Error, ErrorKind, Result};
use crate::options::StoreOptions;
use crate::runtime::runtime;

/// How often a broken body is resumed without a byte of progress, and after which waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    retries: u32,
    wait: Duration,
    wait_most: Duration,
}

impl Patience {
    pub(crate) fn new(options: &StoreOptions) -> Self {
        Self {
            retries: options.retries,
            wait: options.retry_wait,
            wait_most: options.retry_wait_most,
        }
    }

    async fn pause(&self, failures: u32) {
        let doubled = self.wait.saturating_mul(1 << (failures.clamp(1, 16) - 1));
        tokio::time::sleep(doubled.min(self.wait_most)).await;
    }
}

/// Counts failures in a row.
#[derive(Debug, Default)]
struct Failures(u32);

impl Failures {
    /// Whether to go on after one more, having waited.
    ///
    /// `again`: the layer below has not tried again itself, as it does where the store gives an entity
    /// tag.
    async fn go_on(&mut self, patience: &Patience, progressed: bool, again: bool) -> bool {
        self.0 = if progressed { 1 } else { self.0 + 1 };
        let go_on = self.0 <= patience.retries && (progressed || again);
        if go_on {
            patience.pause(self.0).await;
        }
        go_on
    }
}

/// An object to be read.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) location: Path,
    /// For messages.
    pub(crate) path: String,
    /// Its length, where that is known.
    pub(crate) length: Option<u64>,
    pub(crate) patience: Patience,
}

/// Why a range was not read.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server answers whole objects only.
    NoRanges,
    /// Anything else; it was tried again as far as that makes sense.
    Failed(Error),
}

impl Trouble {
    /// As an error of the object `path`.
    pub(crate) fn into_error(self, path: &str) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::NoRanges => Error::new(
                ErrorKind::Store,
                "this server does not answer requests for byte ranges, which are needed here; use \
                 one that does",
            )
            .at(path),
        }
    }
}

enum Stop {
    Broken { error: Error, again: bool },
    Final(Trouble),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Final(Trouble::Failed(error))
    }
}

impl Source {
    /// The bytes `range`, which is not empty.
    pub(crate) async fn fetch(&self, range: Range<u64>) -> Result<Vec<u8>, Trouble> {
        let mut got = Vec::new();
        let mut failures = Failures::default();
        loop {
            let before = got.len();
            match self.attempt(&range, &mut got).await {
                Ok(()) => return Ok(got),
                Err(Stop::Final(trouble)) => return Err(trouble),
                Err(Stop::Broken { error, again }) => {
                    let progressed = got.len() > before;
                    if !failures.go_on(&self.patience, progressed, again).await {
                        return Err(Trouble::Failed(error));
                    }
                }
            }
        }
    }

    /// Appends what is missing of `range` to `got`.
    async fn attempt(&self, range: &Range<u64>, got: &mut Vec<u8>) -> Result<(), Stop> {
        let wanted = range.start + got.len() as u64..range.end;
        if wanted.is_empty() {
            return Ok(());
        }
        let whole = wanted.start == 0 && Some(wanted.end) == self.length;
        let options = GetOptions {
            range: (!whole).then(|| wanted.clone().into()),
            ..GetOptions::default()
        };
        let found = match self.store.get_opts(&self.location, options).await {
            Ok(found) => found,
            Err(object_store::Error::NotSupported { .. }) => {
                return Err(Stop::Final(Trouble::NoRanges))
            }
            Err(error) => return Err(self.refused(&error).into()),
        };
        self.check_length(found.meta.size)?;
        // The claimed length is checked against the real one before anything is allocated.
        if found.range != wanted {
            return Err(self
                .untrusted(format!(
                    "wanted the {} bytes at {}, but the object has {} in all",
                    range.end - range.start,
                    range.start,
                    found.meta.size
                ))
                .into());
        }
        let all = usize::try_from(range.end - range.start)
            .map_err(|_| self.untrusted("a range larger than memory".to_owned()))?;
        got.reserve_exact(all - got.len());
        let again = found.meta.e_tag.is_none();
        let mut stream = found.into_stream();
        while let Some(block) = stream.next().await {
            let block = block.map_err(|error| Stop::Broken {
                error: store_error(&error, &self.path),
                again,
            })?;
            if block.len() > all - got.len() {
                let message = "more bytes arrived than were asked for".to_owned();
                return Err(self.untrusted(message).into());
            }
            got.extend_from_slice(&block);
        }
        if got.len() == all {
            return Ok(());
        }
        Err(Stop::Broken {
            error: self.cut_short(range.start + got.len() as u64),
            again: true,
        })
    }

    fn check_length(&self, found: u64) -> Result<()> {
        match self.length {
            Some(length) if length != found => Err(wrong_length(&self.path, found, length)),
            _ => Ok(()),
        }
    }

    fn refused(&self, error: &object_store::Error) -> Error {
        let error = store_error(error, &self.path);
        if error.kind == ErrorKind::Store && error.message.contains("416 Range Not Satisfiable") {
            return self.untrusted("the object ends before the range that was wanted".to_owned());
        }
        error
    }

    fn untrusted(&self, message: String) -> Error {
        Error::new(ErrorKind::Untrusted, message).at(&self.path)
    }

    fn cut_short(&self, after: u64) -> Error {
        Error::new(
            ErrorKind::Store,
            format!("the connection ended after byte {after}; try again"),
        )
        .at(&self.path)
    }
}

/// The error for an object with another length than its manifest's.
pub(crate) fn wrong_length(path: &str, found: u64, expected: u64) -> Error {
    Error::new(
        ErrorKind::Untrusted,
        format!(
            "{found} bytes, but its manifest says {expected}; fetch it again, or tell the publisher \
             that the object was altered"
        ),
    )
    .at(path)
}

/// A request that ends with its owner.
struct Task(JoinHandle<Result<Vec<u8>, Trouble>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The rest of an object, front to back.
pub(crate) struct Pieces {
    source: Source,
    piece: u64,
    parallel: usize,
    next: u64,
    end: u64,
    queue: VecDeque<(u64, Task)>,
    whole: Option<Whole>,
}

impl Pieces {
    /// From byte `start` on; nothing is asked before the first [`Pieces::next`].
    pub(crate) fn new(source: Source, length: u64, start: u64, options: &StoreOptions) -> Self {
        Self {
            source,
            piece: options.part_bytes,
            parallel: options.parallel,
            next: start,
            end: length,
            queue: VecDeque::new(),
            whole: None,
        }
    }

    /// The next bytes, or `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>> {
        let runtime = runtime()?;
        if let Some(whole) = &mut self.whole {
            return runtime.block_on(whole.next(&self.source));
        }
        self.fill(runtime.handle());
        let Some((start, mut task)) = self.queue.pop_front() else {
            return Ok(None);
        };
        let done = runtime.block_on(&mut task.0).map_err(|error| {
            Error::new(ErrorKind::Store, error.to_string()).at(&self.source.path)
        })?;
        match done {
            Ok(bytes) => {
                self.fill(runtime.handle());
                Ok(Some(Bytes::from(bytes)))
            }
            Err(Trouble::NoRanges) => {
                self.queue.clear();
                let mut whole = Whole::new(start, self.end);
                let first = runtime.block_on(whole.next(&self.source));
                self.whole = Some(whole);
                first
            }
            Err(trouble) => {
                self.queue.clear();
                self.next = self.end;
                Err(trouble.into_error(&self.source.path))
            }
        }
    }

    fn fill(&mut self, runtime: &tokio::runtime::Handle) {
        while self.queue.len() < self.parallel && self.next < self.end {
            let start = self.next;
            self.next = start.saturating_add(self.piece).min(self.end);
            let (source, range) = (self.source.clone(), start..self.next);
            let task = runtime.spawn(async move { source.fetch(range).await });
            self.queue.push_back((start, Task(task)));
        }
    }
}

/// An object from a server without ranges: one request, and from the start again when it breaks.
struct Whole {
    /// Bytes delivered.
    at: u64,
    end: u64,
    /// Bytes that the stream has given.
    received: u64,
    stream: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    failures: Failures,
}

impl Whole {
    fn new(at: u64, end: u64) -> Self {
        Self {
            at,
            end,
            received: 0,
            stream: None,
            failures: Failures::default(),
        }
    }

    async fn next(&mut self, source: &Source) -> Result<Option<Bytes>> {
        let mut progressed = false;
        while self.at < self.end {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => {
                    let found = source.store.get(&source.location).await;
                    let found = found.map_err(|error| store_error(&error, &source.path))?;
                    source.check_length(found.meta.size)?;
                    self.received = 0;
                    found.into_stream()
                }
            };
            let error = match stream.next().await {
                Some(Ok(mut block)) => {
                    self.stream = Some(stream);
                    let from = self.received;
                    self.received += block.len() as u64;
                    if self.received <= self.at {
                        continue;
                    }
                    // Lossless: shorter than the block.
                    let block = block.split_off((self.at - from.min(self.at)) as usize);
                    self.at = self.received;
                    self.failures = Failures::default();
                    return Ok(Some(block));
                }
                Some(Err(error)) => store_error(&error, &source.path),
                None => source.cut_short(self.received),
            };
            progressed |= self.received > self.at;
            if !self
                .failures
                .go_on(&source.patience, progressed, true)
                .await
            {
                return Err(error);
            }
        }
        Ok(None)
    }
}
