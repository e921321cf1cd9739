"""Finding what a training step changed, without a copy of what receivers hold.

    import deltawire as dw

    detector = dw.detect.AdamWBoundaryDetector(model, optimizer)
    with board.publisher() as publisher:
        ...                                       # an anchor of what the model holds now
        for batch in data:
            ...
            optimizer.step()
            publisher.publish(detector=detector)

- ``SnapshotDetector``: compares with a copy of what is served; exact whatever happens
- ``StepwiseDetector``: compares around each bucket of a step; exact for any optimizer
- ``AdamWBoundaryDetector``: reads the optimizer's state after the step; no copies at all
- ``on_step``, ``trainer_callback``: a version after each step, in three lines
- ``publish_together``: one version from all ranks of a sharded trainer

What any of them found is proven before it is published, by digests of the base that are kept. torch
is needed, and imported when a detector is made.
"""

from .adamw import AdamWBoundaryDetector
from .base import Detector
from .hooks import StepPublisher, on_step, trainer_callback
from .ranks import publish_together
from .report import Proof
from .slices import Slice
from .snapshot import SnapshotDetector
from .step import AdamWStep
from .stepwise import StepwiseDetector

__all__ = [
    "AdamWBoundaryDetector",
    "AdamWStep",
    "Detector",
    "Proof",
    "Slice",
    "SnapshotDetector",
    "StepPublisher",
    "StepwiseDetector",
    "on_step",
    "publish_together",
    "trainer_callback",
]
