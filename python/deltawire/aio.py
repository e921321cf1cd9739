"""Boards for asyncio: the names and meanings of :class:`deltawire.Board`, awaited.

    async with aio.AsyncBoard("board") as board, board.follower(weights) as follower:
        async for version in board.versions():
            await follower.advance()

The work is that of the plain classes, in a thread for each object, where the native calls let the
event loop go on. Of one object one operation runs at a time, in the order of the calls, whatever
loop they come from; different objects work side by side.

A cancelled call raises ``CancelledError`` only once its thread has let go of everything: nothing is
read or written afterwards. Calls that have not begun never do; fetching and encoding end at the
next piece; what has begun to be written is finished. So a target holds either the version from
before or the new one, and ``AsyncFollower.version`` says which.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO, Generic, Self, TypeVar

from .board import (
    AdvanceStats,
    Board,
    CollectStats,
    Follower,
    Lease,
    Manifest,
    PendingVersion,
    PublicKey,
    Publisher,
    PublishStats,
    PublishTicket,
    PullStats,
    SigningKey,
    SkipStats,
    UploadedPart,
)
from .board.transfer import Progress
from .sources import PathLike, Sink
from .types import DeltaStats

__all__ = ["AsyncBoard", "AsyncFollower", "AsyncPending", "AsyncPublisher", "Versions"]

_T = TypeVar("_T")
_Object = TypeVar("_Object")


class _Stop:
    """Tells a thread that nobody wants its work any more."""

    class Cancelled(Exception):
        """Ends the work; never leaves this module."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self, *_: object) -> None:
        if self._event.is_set():
            raise self.Cancelled

    def progress(self, then: Progress | None) -> Progress:
        """A progress callback that also ends the work."""

        def call(count: int) -> None:
            self.check()
            if then is not None:
                then(count)

        return call


class _Worker(Generic[_Object]):
    """An object made and used in a thread of its own, one call after the other."""

    def __init__(self, name: str, make: Callable[[], _Object]) -> None:
        self._make = make
        self._made: _Object | None = None
        self._closed = False
        # Starts its thread with the first call.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"deltawire-{name}")

    @property
    def made(self) -> _Object | None:
        """The object, once it is made; to read plain attributes only."""
        return self._made

    def get(self) -> _Object:
        """The object; only in its thread."""
        if self._made is None:
            self._made = self._make()
        return self._made

    async def run(self, work: Callable[[_Object, _Stop], _T]) -> _T:
        """Do ``work`` after what was asked before."""
        if self._closed:
            raise RuntimeError("this object is closed; make another")
        stop = _Stop()

        def call() -> _T:
            stop.check()
            return work(self.get(), stop)

        job = self._executor.submit(call)
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            stop.set()
            job.cancel()
            while not done.done():
                # Further cancellations change nothing: the thread is on its way out.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([done])
            if not done.cancelled():
                # Looked at, so that nobody is warned of it; the cancellation is what is told.
                done.exception()
            raise

    async def close(self, work: Callable[[_Object], object]) -> None:
        """Do ``work``, if there is an object, after what was asked before, and end the thread."""
        if self._closed:
            return

        def finish(_: object) -> None:
            if self._made is not None:
                work(self._made)

        self._closed = True
        job = self._executor.submit(finish, None)
        self._executor.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(job))


