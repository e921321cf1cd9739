"""The bulletin board: publish immutable versions, follow them from anywhere.

``board`` is the entrance; ``publisher`` and ``anchor`` write, ``succession`` says which version may
follow, ``parts`` and ``pending`` are for ranks that publish together; ``plan`` decides how a reader
gets from one version to another, ``fetch`` and ``steps`` bring, check and apply deltas, ``joining``
and ``ranged`` bring those in parts and parts of those, ``transfer`` moves objects,
``follower`` to tensors in memory and ``pull`` to a checkpoint directory; ``manifest`` is what all
of them speak about, and ``options`` say how a remote store is reached. ``trust`` is about keys,
``records`` where signatures are checked, ``vouching`` what a signing publisher may name, ``watch``
what a reader remembers. ``lease`` and ``collect`` decide how long versions stay, ``overtaken``
what a reader does when one has gone. ``skip`` folds deltas, ``hop`` finds the cheapest way over
them, ``background`` makes anchors and skip records while deltas are published (in a ``worker``),
and ``history`` shows all that. The protocol itself is in Rust (``spec/commit-v1.md``).
"""

from .attempt import PublishStats
from .board import Board
from .collect import CollectStats
from .follower import Follower
from .lease import Lease
from .manifest import AnchorFiles, Manifest, ObjectRef, VersionRef
from .options import Credentials, StoreOptions
from .parts import PublishTicket, UploadedPart
from .pending import PendingVersion
from .publisher import Publisher
from .pull import PullStats
from .skip import SkipStats
from .steps import AdvanceStats
from .trust import PublicKey, SigningKey, Trust
from .watch import Stale

__all__ = [
    "AdvanceStats",
    "AnchorFiles",
    "Board",
    "CollectStats",
    "Credentials",
    "Follower",
    "Lease",
    "Manifest",
    "ObjectRef",
    "PendingVersion",
    "PublicKey",
    "PublishStats",
    "PublishTicket",
    "Publisher",
    "PullStats",
    "SigningKey",
    "SkipStats",
    "Stale",
    "StoreOptions",
    "Trust",
    "UploadedPart",
    "VersionRef",
]
