"""What the demo raises besides the package's own errors."""

from __future__ import annotations

from ..errors import DeltawireError


class DemoError(DeltawireError):
    """The demo cannot go on. The message names the process, what it waited for, and its log."""

    kind = "demo"

    def with_status(self, status: int) -> DemoError:
        """The same error, ending the command line with the status of a child process."""
        self.exit_status = status  # type: ignore[misc]
        return self


class DemoUsage(DemoError):
    """The demo cannot start as asked: an option, a directory or a missing package."""

    kind = "usage"
    exit_status = 2
