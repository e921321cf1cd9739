"""deltawire moves policy weights from RL trainers to rollout engines as small, lossless deltas.

    import deltawire as dw

- ``diff``, ``apply``, ``inspect``: whole deltas, from and to checkpoints or tensors
- ``StreamWriter``, ``StreamReader``: chunk by chunk, in bounded memory
- ``Partition``: changes of a tile between who scans buffers and who packs bytes
- ``stage``: check and prove first, commit in O(changes) later
- ``state_digest``: the additive digest that proves which bits a model holds
- ``Board``: publish immutable versions, follow them, pull checkpoints
- ``detect``: what a training step changed, without a copy of what receivers hold
- ``SigningKey``, ``PublicKey``, ``Trust``: sign versions, refuse those that no trusted key signed

torch is optional: tensors may be torch CPU tensors, numpy arrays or ``TensorView``, or a ``Shard``
of one.
"""

from . import _native, checkpoint, detect, digest, errors, tensors
from .apply import Staged, apply, stage
from .board import (
    AdvanceStats,
    Board,
    CollectStats,
    Credentials,
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
    Stale,
    StoreOptions,
    Trust,
    UploadedPart,
)
from .checkpoint import Checkpoint
from .compose import compose
from .digest import state_digest, tensor_digests
from .errors import (
    BrokenChain,
    CorruptCheckpoint,
    CorruptDelta,
    DeltawireError,
    KeyFileError,
    LayoutMismatch,
    LimitExceeded,
    RolledBack,
    StaleBoard,
    StoreError,
    TargetError,
    TargetTorn,
    UnsupportedDelta,
    UntrustedDelta,
    VersionConflict,
    WrongBase,
    WrongVersion,
)
from .partition import Partition
from .reader import Chunk, StreamReader, inspect
from .stream import StreamWriter, diff
from .tensors import Shard, TensorView
from .types import ApplyStats, Changes, DeltaInfo, DeltaStats, Limits, TensorInfo, Tiling

__version__ = _native.__version__

if _native.DEBUG_BUILD:
    import warnings

    warnings.warn(
        "this is a debug build of deltawire, many times slower; build with --release",
        RuntimeWarning,
        stacklevel=2,
    )

__all__ = [
    "AdvanceStats",
    "ApplyStats",
    "Board",
    "BrokenChain",
    "Changes",
    "Checkpoint",
    "Chunk",
    "CollectStats",
    "CorruptCheckpoint",
    "CorruptDelta",
    "Credentials",
    "DeltaInfo",
    "DeltaStats",
    "DeltawireError",
    "Follower",
    "KeyFileError",
    "LayoutMismatch",
    "Lease",
    "LimitExceeded",
    "Limits",
    "Manifest",
    "Partition",
    "PendingVersion",
    "PublicKey",
    "PublishStats",
    "PublishTicket",
    "Publisher",
    "PullStats",
    "RolledBack",
    "Shard",
    "SigningKey",
    "SkipStats",
    "Staged",
    "Stale",
    "StaleBoard",
    "StoreError",
    "StoreOptions",
    "StreamReader",
    "StreamWriter",
    "TargetError",
    "TargetTorn",
    "TensorInfo",
    "TensorView",
    "Tiling",
    "Trust",
    "UnsupportedDelta",
    "UntrustedDelta",
    "UploadedPart",
    "VersionConflict",
    "WrongBase",
    "WrongVersion",
    "apply",
    "checkpoint",
    "compose",
    "detect",
    "diff",
    "digest",
    "errors",
    "inspect",
    "stage",
    "state_digest",
    "tensor_digests",
    "tensors",
]
