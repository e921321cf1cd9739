"""A second implementation of the delta format, from spec/format-v1.md and spec/digest-v1.md alone.

Slow and readable. It shares no code with the package, is never imported by it, and judges it:
tests compare the two on every vector and on generated input. One file per part of the spec:

- ``primitives``: varints, checksums, stages, MessagePack
- ``tensors``: matrices, tiles, ordered integers
- ``digest``: the state digest
- ``rice``, ``geometric``, ``positions``, ``ranks``, ``values``: the codecs, decoder beside encoder
- ``stream``: header, chunk, index, trailer
- ``apply``: a delta on a state
- ``encoder``: writes any stream, also wrong ones
"""

from .apply import State, Value, apply, positions_of, state_digest
from .encoder import Coding, Options, encode
from .primitives import ReferenceFault
from .stream import Chunk, Delta, Header, Index, decode, decode_range
from .tensors import WIDTHS, Tensor

__all__ = [
    "WIDTHS",
    "Chunk",
    "Coding",
    "Delta",
    "Header",
    "Index",
    "Options",
    "ReferenceFault",
    "State",
    "Tensor",
    "Value",
    "apply",
    "decode",
    "decode_range",
    "encode",
    "positions_of",
    "state_digest",
]
