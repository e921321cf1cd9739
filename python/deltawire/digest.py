"""State digests (``spec/digest-v1.md``) of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import _native
from .tensors import as_views

#: What lanes are summed modulo: a prime.
PRIME = (1 << 61) - 1


def tensor_digests(
    tensors: Mapping[str, Any],
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, bytes]:
    """Digest of each tensor, 16 bytes, in one pass at memory bandwidth.

    Args:
        tensors: name to torch tensor (CPU), numpy array or ``TensorView``; not written to
            meanwhile.
        threads: as many as processors where None.
        progress: called with the number of dense bytes just done.

    Raises:
        LayoutMismatch: a tensor that cannot be read in place.
    """
    views = as_views(tensors)
    digests = _native.tensor_digests(
        [(name, view.dtype, list(view.shape)) for name, view in views.items()],
        [view.native for view in views.values()],
        threads,
        progress,
    )
    return {name: bytes(digest) for name, digest in zip(views, digests, strict=True)}


def combine(*digests: bytes) -> bytes:
    """Sum of 16-byte digests, lane by lane modulo 2^61 - 1: that of several tensors or shards."""
    lanes = [0, 0]
    for digest in digests:
        lanes[0] = (lanes[0] + int.from_bytes(digest[:8], "little")) % PRIME
        lanes[1] = (lanes[1] + int.from_bytes(digest[8:], "little")) % PRIME
    return lanes[0].to_bytes(8, "little") + lanes[1].to_bytes(8, "little")


def state_digest(
    tensors: Mapping[str, Any],
    *,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> bytes:
    """State digest of all tensors, 16 bytes; their order does not matter.

    Arguments and errors as for ``tensor_digests``.
    """
    return combine(*tensor_digests(tensors, threads=threads, progress=progress).values())
