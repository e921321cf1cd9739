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
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Self

from .aio_thread import Opened, Stop, Worker
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


class AsyncBoard(Opened):
    """As :class:`deltawire.Board`. Nothing is done before it is awaited, entered or used.

    Args:
        url, settings: as for ``Board``.
    """

    def __init__(self, url: Any, **settings: Any) -> None:
        self._url, self._settings = url, settings
        self._worker = Worker("board", self._open)

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

        def work(board: Board, stop: Stop) -> UploadedPart:
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

        def work(board: Board, stop: Stop) -> PullStats:
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


class AsyncPublisher(Opened):
    """As :class:`deltawire.Publisher`."""

    def __init__(self, make: Callable[[], Publisher]) -> None:
        """Use :meth:`AsyncBoard.publisher`."""
        self._worker = Worker("publisher", make)

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

    @property
    def closed(self) -> bool:
        """As ``Publisher.closed``."""
        return self._worker.made is not None and self._worker.made.closed

    async def publish(
        self, version: int | None = None, *, progress: Progress | None = None, **settings: Any
    ) -> PublishStats:
        """As ``Publisher.publish``.

        If it is cancelled before the commit begins, nothing was published; after that it was, and
        the board's head tells.
        """

        def work(publisher: Publisher, stop: Stop) -> PublishStats:
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

        def work(publisher: Publisher, stop: Stop) -> PublishStats:
            return publisher.publish_anchor(
                version, checkpoint, progress=stop.progress(progress), **settings
            )

        return await self._worker.run(work)


class AsyncPending:
    """As :class:`deltawire.PendingVersion`."""

    def __init__(self, worker: Worker[Publisher], pending: PendingVersion) -> None:
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

    async def close(self) -> None:
        """As ``PendingVersion.close``: as :meth:`abandon`, which does nothing after a commit."""
        if self._pending.open:
            await self.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncFollower(Opened):
    """As :class:`deltawire.Follower`."""

    def __init__(self, target: Mapping[str, Any], make: Callable[[], Follower]) -> None:
        """Use :meth:`AsyncBoard.follower`."""
        self._target = target
        self._worker = Worker("follower", make)

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

        def work(follower: Follower, stop: Stop) -> list[AdvanceStats]:
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


def _stage(follower: Follower, to: int | None, stop: Stop) -> list[int]:
    """Stage unless, or until, nobody wants it any more."""
    try:
        staged = follower.stage(to, progress=stop.check)
        stop.check()
    except Stop.Cancelled:
        follower.discard()
        raise
    return staged
