"""Progress on a terminal and in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TextIO


class Progress:
    """Lines that stay; on a terminal also a last line that is overwritten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.status("")

    def line(self, text: str) -> None:
        """Print a line."""
        self.status("")
        print(text, file=self._stream, flush=True)

    def status(self, text: str) -> None:
        """Show what goes on; nothing in a pipe."""
        if self._terminal and text != self._shown:
            # Back to the first column, and clear to the end of the line.
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
            self._shown = text
