//! The store between the protocol and the real one.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, UploadPart,
};

use super::kinds::{Fault, Operation};
use super::plan::{FaultPlan, Rule};

/// A store that asks a plan before each operation.
#[derive(Debug, Clone)]
pub(crate) struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    plan: Arc<FaultPlan>,
}

/// A write whose sender has given up on it.
#[derive(Debug)]
pub(super) enum LateWrite {
    Put {
        store: Arc<dyn ObjectStore>,
        location: Path,
        payload: PutPayload,
        options: PutOptions,
    },
    Complete {
        upload: Box<dyn MultipartUpload>,
        location: Path,
    },
    Delete {
        store: Arc<dyn ObjectStore>,
        location: Path,
    },
}

impl LateWrite {
    /// Does it. Nobody waits for the answer.
    pub(super) async fn land(self, plan: &FaultPlan) {
        let (location, done) = match self {
            Self::Put {
                store,
                location,
                payload,
                options,
            } => {
                let done = store.put_opts(&location, payload, options).await;
                (location, done.is_ok())
            }
            Self::Complete {
                mut upload,
                location,
            } => (location, upload.complete().await.is_ok()),
            Self::Delete { store, location } => {
                drop(store.delete(&location).await);
                (location, false)
            }
        };
        if done {
            plan.wrote(location.as_ref());
        }
    }
}

fn failure(what: &str) -> Error {
    Error::Generic {
        store: "faults",
        source: format!("injected fault: {what}").into(),
    }
}

fn lost() -> Error {
    failure("the connection was lost before the answer came")
}

