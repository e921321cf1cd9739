"""Changes by class: ranks within exponent classes of the base, and steps, in one stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .bits import BitReader, BitWriter
from .geometric import LARGEST, Decoder, Encoder, fitted, lanes_of, table
from .law import rank_law, size_law
from .positions import from_gaps, gaps_of
from .primitives import Cursor, corrupt, unzigzag, zigzag
from .tensors import EXPONENTS
from .values import check_steps

MOST_CLASSES, MOST_GROUPS = 16, 8
GROUPED_COLS = 64

Patterns = NDArray[np.uint64]


@dataclass
class Group:
    """Changes of one group of rows: of each class ascending ranks, and steps in their order."""

    ranks: list[list[int]]
    steps: list[list[int]]

    @property
    def counts(self) -> list[int]:
        return [len(ranks) for ranks in self.ranks]


@dataclass
class Partition:
    """``rows``: the group of each row of the tile, empty where there is one."""

    top: int
    rows: list[int]
    groups: list[Group]

    @property
    def classes(self) -> int:
        return len(self.groups[0].ranks)

    @property
    def needs_base(self) -> bool:
        """Whether ranks are not positions."""
        return self.classes * len(self.groups) > 1

    @property
    def changes(self) -> int:
        return sum(sum(group.counts) for group in self.groups)

    @property
    def steps(self) -> list[int]:
        """All of them, in the order of the ranks."""
        return [d for group in self.groups for steps in group.steps for d in steps]


# --- Who is in which class ---------------------------------------------------------------------


def exponents(patterns: Patterns, dtype: str) -> NDArray[np.int64]:
    first, count = EXPONENTS[dtype]
    fields = (patterns >> np.uint64(first)) & np.uint64((1 << count) - 1)
    return fields.astype(np.int64)


def class_members(
    patterns: Patterns,
    dtype: str,
    classes: int,
    top: int,
    rows: Sequence[int] = (),
    groups: int = 1,
) -> list[list[NDArray[np.int64]]]:
    """The elements of each class of each group; ``patterns`` before the delta, (elements,)."""
    numbers = np.clip(top - exponents(patterns, dtype), 0, classes - 1)
    across = len(patterns) // max(len(rows), 1)
    group = (
        np.repeat(np.array(rows, np.int64), across) if rows else np.zeros(len(patterns), np.int64)
    )
    return [
        [np.flatnonzero((group == g) & (numbers == k)).astype(np.int64) for k in range(classes)]
        for g in range(groups)
    ]


def located(partition: Partition, patterns: Patterns, dtype: str) -> list[int] | None:
    """The positions in the order of the ranks, in a tile of ``patterns``; None where one lacks."""
    if not partition.needs_base:
        return partition.groups[0].ranks[0]
    members = class_members(
        patterns, dtype, partition.classes, partition.top, partition.rows, len(partition.groups)
    )
    found: list[int] = []
    for group, of_group in zip(partition.groups, members, strict=True):
        for ranks, of_class in zip(group.ranks, of_group, strict=True):
            if ranks and ranks[-1] >= len(of_class):
                return None
            found += [int(x) for x in of_class[ranks]]
    return found


def partition_of(
    positions: Sequence[int], steps: Sequence[int], members: list[list[NDArray[np.int64]]],
    top: int = 0, rows: Sequence[int] = (),
) -> Partition:  # fmt: skip
    """The changes with these positions by class."""
    step_at = dict(zip(positions, steps, strict=True))
    wanted = np.array(positions, np.int64)
    groups = []
    for of_group in members:
        group = Group([], [])
        for of_class in of_group:
            ranks = np.flatnonzero(np.isin(of_class, wanted))
            group.ranks.append([int(rank) for rank in ranks])
            group.steps.append([step_at[int(x)] for x in of_class[ranks]])
        groups.append(group)
    return Partition(top, list(rows), groups)


# --- Parameters --------------------------------------------------------------------------------


def width(x: int) -> int:
    return max(x, 1).bit_length() - 1


def spread(x: int) -> int:
    return (width(x) + 2) // 2


@dataclass(frozen=True)
class Parameters:
    """What a writer chooses beside classes and groups. None: what fits, or what follows from it.

    ``ranks`` and ``sizes`` are one parameter for all classes. LAW takes that of the law wherever it
    can say what there is to say. ``differ`` writes lists of differences also where all are zero.
    """

    distance: int | None = None
    ranks: int | None = None
    sizes: int | None = None
    shares: Sequence[int] | None = None
    differ: bool = False


LAW = -1


def shares_of(rows: Sequence[int], groups: int) -> list[int]:
    """About as many slots of 4096 as a group has of the rows, at least one."""
    shares = [max(4096 * rows.count(g) // len(rows), 1) for g in range(groups)]
    shares[shares.index(max(shares))] += 4096 - sum(shares)
    return shares


def size_parameter(steps: Sequence[int]) -> int:
    """0 where all steps are one; else one more than a parameter that fits."""
    sizes = [abs(d) - 1 for d in steps]
    return fitted(sizes) + 1 if any(sizes) else 0


def chosen(given: int | None, law: int, fit: int, possible: bool) -> int:
    if given is None or (given == LAW and not possible):
        return fit
    return law if given == LAW else given


def encode_classes(
    partition: Partition, given: Parameters | None = None, final: Sequence[int] | None = None
) -> bytes:
    """The stream. ``final`` spoils the coders' last states."""
    given = given or Parameters()
    groups, classes = partition.groups, partition.classes
    bits = BitWriter()
    encoder = Encoder(lanes_of(partition.changes), final)
    bits.put(classes - 1, 4)
    bits.put(int(len(groups) > 1), 1)
    if len(groups) > 1:
        bits.put(len(groups) - 1, 3)
    if partition.needs_base:
        bits.put(partition.top, 11)
    if len(groups) > 1:
        shares = given.shares or shares_of(partition.rows, len(groups))
        for share in shares[:-1]:
            bits.put(share, 12)
        for item, group in enumerate(partition.rows):
            encoder.symbol(sum(shares[:group]), shares[group], item)
    left = partition.changes
    for r, changes in enumerate(groups):
        n = sum(changes.counts)
        if r < len(groups) - 1:
            bits.number(n, width(left // (len(groups) - r)))
        left -= n
        if n:
            _encode_group(changes, n, given, bits, encoder)
    return bits.padded() + encoder.stream()


def _encode_group(
    group: Group, n: int, given: Parameters, bits: BitWriter, encoder: Encoder
) -> None:
    counts = group.counts
    for j, count in enumerate(counts[:-1]):
        if j == 0:
            bits.number(count, width(n // len(counts)))
        else:
            bits.number(zigzag(count - counts[j - 1]), spread(counts[j - 1]))
    filled = [j for j, count in enumerate(counts) if count]
    fits = [fitted(gaps_of(ranks)) if ranks else 0 for ranks in group.ranks]
    distance = given.distance
    if distance is None:
        distance = min(max(fits[filled[0]] + 8 * filled[0], 0), 255)
    bits.put(distance, 8)
    rank_laws = [rank_law(distance - 8 * j) for j in range(len(counts))]
    size_laws = [size_law(distance - 8 * j) for j in range(len(counts))]
    ranks = [chosen(given.ranks, rank_laws[j], fits[j], True) for j in range(len(counts))]
    sizes = [
        chosen(given.sizes, law, size_parameter(steps), law > 0 or not size_parameter(steps))
        for law, steps in zip(size_laws, group.steps, strict=True)
    ]
    for laws, taken in ((rank_laws, ranks), (size_laws, sizes)):
        differ = given.differ or any(laws[j] != taken[j] for j in filled)
        bits.put(int(differ), 1)
        for j in filled if differ else ():
            bits.number(zigzag(taken[j] - laws[j]), 0)
    for j in filled:
        encoder.run(ranks[j], gaps_of(group.ranks[j]))
        for d in group.steps[j]:
            encoder.raw.put(int(d > 0), 1)
        if sizes[j]:
            encoder.run(sizes[j] - 1, [abs(d) - 1 for d in group.steps[j]])


@dataclass
class _Class:
    changes: int
    ranks: int = 0
    sizes: int = 0


@dataclass
class _Head:
    """The parameters of a stream."""

    top: int = 0
    shares: list[int] = field(default_factory=list)
    groups: list[list[_Class]] = field(default_factory=list)


def decode_classes(
    cursor: Cursor, changes: int, elements: int, rows: int, dtype: str, element_width: int
) -> Partition:
    """[F24] [F25] [F26], without what only the base can tell."""
    cursor.rule = "F25"
    at = cursor.offset
    bits = BitReader(cursor.data[cursor.at :], at)
    head = _decode_head(bits, changes, elements, rows, dtype, at)
    cursor.take(bits.bytes_used)
    if not bits.is_padded():
        raise corrupt("F2", "unused bits are not zero", cursor.offset - 1)
    filled = [this for group in head.groups for this in group if this.changes]
    raw_bits = sum(
        this.changes
        * (1 + table(this.ranks).low + (table(this.sizes - 1).low if this.sizes else 0))
        for this in filled
    )
    decoder = Decoder(cursor, raw_bits, lanes_of(changes))
    partition = Partition(head.top, [], [])
    if len(head.groups) > 1:
        starts = [sum(head.shares[:g]) for g in range(len(head.shares) + 1)]
        partition.rows = [decoder.symbol(starts, item) for item in range(rows)]
    for classes in head.groups:
        group = Group([], [])
        for this in classes:
            gaps = decoder.run(this.ranks, this.changes)
            group.ranks.append(from_gaps(gaps, elements, at, "F25"))
            signs = [decoder.raw.take(1) for _ in range(this.changes)]
            sizes = decoder.run(this.sizes - 1, this.changes) if this.sizes else [0] * len(signs)
            steps = [
                size + 1 if sign else -size - 1 for size, sign in zip(sizes, signs, strict=True)
            ]
            group.steps.append(check_steps(steps, element_width, "F26", at))
        partition.groups.append(group)
    decoder.finish()
    return partition


def _decode_head(
    bits: BitReader, changes: int, elements: int, rows: int, dtype: str, at: int
) -> _Head:
    head = _Head()
    classes, groups = bits.take(4) + 1, 1
    if bits.take(1):
        groups = bits.take(3) + 1
        if groups == 1:
            raise corrupt("F25", "one group of rows, said to be several", at)
    if classes * groups > 1:
        head.top = bits.take(11)
        if dtype not in EXPONENTS:
            raise corrupt("F25", f"{classes} classes in {groups} groups of {dtype}", at)
    if groups > 1:
        if elements < GROUPED_COLS * rows:
            raise corrupt("F25", f"groups of rows of {elements // rows} elements", at)
        head.shares = [bits.take(12) for _ in range(groups - 1)]
        head.shares.append(4096 - sum(head.shares))
        if min(head.shares) < 1:
            raise corrupt("F25", f"groups with the shares {head.shares}", at)
    left = changes
    for r in range(groups):
        n = bits.number(width(left // (groups - r)), "F25") if r < groups - 1 else left
        left -= n
        if left < 0:
            raise corrupt("F25", "groups with more changes than the chunk has", at)
        head.groups.append(_decode_group(bits, n, classes, at) if n else [_Class(0)] * classes)
    return head


def _decode_group(bits: BitReader, n: int, classes: int, at: int) -> list[_Class]:
    counts: list[int] = []
    for j in range(classes):
        if j == classes - 1:
            counts.append(n - sum(counts))
        elif j == 0:
            counts.append(bits.number(width(n // classes), "F25"))
        else:
            counts.append(counts[-1] + unzigzag(bits.number(spread(counts[-1]), "F25")))
        if counts[-1] < 0 or sum(counts) > n:
            raise corrupt("F25", f"classes of {counts} in {n} changes", at)
    group = [_Class(count) for count in counts]
    distance = bits.take(8)
    for law, most, key in ((rank_law, LARGEST, "ranks"), (size_law, LARGEST + 1, "sizes")):
        given = bits.take(1)
        for j, this in enumerate(group):
            if this.changes == 0:
                continue
            value = law(distance - 8 * j) + (unzigzag(bits.number(0, "F25")) if given else 0)
            if not 0 <= value <= most:
                raise corrupt("F25", f"a parameter of {value}", at)
            setattr(this, key, value)
    return group
