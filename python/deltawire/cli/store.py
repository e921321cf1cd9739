"""Options of verbs that work on a board: how a remote store is reached."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import StoreOptions


def add_store(parser: argparse.ArgumentParser) -> None:
    """``--endpoint``, ``--region``, ``--allow-http`` and ``--cache``."""
    group = parser.add_argument_group(
        "remote boards",
        "s3://, gs://, az:// and https:// URLs. Credentials come from the environment, or the "
        "machine's metadata service, as for the cloud's own tools.",
    )
    group.add_argument("--endpoint", metavar="URL", help="service to use, if not the cloud's own")
    group.add_argument("--region", metavar="NAME", help="region of an S3 bucket")
    group.add_argument(
        "--allow-http", action="store_true", help="accept an http:// endpoint, unencrypted"
    )
    group.add_argument(
        "--cache", type=Path, metavar="DIR", help="directory that keeps downloaded objects"
    )


def store_options(arguments: argparse.Namespace) -> StoreOptions:
    """What these options say."""
    from .. import StoreOptions

    return StoreOptions(
        endpoint=arguments.endpoint,
        region=arguments.region,
        allow_http=arguments.allow_http,
        cache=arguments.cache,
    )