fn crashed() -> Error {
    failure("this process has crashed")
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, plan: Arc<FaultPlan>) -> Self {
        Self { inner, plan }
    }

    /// Waits as told, and fails where nothing is to be done. The rule is for the caller.
    async fn pass(&self, operation: Operation, path: &Path, place: u64) -> Result<Option<Rule>> {
        let verdict = self.plan.judge(operation, path.as_ref(), place);
        for write in verdict.due {
            write.land(&self.plan).await;
        }
        if !verdict.wait.is_zero() {
            tokio::time::sleep(verdict.wait).await;
        }
        match verdict.rule.as_ref().map(|rule| rule.fault) {
            Some(Fault::Error) => Err(failure("the request failed, and nothing was done")),
            Some(Fault::Timeout) => Err(failure("the request timed out")),
            Some(Fault::Crash) => Err(crashed()),
            _ => Ok(verdict.rule),
        }
    }

    /// Withholds the answer to what was done, good or bad, where that is the fault.
    fn answer<T>(&self, rule: Option<&Rule>, answer: Result<T>) -> Result<T> {
        match rule.map(|rule| rule.fault) {
            Some(Fault::LostReply) => Err(lost()),
            Some(Fault::CrashAfter) => {
                self.plan.crash();
                Err(crashed())
            }
            _ => answer,
        }
    }

    fn listed(&self, rule: Option<&Rule>) -> Option<std::collections::HashSet<String>> {
        let rule = rule.filter(|rule| rule.fault == Fault::StaleList)?;
        Some(self.plan.recent(rule.operations))
    }

    async fn delete_one(&self, location: Path) -> Result<Path> {
        let rule = self.pass(Operation::Delete, &location, 0).await?;
        if let Some(late) = rule.as_ref().filter(|rule| rule.fault == Fault::Late) {
            let store = Arc::clone(&self.inner);
            let write = LateWrite::Delete { store, location };
            self.plan.later(late.operations, write);
            return Err(lost());
        }
        let done = self.inner.delete(&location).await;
        self.answer(rule.as_ref(), done.map(|()| location))
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faults before {}", self.inner)
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let operation = match options.mode {
            PutMode::Create => Operation::Create,
            _ => Operation::Overwrite,
        };
        let rule = self.pass(operation, location, 0).await?;
        match rule.as_ref().map(|rule| (rule.fault, rule)) {
            Some((Fault::Late, rule)) => {
                let write = LateWrite::Put {
                    store: Arc::clone(&self.inner),
                    location: location.clone(),
                    payload,
                    options,
                };
                self.plan.later(rule.operations, write);
                Err(lost())
            }
            Some((Fault::Torn, rule)) => {
                let payload = beginning(&payload, rule.bytes);
                self.inner.put_opts(location, payload, options).await?;
                self.plan.wrote(location.as_ref());
                Err(failure("the object was cut short"))
            }
            _ => {
                let done = self.inner.put_opts(location, payload, options).await;
                if done.is_ok() {
                    self.plan.wrote(location.as_ref());
                }
                self.answer(rule.as_ref(), done)
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let rule = self.pass(Operation::Begin, location, 0).await?;
        let begun = self.inner.put_multipart_opts(location, options).await;
        let upload = FaultyUpload {
            store: self.clone(),
            location: location.clone(),
            inner: Some(self.answer(rule.as_ref(), begun)?),
            first: None,
            parts: 0,
        };
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = if options.head {
            Operation::Head
        } else {
            Operation::Get
        };
        let place = match &options.range {
            Some(GetRange::Bounded(range)) => range.start,
            Some(GetRange::Offset(start)) => *start,
            Some(GetRange::Suffix(_)) | None => 0,
        };
        let rule = self.pass(operation, location, place).await?;
        let found = self.inner.get_opts(location, options).await;
        match rule.as_ref().map(|rule| (rule.fault, rule.bytes)) {
            Some((Fault::Cut, bytes)) => Ok(cut(found?, bytes, true)),
            Some((Fault::Short, bytes)) => Ok(cut(found?, bytes, false)),
            _ => self.answer(rule.as_ref(), found),
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move { store.delete_one(location?).await }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let store = self.clone();
        let prefix = prefix.cloned();
        let begun = async move {
            let place = prefix.clone().unwrap_or_default();
            let rule = match store.pass(Operation::List, &place, 0).await {
                Ok(rule) => rule,
                Err(error) => return stream::once(async { Err(error) }).boxed(),
            };
            if let Err(error) = store.answer(rule.as_ref(), Ok(())) {
                return stream::once(async { Err(error) }).boxed();
            }
            let hidden = store.listed(rule.as_ref()).unwrap_or_default();
            store
                .inner
                .list(prefix.as_ref())
                .filter(move |meta| {
                    let hide = matches!(meta, Ok(meta) if hidden.contains(meta.location.as_ref()));
                    std::future::ready(!hide)
                })
                .boxed()
        };
        stream::once(begun).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let place = prefix.cloned().unwrap_or_default();
        let rule = self.pass(Operation::List, &place, 0).await?;
        let mut found = self.inner.list_with_delimiter(prefix).await;
        if let (Ok(found), Some(hidden)) = (&mut found, self.listed(rule.as_ref())) {
            found
                .objects
                .retain(|meta| !hidden.contains(meta.location.as_ref()));
        }
        self.answer(rule.as_ref(), found)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    store: FaultyStore,
    location: Path,
    /// Until it is left to arrive late.
    inner: Option<Box<dyn MultipartUpload>>,
    first: Option<PutPayload>,
    parts: u64,
}

#[async_trait::async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(inner) = self.inner.as_mut() else {
            return Box::pin(async { Err(lost()) });
        };
        self.first.get_or_insert_with(|| data.clone());
        let (store, location, place) = (self.store.clone(), self.location.clone(), self.parts);
        self.parts += 1;
        // Parts count in the order of these calls, whatever becomes of them.
        let part = inner.put_part(data);
        Box::pin(async move {
            let rule = store.pass(Operation::Part, &location, place).await?;
            let done = part.await;
            store.answer(rule.as_ref(), done)
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let store = &self.store;
        let rule = store.pass(Operation::Complete, &self.location, 0).await?;
        match rule.as_ref().map(|rule| (rule.fault, rule)) {
            Some((Fault::Late, rule)) => {
                if let Some(upload) = self.inner.take() {
                    let location = self.location.clone();
                    let write = LateWrite::Complete { upload, location };
                    store.plan.later(rule.operations, write);
                }
                Err(lost())
            }
            Some((Fault::Torn, rule)) => {
                if let Some(mut upload) = self.inner.take() {
                    drop(upload.abort().await);
                }
                let payload = beginning(&self.first.take().unwrap_or_default(), rule.bytes);
                store.inner.put(&self.location, payload).await?;
                store.plan.wrote(self.location.as_ref());
                Err(failure("the object was cut short"))
            }
            _ => {
                let inner = self.inner.as_mut().ok_or_else(lost)?;
                let done = inner.complete().await;
                if done.is_ok() {
                    store.plan.wrote(self.location.as_ref());
                }
                store.answer(rule.as_ref(), done)
            }
        }
    }

    async fn abort(&mut self) -> Result<()> {
        let rule = self.store.pass(Operation::Abort, &self.location, 0).await?;
        let done = match self.inner.as_mut() {
            Some(inner) => inner.abort().await,
            None => Ok(()),
        };
        self.store.answer(rule.as_ref(), done)
    }
}

/// The first bytes of a payload, at most all.
fn beginning(payload: &PutPayload, bytes: u64) -> PutPayload {
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut kept = Vec::new();
    for block in payload {
        let now = block.slice(..block.len().min(left));
        left -= now.len();
        kept.extend_from_slice(&now);
    }
    PutPayload::from(kept)
}

/// The answer up to some bytes, then an error or nothing.
fn cut(found: GetResult, bytes: u64, fails: bool) -> GetResult {
    let (meta, range) = (found.meta.clone(), found.range.clone());
    let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
    let left = usize::try_from(bytes).unwrap_or(usize::MAX);
    let body = found.into_stream();
    let body = stream::unfold(Some((body, left)), move |state| async move {
        let (mut body, left) = state?;
        if left == 0 {
            return fails.then(|| (Err(failure("the connection broke off")), None));
        }
        match body.next().await? {
            Ok(block) => {
                let now: Bytes = block.slice(..block.len().min(left));
                let left = left - now.len();
                Some((Ok(now), Some((body, left))))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    GetResult {
        payload: GetResultPayload::Stream(body.fuse().boxed()),
        meta,
        range,
        attributes,
        extensions,
    }
}
