"""What the recipes of bad files share: a correct delta with one thing replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from deltawire_reference import Coding, Options, Tensor
from deltawire_reference.columns import encode_columns
from deltawire_reference.positions import GAPS
from deltawire_reference.values import STEP

from .parts import Parts, Spans, parts_of
from .states import State

Patch = Callable[[bytearray, Spans], None]


@dataclass(frozen=True)
class Bad:
    """``place`` is the record that an error's offset lies in; None: no offset is meant.

    "from chunk n" ends with the index, where a reader by range meets the same field.
    """

    name: str
    rule: str
    threat: str
    parts: Parts
    place: str | None = "chunk 0"
    kind: str = "corrupt"
    base: str = "mixed.base"


class Maker:
    """Correct deltas between the named states, for the recipes below."""

    def __init__(self, states: dict[str, State]) -> None:
        self.states = states

    def parts(self, name: str = "mixed", options: Options | None = None) -> Parts:
        return parts_of(self.states[f"{name}.base"], self.states[f"{name}.new"], options)

    def chunk(self, name: str = "mixed", options: Options | None = None, **fields: Any) -> Parts:
        """The first chunk with some fields replaced."""
        parts = self.parts(name, options)
        parts.chunks[0] |= fields
        return parts

    def positions(self, codec: int, stream: bytes, changes: int) -> Parts:
        """``changes`` raw values, no digests and no states: only the positions can be wrong."""
        parts = self.parts(options=Options(Coding(), states=False))
        values = b"\x11\x3c" * changes
        parts.chunks[0] |= {
            "position_byte": codec, "positions": stream, "changes": changes, "values": values,
        }  # fmt: skip
        return parts

    def steps(self, stream: bytes, changes: int = 3) -> Parts:
        """Positions 0, 55 and 119 and a step stream on a base digest, without result or states."""
        coding = Coding(GAPS, values=STEP, base_digest=True)
        parts = self.parts("sparse", Options(coding, states=False))
        parts.chunks[0] |= {"values": stream, "changes": changes}
        return parts

    def table(self, **fields: Any) -> Parts:
        """The header's only tensor with some properties replaced."""
        parts = self.parts()
        tensor = Tensor("w", "BF16", 2, (6, 20), (6, 20))
        parts.header |= encode_columns([replace(tensor, **fields)])
        return parts

    def header(self, **fields: Any) -> Parts:
        parts = self.parts()
        parts.header |= fields
        return parts

    def payload(self, change: Callable[[bytes], bytes]) -> Parts:
        parts = self.parts()
        parts.header_payload = change(msgpack.packb(parts.header))
        return parts

    def swapped(self, old: bytes, new: bytes) -> Parts:
        """The header payload with some bytes replaced."""
        return self.payload(lambda payload: payload.replace(old, new))

    def index(self, **fields: Any) -> Parts:
        parts = self.parts("ragged", Options(Coding(), tiles={"w": (3, 6)}))
        parts.index |= fields
        return parts

    def many(self) -> Parts:
        return self.parts("ragged", Options(Coding(result_digest=True), tiles={"w": (3, 6)}))


def flip(place: str, at: int, bits: int = 1) -> Patch:
    """Changes a byte of a record after its checksum was made; negative counts from its end."""

    def patch(data: bytearray, spans: Spans) -> None:
        start, end = spans[place]
        data[(start if at >= 0 else end) + at] ^= bits

    return patch


def cut(length: int) -> Patch:
    def patch(data: bytearray, _spans: Spans) -> None:
        del data[length:]

    return patch