class _Opened:
    """Opened by ``await`` or ``async with``, or by its first call."""

    async def open(self) -> Self:
        """Open it, and raise what there is to raise."""
        raise NotImplementedError

    async def close(self) -> None:
        """End its thread, after the calls before; further calls fail."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncBoard(_Opened):
    """As :class:`deltawire.Board`. Nothing is done before it is awaited, entered or used.

    Args:
        url, settings: as for ``Board``.
    """

    def __init__(self, url: Any, **settings: Any) -> None:
        self._url, self._settings = url, settings
        self._worker = _Worker("board", self._open)

    def _open(self) -> Board:
        """A board for one thread."""
        return Board(self._url, **self._settings)

    async def open(self) -> Self:
        """Open the board.

        Raises:
            StoreError: as ``Board``.
        """
        await self._worker.run(lambda board, stop: None)
        return self

    async def close(self) -> None:
        """End the board's thread; followers and publishers have their own."""
        await self._worker.close(lambda board: None)

    @property
    def url(self) -> str:
        """As ``Board.url``."""
        return str(os.fspath(self._url))

    async def boundary(self) -> int | None:
        """As ``Board.boundary``."""
        return await self._worker.run(lambda board, stop: board.boundary())

    async def anchor_versions(self) -> list[int]:
        """As ``Board.anchor_versions``."""
        return await self._worker.run(lambda board, stop: board.anchor_versions())

    async def readers(self) -> list[Lease]:
        """As ``Board.readers``."""
        return await self._worker.run(lambda board, stop: board.readers())

    async def collect(self, **settings: Any) -> CollectStats:
        """As ``Board.collect``; once begun, it is finished."""
        return await self._worker.run(lambda board, stop: board.collect(**settings))

    async def compose(
        self,
        base: int,
        version: int,
        sink: PathLike | Sink,
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> DeltaStats:
        """As ``Board.compose``; ``sink`` is written by another thread."""
        return await self._worker.run(
            lambda board, stop: board.compose(
                base, version, sink, progress=stop.progress(progress), **settings
            )
        )

    async def add_skip(
        self, base: int, version: int, *, progress: Progress | None = None, **settings: Any
    ) -> SkipStats:
        """As ``Board.add_skip``."""
        return await self._worker.run(
            lambda board, stop: board.add_skip(
                base, version, progress=stop.progress(progress), **settings
            )
        )

    async def fetch(self, version: int, file: BinaryIO) -> int:
        """As ``Board.fetch``; ``file`` is written by another thread."""
        return await self._worker.run(lambda board, stop: board.fetch(version, file))

    async def check_delta(self, path: str | os.PathLike[str], version: int) -> Manifest:
        """As ``Board.check_delta``."""
        return await self._worker.run(lambda board, stop: board.check_delta(path, version))

    async def upload_part(
        self, ticket: PublishTicket, rank: int, *, progress: Progress | None = None, **settings: Any
    ) -> UploadedPart:
        """As ``Board.upload_part``; cancelled, it leaves no part. Other calls wait for it."""

        def work(board: Board, stop: _Stop) -> UploadedPart:
            return board.upload_part(ticket, rank, progress=stop.progress(progress), **settings)

        return await self._worker.run(work)

    async def introduce_key(
        self, new: PublicKey, *, by: SigningKey, first: int | None = None
    ) -> int:
        """As ``Board.introduce_key``."""
        return await self._worker.run(
            lambda board, stop: board.introduce_key(new, by=by, first=first)
        )

    async def head(self) -> int | None:
        """As ``Board.head``."""
        return await self._worker.run(lambda board, stop: board.head())

    async def manifest(self, version: int) -> Manifest:
        """As ``Board.manifest``."""
        return await self._worker.run(lambda board, stop: board.manifest(version))

    async def find_manifest(self, version: int) -> Manifest | None:
        """As ``Board.find_manifest``."""
        return await self._worker.run(lambda board, stop: board.find_manifest(version))

    async def log(self, limit: int | None = None) -> list[Manifest]:
        """As ``Board.log``."""
        return await self._worker.run(lambda board, stop: board.log(limit))

    async def pull(
        self, directory: Any, *, progress: Progress | None = None, **settings: Any
    ) -> PullStats:
        """As ``Board.pull``; other calls of this board wait for it.

        A cancelled pull leaves no new directory, and one from before at its version, or pending,
        as a crash would: the same call repairs it.
        """

        def work(board: Board, stop: _Stop) -> PullStats:
            return board.pull(directory, progress=stop.progress(progress), **settings)

        return await self._worker.run(work)

    async def wait(self, version: int, *, timeout: float | None = None, poll: float = 0.2) -> bool:
        """As ``Board.wait``; sleeps in the event loop."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            head = await self.head()
            if head is not None and head >= version:
                return True
            remaining = poll if deadline is None else min(poll, deadline - loop.time())
            if remaining <= 0:
                return False
            await asyncio.sleep(remaining)

    def versions(self, *, after: int | None = None, poll: float = 0.2) -> Versions:
        """The newest version, whenever there is a newer one; see :class:`Versions`.

        Args:
            after: only versions above; None: the present head is the first.
            poll: seconds between two looks, each two small requests.
        """
        return Versions(self, after, poll)

    def publisher(self, **settings: Any) -> AsyncPublisher:
        """As ``Board.publisher``; opened, and so fencing others, when it is entered or awaited."""
        return AsyncPublisher(lambda: self._open().publisher(**settings))

    def follower(self, target: Mapping[str, Any], **settings: Any) -> AsyncFollower:
        """As ``Board.follower``; nothing else may write to ``target`` while a call is awaited."""
        return AsyncFollower(target, lambda: self._open().follower(target, **settings))


class Versions(AsyncIterator[int]):
    """Newest versions of a board, ascending; those that came and were passed meanwhile are skipped.

    Never ends. A cancelled wait loses nothing: the next one goes on where the last version was
    given. Errors of the store are raised, and the next wait tries again.
    """

    def __init__(self, board: AsyncBoard, after: int | None, poll: float) -> None:
        """Use :meth:`AsyncBoard.versions`."""
        self._board, self._last, self._poll = board, after, poll

    @property
    def last(self) -> int | None:
        """The version that was given last, or ``after``."""
        return self._last

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        while True:
            head = await self._board.head()
            if head is not None and (self._last is None or head > self._last):
                self._last = head
                return head
            await asyncio.sleep(self._poll)


class AsyncPublisher(_Opened):
    """As :class:`deltawire.Publisher`."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        """Use :meth:`AsyncBoard.publisher`."""
        self._worker = _Worker("publisher", make)

    async def open(self) -> Self:
        """Take the next epoch."""
        await self._worker.run(lambda publisher, stop: None)
        return self

    async def close(self) -> None:
        """As ``Publisher.close``."""
        await self._worker.close(lambda publisher: publisher.close())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # It cancels its anchor if there is an error.
        await self._worker.close(lambda publisher: publisher.__exit__(kind, error, traceback))

    @property
    def epoch(self) -> int | None:
        """As ``Publisher.epoch``; None before it is opened."""
        return None if self._worker.made is None else self._worker.made.epoch

    async def publish(
        self, version: int | None = None, *, progress: Progress | None = None, **settings: Any
    ) -> PublishStats:
        """As ``Publisher.publish``.

        If it is cancelled before the commit begins, nothing was published; after that it was, and
        the board's head tells.
        """

        def work(publisher: Publisher, stop: _Stop) -> PublishStats:
            return publisher.publish(version, progress=stop.progress(progress), **settings)

        return await self._worker.run(work)

    async def begin(self, version: int | None = None, **settings: Any) -> AsyncPending:
        """As ``Publisher.begin``. What is not committed goes when the publisher is closed."""
        pending = await self._worker.run(lambda p, stop: p.begin(version, **settings))
        return AsyncPending(self._worker, pending)

    async def publish_anchor(
        self,
        version: int | None,
        checkpoint: Any,
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> PublishStats:
        """As ``Publisher.publish_anchor``; cancelled as :meth:`publish`."""

        def work(publisher: Publisher, stop: _Stop) -> PublishStats:
            return publisher.publish_anchor(
                version, checkpoint, progress=stop.progress(progress), **settings
            )

        return await self._worker.run(work)


class AsyncPending:
    """As :class:`deltawire.PendingVersion`."""

    def __init__(self, worker: _Worker[Publisher], pending: PendingVersion) -> None:
        """Use :meth:`AsyncPublisher.begin`."""
        self._worker, self._pending = worker, pending

    @property
    def ticket(self) -> PublishTicket:
        """As ``PendingVersion.ticket``."""
        return self._pending.ticket

    @property
    def version(self) -> int:
        """As ``PendingVersion.version``."""
        return self._pending.version

    @property
    def open(self) -> bool:
        """As ``PendingVersion.open``."""
        return self._pending.open

    async def commit(self, parts: Iterable[UploadedPart]) -> PublishStats:
        """As ``PendingVersion.commit``; once begun, it is finished."""
        return await self._worker.run(lambda publisher, stop: self._pending.commit(parts))

    async def abandon(self) -> None:
        """As ``PendingVersion.abandon``."""
        await self._worker.run(lambda publisher, stop: self._pending.abandon())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pending.open:
            await self.abandon()


class AsyncFollower(_Opened):
    """As :class:`deltawire.Follower`."""

    def __init__(self, target: Mapping[str, Any], make: Callable[[], Follower]) -> None:
        """Use :meth:`AsyncBoard.follower`."""
        self._target = target
        self._worker = _Worker("follower", make)

    async def open(self) -> Self:
        """Look at the version that the target is said to hold."""
        await self._worker.run(lambda follower, stop: None)
        return self

    async def close(self) -> None:
        """As ``Follower.close``."""
        await self._worker.close(lambda follower: follower.close())

    async def renew(self) -> None:
        """As ``Follower.renew``."""
        await self._worker.run(lambda follower, stop: follower.renew())

    @property
    def version(self) -> int | None:
        """As ``Follower.version``; None before it is opened."""
        return None if self._worker.made is None else self._worker.made.version

    @property
    def state(self) -> bytes | None:
        """As ``Follower.state``."""
        return None if self._worker.made is None else self._worker.made.state

    @property
    def seen(self) -> int | None:
        """As ``Follower.seen``."""
        return None if self._worker.made is None else self._worker.made.seen

    @property
    def target(self) -> Mapping[str, Any]:
        """The tensors that are changed."""
        return self._target

    async def advance(self, to: int | None = None) -> list[AdvanceStats]:
        """As ``Follower.advance``. Cancelled, it leaves the target as it was or as it was to be."""

        def work(follower: Follower, stop: _Stop) -> list[AdvanceStats]:
            _stage(follower, to, stop)
            return follower.commit()

        return await self._worker.run(work)

    async def stage(self, to: int | None = None) -> list[int]:
        """As ``Follower.stage``; cancelled, nothing is staged."""
        return await self._worker.run(lambda follower, stop: _stage(follower, to, stop))

    async def commit(self) -> list[AdvanceStats]:
        """As ``Follower.commit``; once begun, it is finished."""
        return await self._worker.run(lambda follower, stop: follower.commit())

    async def discard(self) -> None:
        """As ``Follower.discard``."""
        await self._worker.run(lambda follower, stop: follower.discard())

    async def prove(self) -> bytes:
        """As ``Follower.prove``."""
        return await self._worker.run(lambda follower, stop: follower.prove())


def _stage(follower: Follower, to: int | None, stop: _Stop) -> list[int]:
    """Stage unless, or until, nobody wants it any more."""
    try:
        staged = follower.stage(to, progress=stop.check)
        stop.check()
    except _Stop.Cancelled:
        follower.discard()
        raise
    return staged
