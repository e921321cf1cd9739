"""Plain objects in threads of their own, used from event loops: beneath ``deltawire.aio``."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .board.transfer import Progress

_T = TypeVar("_T")
_Object = TypeVar("_Object")


class Stop:
    """Tells a thread that nobody wants its work any more."""

    class Cancelled(Exception):
        """Ends the work; never leaves these modules."""

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


class Worker(Generic[_Object]):
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

    async def run(self, work: Callable[[_Object, Stop], _T]) -> _T:
        """Do ``work`` after what was asked before."""
        if self._closed:
            raise RuntimeError("this object is closed; make another")
        stop = Stop()

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


class Opened:
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
