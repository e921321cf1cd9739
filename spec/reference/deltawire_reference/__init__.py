"""A second implementation of the delta format, from spec/format-v1.md and spec/digest-v1.md alone.

Slow and readable. It shares no code with the package, is never imported by it, and judges it:
tests compare the two on every vector and on generated input. One file per part of the spec:

- ``primitives``: varints, checksums, stages, MessagePack
- ``tensors``: matrices, tiles, ordered integers
- ``digest``: the state digest
- ``columns``: the tensor table
- ``bits``, ``rice``, ``positions``, ``values``: codecs, decoder beside encoder
- ``geometric``, ``law``, ``classes``: changes by class
- ``stream``: header, chunk, index, trailer
- ``apply``: a delta on a state
- ``encoder``: writes any stream, also wrong ones
"""

from .apply import State, Value, apply, positions_of, state_digest
from .classes import LAW, Parameters, Partition
from .encoder import Coding, Options, encode
from .primitives import ReferenceFault
from .stream import Chunk, Delta, Header, Index, decode, decode_range
from .tensors import WIDTHS, Tensor

__all__ = [
    "LAW",
    "WIDTHS",
    "Chunk",
    "Coding",
    "Delta",
    "Header",
    "Index",
    "Options",
    "Parameters",
    "Partition",
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
