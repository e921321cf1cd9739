"""``deltawire keygen`` and ``deltawire introduce``, and the arguments about keys of other verbs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import text
from .arguments import BOARD, UsageError, add_report, count
from .output import Output
from .store import add_store, store_options

if TYPE_CHECKING:
    from .. import Trust


def add_parsers(verbs: Any) -> None:
    """Add the verbs."""
    parser = verbs.add_parser(
        "keygen",
        help="make a key that signs what is published",
        description="Write NAME.key, the private half for the publisher, readable by its owner "
        "alone, and NAME.pub, the public half for readers. Neither file may exist.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the key, in every signature")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="directory for both files (default: this one)",
    )
    add_report(parser)
    parser.set_defaults(run=run_keygen)

    parser = verbs.add_parser(
        "introduce",
        help="have readers who trust a key trust a new one from a version on",
        description="Store on BOARD, signed with the old key, that a new key signs from a version "
        "on and the old one only before it. Stop the publisher first, and go on with the new key.",
    )
    parser.add_argument("board", metavar="BOARD", help=BOARD)
    parser.add_argument("new", metavar="NEW.pub", type=Path, help="the new key's public half")
    parser.add_argument(
        "--key", metavar="OLD.key", type=Path, required=True, help="the key that signed so far"
    )
    parser.add_argument(
        "--version",
        type=count,
        metavar="N",
        help="first version of the new key (default: the one after the newest)",
    )
    add_store(parser)
    add_report(parser)
    parser.set_defaults(run=run_introduce)


def add_key(parser: argparse.ArgumentParser) -> None:
    """``--key``."""
    parser.add_argument(
        "--key", metavar="FILE", type=Path, help="private key that signs (see deltawire keygen)"
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """``--trusted-keys``."""
    parser.add_argument(
        "--trusted-keys",
        metavar="FILE",
        type=Path,
        action="append",
        help="public keys, a file or a directory of .pub files: refuse what none of them signed; "
        "may be repeated (default: signatures are ignored)",
    )


def trust_of(arguments: argparse.Namespace, run: str | None = None) -> Trust | None:
    """The trusted keys that the arguments name.

    Args:
        run: the only run that is believed.
    """
    from .. import Trust

    if arguments.trusted_keys is None:
        if run is not None:
            raise UsageError("--run is about --trusted-keys; give both")
        return None
    return Trust(arguments.trusted_keys, run=run)


def run_keygen(arguments: argparse.Namespace) -> int:
    """Make a key; see the verb's description."""
    from ..board.trust import keygen

    key, private, public = keygen(arguments.name, arguments.output)
    Output(arguments).result(
        {
            "name": key.name,
            "fingerprint": key.fingerprint,
            "public_key": key.public.ed25519,
            "private_path": private,
            "public_path": public,
        },
        [
            f"{private}: private, for `deltawire publish --key`; keep it secret",
            f"{public}: public, for `deltawire pull --trusted-keys`",
            *text.fields(
                [("public key", key.public.ed25519.hex()), ("fingerprint", key.fingerprint)]
            ),
        ],
    )
    return 0


def run_introduce(arguments: argparse.Namespace) -> int:
    """Introduce a key; see the verb's description."""
    import deltawire as dw

    new = dw.PublicKey.load(arguments.new)
    key = dw.SigningKey.load(arguments.key)
    trust = dw.Trust([key.public])
    board = dw.Board(arguments.board, trust=trust, options=store_options(arguments))
    first = board.introduce_key(new, by=key, first=arguments.version)
    Output(arguments).result(
        {
            "board": arguments.board,
            "key": new.name,
            "fingerprint": new.fingerprint,
            "by": key.name,
            "version": first,
        },
        [
            f"{arguments.board}: key {new.name} signs from version {first} on, {key.name} only "
            "before it",
            *text.fields([("fingerprint", new.fingerprint)]),
        ],
    )
    return 0
