"""Layouts of the size of the model: XOR of both states, or the new state itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .framing import Bits, Stream


class Xor:
    """Old XOR new of a whole tensor, as slime, Miles and SkyRL send it."""

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        return [np.bitwise_xor(old, new)] if new.size else []

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        if target.size:
            difference = np.frombuffer(streams[0], np.uint16).reshape(target.shape)
            np.bitwise_xor(target, difference, out=target)


class Whole:
    """The new state, base or not: a compressed safetensors file."""

    def pack(self, old: Bits, new: Bits) -> Sequence[Stream]:
        return [new] if new.size else []

    def unpack(self, streams: Sequence[memoryview], target: Bits) -> None:
        if target.size:
            np.copyto(target, np.frombuffer(streams[0], np.uint16).reshape(target.shape))
