"""One file per requirement and threat, each broken in one place with every checksum valid.

The file of a rule is otherwise correct, so a reader that misses the rule would apply it.
"""

from __future__ import annotations

from .bad_chunk import chunks, positions, primitives, values
from .bad_classes import geometric, parameters, several
from .bad_stream import ends, header, index, payload_stages, table
from .maker import Bad, Maker
from .states import State


def all_bad(states: dict[str, State]) -> list[Bad]:
    maker = Maker(states)
    parts = [
        primitives, header, table, chunks, positions, values, geometric, parameters, several,
        payload_stages, index, ends,
    ]  # fmt: skip
    return [bad for part in parts for bad in part(maker)]
