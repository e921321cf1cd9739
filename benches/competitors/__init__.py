"""Other ways to send the same change, written from their published layouts.

Sizes are those of the layouts. Speeds are those of vectorised numpy with zstd and LZ4 in C; most of
the published implementations are Python as well, some with native or GPU parts that this cannot
show. Nothing is checked or proven here on either side.
"""

from __future__ import annotations

import numpy as np

from .dense import Whole, Xor
from .framing import Bits, Codec, OneFrame, PerTensor, Plain, Tensors
from .ranks import Ranks
from .sparse import Coordinates, EscapedGaps, RowsAndColumns

COMPETITORS: tuple[Codec, ...] = (
    Plain("int32 COO", "int32 index, raw value (vLLM sparse broadcast)", Coordinates()),
    OneFrame("int32 COO, zstd-1", "the same in one zstd frame (AReaL-DTE)", Coordinates()),
    OneFrame(
        "rows+columns, zstd-1",
        "row and column steps, raw values, one zstd frame (PULSE, grail 3.1)",
        RowsAndColumns(),
    ),
    OneFrame(
        "u8 gaps, zstd-1",
        "one-byte gaps with escapes, raw values, one zstd frame",
        EscapedGaps(np.uint8, xor=False),
    ),
    OneFrame(
        "u16 gaps + XOR, zstd-1",
        "two-byte gaps with escapes, old XOR new, one zstd frame (NeMo-RL)",
        EscapedGaps(np.uint16, xor=True),
    ),
    OneFrame(
        "exponent ranks, zstd-1",
        "Rice-coded ranks per old exponent, zigzag steps, one zstd frame (PULSEPT1 v3)",
        Ranks(),
    ),
    PerTensor(
        "dense XOR, zstd-1", "old XOR new per tensor (slime, Miles, SkyRL)", Xor(), stage="zstd"
    ),
    PerTensor("dense XOR, LZ4", "the same with LZ4", Xor(), stage="lz4"),
    PerTensor("safetensors, zstd-1", "the whole new state, compressed", Whole(), stage="zstd"),
)

__all__ = ["COMPETITORS", "Bits", "Codec", "Tensors"]
