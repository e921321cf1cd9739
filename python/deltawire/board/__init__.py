"""The bulletin board: publish immutable versions, follow them from anywhere.

``board`` is the entrance; ``publisher`` and ``anchor`` write; ``plan`` decides how a reader
gets from one version to another, ``fetch`` and ``steps`` bring, check and apply deltas,
``follower`` to tensors in memory and ``pull`` to a checkpoint directory; ``manifest`` is what all
of them speak about; ``lease`` and ``collect`` decide how long versions stay, ``overtaken`` what
a reader does when one has gone, and ``background`` makes anchors while deltas are published. The
protocol itself is in Rust (``spec/commit-v1.md``).
"""

from .board import Board
from .collect import CollectStats
from .follower import Follower
from .lease import Lease
from .manifest import AnchorFiles, Manifest, ObjectRef, VersionRef
from .publisher import Publisher, PublishStats
from .pull import PullStats
from .steps import AdvanceStats

__all__ = [
    "AdvanceStats",
    "AnchorFiles",
    "Board",
    "CollectStats",
    "Follower",
    "Lease",
    "Manifest",
    "ObjectRef",
    "PublishStats",
    "Publisher",
    "PullStats",
    "VersionRef",
]
