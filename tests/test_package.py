"""The package as a user gets it: imports, the wheel, names, errors, and the pages about them."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import deltawire as dw
from conftest import ROOT
from deltawire import _native, errors

PACKAGE = ROOT / "python" / "deltawire"
VERBS = [
    "diff",
    "apply",
    "verify",
    "inspect",
    "publish",
    "pull",
    "log",
    "gc",
    "keygen",
    "introduce",
    "demo",
]
ERRORS = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, errors.DeltawireError)
]
SPECIFIC = [cls for cls in ERRORS if cls is not errors.DeltawireError]
# Raised in Python alone: safetensors headers and targets never reach Rust before they are checked.
PYTHON_ONLY = {"checkpoint", "target", "rolled-back", "stale"}

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it fails
import io
import numpy as np
import deltawire as dw
base = {"w": np.zeros((8, 8), np.float32), "n": np.ones(3, np.int64)}
new = {"w": np.eye(8, dtype=np.float32), "n": np.arange(3)}
sink = io.BytesIO()
dw.diff(base, new, sink)
dw.apply(sink.getvalue(), base)
assert all((base[k] == new[k]).all() for k in new)
import deltawire.board, deltawire.checkpoint, deltawire.cli
board = dw.Board(sys.argv[1], create=True)
with board.publisher(run="plain") as publisher:
    publisher.publish_anchor(0, new)
assert board.head() == 0
"""


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True
    )


def test_works_without_torch(tmp_path: Path) -> None:
    """Codec, board and command line need numpy alone."""
    done = run_python(WITHOUT_TORCH, tmp_path / "board")
    assert done.returncode == 0, done.stderr


def test_import_does_not_load_torch() -> None:
    """Even where torch is installed, it is loaded by those who pass torch tensors."""
    code = "import sys, deltawire, deltawire.cli; print([m for m in sys.modules if m == 'torch'])"
    done = run_python(code)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release wheel built from this tree."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "maturin", "build", "--release", "--locked", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_wheel_is_abi3(wheel: Path) -> None:
    """One wheel serves Python 3.11 and all later ones."""
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version) == ("deltawire", dw.__version__)
    assert (python, abi) == ("cp311", "abi3")
    assert platform.startswith(("manylinux", "linux"))


def test_wheel_contents(wheel: Path) -> None:
    """All of the package with its types and licence, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(
            next(name for name in names if name.endswith(".dist-info/METADATA"))
        ).decode()
    assert {"deltawire/py.typed", "deltawire/_native.pyi"} <= set(names)
    assert any(re.fullmatch(r"deltawire/_native\.abi3\.so", name) for name in names)
    assert any(name.endswith("/LICENSE") for name in names)
    modules = {f"deltawire/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    strangers = [name for name in names if re.search(r"(^|/)(tests?|benches|spec)/|\.rs$", name)]
    assert not strangers
    assert "Requires-Dist: numpy" in metadata
    required = [
        line
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert not [line for line in required if "torch" in line]


def test_extension_is_a_release_build() -> None:
    """A debug build is some twenty times slower and must not be measured by mistake."""
    assert _native.DEBUG_BUILD is False


@pytest.mark.parametrize("name", sorted(dw.__all__))
def test_public_names_are_documented(name: str) -> None:
    """Every public name exists; classes, functions and their public methods have docstrings."""
    thing = getattr(dw, name)
    if not (inspect.isclass(thing) or callable(thing)):
        return
    assert inspect.getdoc(thing), name
    if inspect.isclass(thing):
        methods = {
            key: value
            for key, value in vars(thing).items()
            if not key.startswith("_")
            and (inspect.isfunction(value) or isinstance(value, property))
        }
        assert not [f"{name}.{key}" for key, value in methods.items() if not inspect.getdoc(value)]


def test_all_is_complete() -> None:
    """Names of the fixed public surface, and every error."""
    fixed = {"diff", "apply", "stage", "inspect", "state_digest", "StreamWriter", "StreamReader"}
    fixed |= {"Board", "DeltaStats", "DeltaInfo", "TensorView", "Checkpoint"}
    assert fixed | {cls.__name__ for cls in ERRORS} <= set(dw.__all__)
    assert len(dw.__all__) == len(set(dw.__all__))


def test_error_kinds_agree() -> None:
    """Rust, Python and the error page have the same list; ``ERROR_KINDS`` is the Rust crates'."""
    kinds = [cls.kind for cls in SPECIFIC]
    assert len(kinds) == len(set(kinds))
    assert sorted(_native.ERROR_KINDS) == sorted(set(kinds) - PYTHON_ONLY)
    rows = re.findall(
        r"^\| `(\w+)` \| `([\w-]+)` \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted((cls.__name__, cls.kind) for cls in SPECIFIC)


def test_error_page_gives_exit_statuses() -> None:
    """A class stands under a heading with its exit status."""
    sections = re.split(r"^## ", (ROOT / "docs/errors.md").read_text(), flags=re.MULTILINE)
    for cls in SPECIFIC:
        (section,) = [text for text in sections if f"| `{cls.__name__}` |" in text]
        assert f"(exit status {cls.exit_status})" in section.splitlines()[0], cls.__name__


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_errors_survive_pickling(cls: type[errors.DeltawireError]) -> None:
    """With class, message and place."""
    error = cls("what to do", tensor="w", version=3, offset=17, path="a.dw")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert str(again) == str(error)
    for part in ("a.dw", "'w'", "3", "17", "what to do"):
        assert part in str(error)


def test_files_stay_small() -> None:
    """At most 600 lines a source file; tests and generated code aside."""
    sources = [
        path
        for folder in ("python", "rust", "benches", "spec")
        for suffix in ("*.py", "*.rs")
        for path in (ROOT / folder).rglob(suffix)
        if "tests" not in path.parts and "target" not in path.parts
    ]
    assert sources
    lengths = {path: path.read_text().count("\n") for path in sources}
    assert {str(path): lines for path, lines in lengths.items() if lines > 600} == {}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_a_page(verb: str) -> None:
    """``deltawire VERB --help`` works, and the README or a page in docs/ shows the verb."""
    program = Path(sys.executable).with_name("deltawire")
    done = subprocess.run([program, verb, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage:")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(re.search(rf"\bdeltawire {verb}\b", page.read_text()) for page in pages)


def test_version_is_one() -> None:
    """pyproject.toml, Cargo.toml and the module agree."""
    for manifest in ("pyproject.toml", "Cargo.toml"):
        assert f'version = "{dw.__version__}"' in (ROOT / manifest).read_text(), manifest


def test_decisions_follow_the_template() -> None:
    """Every page has a status, the template's sections, and a number of its own."""
    folder = ROOT / "spec" / "decisions"
    template = (folder / "0000-template.md").read_text()
    sections = re.findall(r"^## .*$", template, re.MULTILINE)
    numbers = []
    for page in folder.glob("[0-9]*.md"):
        text = page.read_text()
        numbers.append(page.name[:4])
        assert re.findall(r"^## .*$", text, re.MULTILINE)[: len(sections)] == sections, page.name
        assert re.search(r"^Status: ", text, re.MULTILINE), page.name
    assert len(numbers) == len(set(numbers))
