"""What the README, docs/testing.md and docs/ranks.md show, runs.

Python blocks run as they stand. Lines ``$ deltawire ...`` of console blocks run one after the
other in one directory that holds two checkpoints, ``step-0`` and ``step-1``; where output follows,
it must come, with ``...`` standing for anything. ``$ make X`` must name a target of the Makefile.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block and where it starts."""

    page: Path
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """A ``$`` line and the output shown under it."""

    line: int
    words: list[str]
    output: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])
        for match in FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block; a trailing backslash continues the line."""
    parts = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block.page.name}:{block.line}: output before any command"
    for part in parts[1:]:
        line, _, output = part.partition("\n")
        yield Command(block.line, shlex.split(line, comments=True), output.strip("\n"))


def of_language(page: Path, language: str) -> list[Block]:
    """The blocks of one language."""
    return [block for block in blocks(page) if block.language == language]


@pytest.mark.parametrize(
    "block",
    [
        block
        for page in ("README.md", "docs/testing.md", "docs/ranks.md")
        for block in of_language(ROOT / page, "python")
    ],
    ids=lambda block: f"{block.page.stem}-{block.line}",
)
def test_python_block_runs(block: Block, tmp_path: Path) -> None:
    """In a process of its own, in an empty directory."""
    script = tmp_path / "block.py"
    script.write_text(block.text)
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", script.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{block.page.name}:{block.line}\n{done.stdout}{done.stderr}"


def shown(output: str) -> re.Pattern[str]:
    """A pattern for shown output: ``...`` is anything, runs of spaces are equal."""
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in output.split("...")]
    return re.compile(r"\s*" + r".*?".join(rf"\s*{piece}\s*" for piece in pieces) + r"$", re.DOTALL)


def write_steps(directory: Path) -> None:
    """Two small checkpoints that differ in a few elements, with a config beside the weights."""
    from deltawire.checkpoint import write_checkpoint
    from deltawire.tensors import TensorView

    rng = np.random.default_rng(7)
    for step in (0, 1):
        tensors = {}
        for name, shape in {"model.embed.weight": (96, 64), "model.norm.weight": (64,)}.items():
            master = np.random.default_rng(len(name)).standard_normal(shape, np.float32)
            bits = (master.view(np.uint32) >> 16).astype(np.uint16)
            if step:
                flat = bits.reshape(-1)
                flat[rng.choice(flat.size, flat.size // 50, replace=False)] += 1
            tensors[name] = TensorView.from_bytes("BF16", shape, bits)
        write_checkpoint(directory / f"step-{step}", tensors)
        (directory / f"step-{step}" / "config.json").write_text('{"model_type": "llama"}\n')


def test_commands_run(tmp_path: Path) -> None:
    """Every ``deltawire`` line of the README, in order, with the output it shows."""
    program = Path(sys.executable).with_name("deltawire")
    assert program.exists(), f"{program} is missing: the package is not installed"
    write_steps(tmp_path)
    ran = 0
    for block in of_language(ROOT / "README.md", "console"):
        for command in commands(block):
            if command.words[0] != "deltawire" or command.words[1] == "demo":
                continue
            done = subprocess.run(
                [program, *command.words[1:]], cwd=tmp_path, capture_output=True, text=True
            )
            place = f"README.md:{command.line}: {shlex.join(command.words)}"
            assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"
            if command.output:
                assert shown(command.output).match(done.stdout), f"{place}\n{done.stdout}"
            ran += 1
    assert ran >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    """A page names only targets that the Makefile has."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in of_language(page, "console"):
        for command in commands(block):
            if command.words[0] == "make":
                named = [word for word in command.words[1:] if "=" not in word]
                assert set(named) <= set(targets), f"{page.name}:{command.line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links name files that exist."""
    missing = [
        target
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing


def test_shown_output_is_compared() -> None:
    """The comparison fails on other output, and takes ``...`` as anything."""
    assert shown("version 1\n...\ndone").match("version  1\nabc\n\ndone\n")
    assert not shown("version 1\ndone").match("version 2\ndone\n")
    assert not shown("version 1").match("version 1\nmore\n")
