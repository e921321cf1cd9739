"""The tensor table by columns, as the header stores it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .primitives import Cursor, corrupt, encode_varint, typed, unzigzag, zigzag
from .tensors import WIDTHS, Tensor, matrix

NUMBER, ESCAPE = "\x01", "\x02"
DIGITS = 18
COLUMNS = ("names", "numbers", "dtypes", "dtype", "rank", "shapes", "tiles")


def pattern_of(name: str) -> tuple[str, list[int]]:
    """A name without its numbers, and the numbers."""
    pattern, numbers = "", []
    for part in re.findall(r"[0-9]+|[^0-9]", name, re.DOTALL):
        if re.fullmatch(r"0|[1-9][0-9]*", part) and len(part) <= DIGITS:
            pattern += NUMBER
            numbers.append(int(part))
        else:
            pattern += ESCAPE + part if part in (NUMBER, ESCAPE) else part
    return pattern, numbers


def escaped(name: str) -> str:
    """A name as a pattern that has all its digits."""
    return re.sub("([\x01\x02])", "\x02\\1", name)


def encode_columns(table: Sequence[Tensor], *, plain: bool = False) -> dict[str, Any]:
    """``plain``: digits stay in the names, and tiles are written in full."""
    names, numbers, shapes, tiles = [], b"", b"", b""
    dtypes: list[str] = []
    last: list[int] = []
    for tensor in table:
        pattern, found = (escaped(tensor.name), []) if plain else pattern_of(tensor.name)
        names.append(pattern)
        last += [0] * (len(found) - len(last))
        for place, number in enumerate(found):
            numbers += encode_varint(zigzag(number - last[place]))
            last[place] = number
        if tensor.dtype not in dtypes:
            dtypes.append(tensor.dtype)
        shapes += b"".join(encode_varint(dimension) for dimension in tensor.shape)
        for size, whole in zip(tensor.tile, matrix(tensor.shape), strict=True):
            tiles += encode_varint(0 if size == whole and not plain else size)
    return {
        "names": names,
        "numbers": numbers,
        "dtypes": dtypes,
        "dtype": bytes(dtypes.index(tensor.dtype) for tensor in table),
        "rank": bytes(len(tensor.shape) for tensor in table),
        "shapes": shapes,
        "tiles": tiles,
    }


def name_of(pattern: str, numbers: Cursor, last: list[int]) -> str:
    """A pattern with its numbers put in."""
    name, place = "", 0
    characters = iter(pattern)
    for character in characters:
        if character == NUMBER:
            if place == len(last):
                last.append(0)
            last[place] += unzigzag(numbers.varint())
            if not 0 <= last[place] < 10**DIGITS:
                raise corrupt("F8", f"the number {last[place]} in a name", numbers.offset)
            name += str(last[place])
            place += 1
            continue
        if character == ESCAPE:
            character = next(characters, "")
            if character not in (NUMBER, ESCAPE):
                raise corrupt("F8", "a stray U+0002 in a name", numbers.offset)
        name += character
    return name


def decode_columns(fields: dict[str, Any], offset: int) -> list[Tensor]:
    """The tensor table. [F4] [F5] [F6] [F8] [F9]"""

    def texts(key: str) -> list[str]:
        listed = typed(fields[key], list, key, offset)
        return [typed(text, str, f"one of {key}", offset) for text in listed]

    dtypes, patterns = texts("dtypes"), texts("names")
    columns = {
        key: Cursor(typed(fields[key], bytes, key, offset), offset, "F8")
        for key in ("numbers", "dtype", "rank", "shapes", "tiles")
    }
    for key in ("dtype", "rank"):
        if columns[key].left != len(patterns):
            raise corrupt("F8", f"{columns[key].left} of {key}, {len(patterns)} names", offset)
    table = []
    last: list[int] = []
    for pattern in patterns:
        name = name_of(pattern, columns["numbers"], last)
        number = columns["dtype"].take(1)[0]
        if number >= len(dtypes):
            raise corrupt("F8", f"dtype {number} of {len(dtypes)}", offset)
        dtype = dtypes[number]
        shape = tuple(columns["shapes"].varint() for _ in range(columns["rank"].take(1)[0]))
        tile = [columns["tiles"].varint() for _ in range(2)]
        rows, cols = matrix(shape)
        if rows * cols:
            tile = [size or whole for size, whole in zip(tile, (rows, cols), strict=True)]
        tensor = Tensor(name, dtype, WIDTHS.get(dtype, 0), shape, (tile[0], tile[1]))
        tensor.check(offset)
        table.append(tensor)
    for key in ("numbers", "shapes", "tiles"):
        columns[key].finish(f"last of {key}")
    if len({tensor.name for tensor in table}) != len(table):
        raise corrupt("F8", "a tensor name is repeated", offset)
    return table
