"""Publishing a version after each step, from a plain loop or a trainer of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ..board import Board, Publisher, PublishStats
from ..closing import Closing
from ..errors import DeltawireError, RolledBack, VersionConflict, WrongBase
from ..types import Profile
from .adamw import AdamWBoundaryDetector
from .base import Detector
from .report import log

if TYPE_CHECKING:
    from transformers import TrainerCallback


class StepPublisher(Closing):
    """Publishes after every ``every`` steps of an optimizer; see :func:`on_step`.

    Attributes:
        detector: finds what changed.
        publisher: of the board.
        last: of the version that was published last, None before the first.
    """

    def __init__(
        self,
        board: Board,
        detector: Detector,
        *,
        run: str | None,
        every: int,
        profile: Profile,
        on_error: Literal["raise", "retry"],
        publisher: dict[str, Any],
    ) -> None:
        """Use :func:`on_step`."""
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        if on_error not in ("raise", "retry"):
            raise ValueError(f"on_error={on_error!r}: raise or retry")
        self.detector = detector
        self.last: PublishStats | None = None
        self._board, self._every = board, every
        self._profile: Profile = profile
        self._on_error = on_error
        self._steps = 0
        self.publisher: Publisher = board.publisher(run=run, **publisher)
        try:
            self._begin()
        except BaseException:
            self.publisher.close()
            raise

    def _begin(self) -> None:
        """The board's head must be what the model holds; an empty board gets it as an anchor."""
        head = self._board.head()
        if head is None:
            self.last = self.publisher.publish_anchor(None, dict(self.detector.served()))
        else:
            self.detector.require_base(self._board.manifest(head).result_state, version=head)

    def step(self) -> PublishStats | None:
        """Call after each step: publishes when it is time. Returns what was published.

        Raises:
            VersionConflict, RolledBack, WrongBase: another trainer publishes here.
            DeltawireError: it failed, with ``on_error="raise"``. Nothing was published, and the
                next step publishes these changes too.
        """
        self._steps += 1
        return self.publish() if self._steps % self._every == 0 else None

    def publish(self) -> PublishStats | None:
        """Publish what changed since the last version, now."""
        try:
            self.last = self.publisher.publish(detector=self.detector, profile=self._profile)
        except (VersionConflict, RolledBack, WrongBase):
            raise
        except DeltawireError as error:
            if self._on_error == "raise":
                raise
            log.warning("no version after this step, the next one has its changes too: %s", error)
            return None
        return self.last

    def close(self) -> None:
        """Publish what is left, give the optimizer back, and end the publisher."""
        if self.publisher.closed:
            return
        try:
            if self._steps % self._every:
                self.publish()
        finally:
            self.detector.close()
            self.publisher.close()

    def abandon(self) -> None:
        """As :meth:`close`, without publishing what is left."""
        self._steps = 0
        self.close()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


def on_step(
    board: Board,
    model: Any,
    optimizer: Any,
    *,
    detector: Detector | None = None,
    run: str | None = None,
    every: int = 1,
    profile: Profile = "compact",
    on_error: Literal["raise", "retry"] = "raise",
    **publisher: Any,
) -> StepPublisher:
    """Publish a version after each step of a plain training loop.

        with dw.detect.on_step(board, model, optimizer) as published:
            for batch in data:
                ...
                optimizer.step()
                published.step()

    An empty board gets what the model holds as its first version; otherwise the model must hold
    the board's head.

    Args:
        board: to publish to, with one process that has the whole model. Several ranks call
            :func:`publish_together`.
        model, optimizer: as for :class:`AdamWBoundaryDetector`.
        detector: instead of that one.
        run: name of the run.
        every: steps for a version.
        profile: ``compact``, ``fast`` or ``overwrite``.
        on_error: what a failed store does to training: ``raise``, or ``retry`` with the next step
            and log.
        publisher: more for :meth:`deltawire.Board.publisher`, such as ``anchor_every``.

    Raises:
        WrongBase: the board's head is not what the model holds.
    """
    own = detector is None
    found = AdamWBoundaryDetector(model, optimizer) if detector is None else detector
    try:
        return StepPublisher(
            board,
            found,
            run=run,
            every=every,
            profile=profile,
            on_error=on_error,
            publisher=publisher,
        )
    except BaseException:
        if own:
            found.close()
        raise


def trainer_callback(board: Board, **settings: Any) -> TrainerCallback:
    """A callback for ``transformers.Trainer``, and for those of TRL, that publishes each step.

        trainer.add_callback(dw.detect.trainer_callback(dw.Board("s3://bucket/run")))

    ``settings`` are those of :func:`on_step`. The version is published at the end of a step, so
    with gradient accumulation once for all of its batches. Of several processes that hold the
    model alike the first one publishes; where it is sharded, use :func:`publish_together`.
    """
    from transformers import TrainerCallback

    class Publish(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Publishes what each optimizer step changed."""

        published: StepPublisher | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not state.is_world_process_zero:
                return
            self.published = on_step(board, kwargs["model"], kwargs["optimizer"], **settings)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.published is not None:
                self.published.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.published is not None:
                self.published.close()

    return Publish()
