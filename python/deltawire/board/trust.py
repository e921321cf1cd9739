"""Keys: who signs what is published, and whom a reader believes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self

from .. import _native
from ..checkpoint.durable import store_error
from ..errors import KeyFileError

#: Endings of the two files of a key.
PRIVATE_SUFFIX = ".key"
PUBLIC_SUFFIX = ".pub"


@dataclass(frozen=True)
class PublicKey:
    """A public key, and the versions for which a reader believes it.

    Attributes:
        name: of A-Z a-z 0-9 . _ -, at most 64.
        ed25519: its 32 bytes.
        first: the first version that it may sign.
        last: the last; None: no end.
        revoked: it may sign nothing any more, whatever else is said.
    """

    name: str
    ed25519: bytes
    first: int = 0
    last: int | None = None
    revoked: bool = False

    def __post_init__(self) -> None:
        """Check name and bytes.

        Raises:
            KeyFileError: an impossible name, or bytes that are no Ed25519 public key.
        """
        _native.check_public_key(self.name, self.ed25519.hex())

    @property
    def fingerprint(self) -> str:
        """What people compare: 32 hexadecimal digits, from the BLAKE3 of the key."""
        return _native.check_public_key(self.name, self.ed25519.hex())

    def __repr__(self) -> str:
        return f"<PublicKey {self.name!r} {self.fingerprint}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new public key file (``spec/commit-v1.md``, "Key files").

        Raises:
            KeyFileError: the file exists.
            StoreError: it cannot be written.
        """
        _native.save_public_key(self.name, self.ed25519.hex(), os.fspath(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PublicKey:
        """Read a file with one public key.

        Raises:
            KeyFileError, StoreError: it is none, or cannot be read.
        """
        keys = load_keys(path)
        if len(keys) != 1:
            raise KeyFileError("holds several keys; name a file with one", path=os.fspath(path))
        return keys[0]


class SigningKey:
    """A private key. Nothing shows its secret, and it cannot be pickled or copied.

    Made by :meth:`generate` (``deltawire keygen``) and :meth:`load`.
    """

    __slots__ = ("_key",)

    def __init__(self, key: _native.SigningKey) -> None:
        """Use :meth:`generate` or :meth:`load`."""
        self._key = key

    @classmethod
    def generate(cls, name: str) -> Self:
        """Draw a new key from the operating system.

        Args:
            name: that its signatures carry; of A-Z a-z 0-9 . _ -, at most 64.

        Raises:
            KeyFileError: an impossible name.
        """
        # A buffer that can be erased, as ``bytes`` cannot.
        seed = bytearray(32)
        with open("/dev/urandom", "rb", buffering=0) as source:
            if source.readinto(seed) != len(seed):
                raise OSError("the operating system gave too few random bytes")
        return cls(_native.SigningKey.from_seed(name, seed))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a private key file.

        Raises:
            KeyFileError: no private key, or one that others may read.
            StoreError: it cannot be read.
        """
        return cls(_native.SigningKey.load(os.fspath(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file with mode 0600.

        Raises:
            KeyFileError: the file exists.
            StoreError: it cannot be written.
        """
        self._key.save(os.fspath(path))

    @property
    def name(self) -> str:
        """The key's name."""
        return self._key.name

    @property
    def public(self) -> PublicKey:
        """The public half, which readers are given."""
        return PublicKey(self._key.name, bytes.fromhex(self._key.ed25519))

    @property
    def fingerprint(self) -> str:
        """The public half's."""
        return self.public.fingerprint

    @property
    def native(self) -> _native.SigningKey:
        """The key in the extension module."""
        return self._key

    def __repr__(self) -> str:
        return f"<SigningKey {self.name!r} {self.fingerprint}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key cannot be pickled or copied; load it from its file")


class Trust:
    """Whom a reader believes: manifests and anchor records that no such key signed are refused.

    Args:
        keys: public keys, paths of keyring files (one or more public key files in one), and paths
            of directories with ``.pub`` files.
        run: the only run whose versions are believed; None: any. Give it wherever one key signs
            several runs.
        introductions: whether a key that a trusted key introduced on the board (see
            :meth:`deltawire.Board.introduce_key`) is trusted too.

    Raises:
        KeyFileError: no key, two entries of one name, or a file that is no keyring.
        StoreError: a file cannot be read.
    """

    def __init__(
        self,
        keys: Iterable[PublicKey | str | os.PathLike[str]],
        *,
        run: str | None = None,
        introductions: bool = True,
    ) -> None:
        if isinstance(keys, str | os.PathLike):
            keys = [keys]
        entries: list[PublicKey] = []
        for key in keys:
            entries += [key] if isinstance(key, PublicKey) else load_keys(key)
        self.keys: Sequence[PublicKey] = tuple(entries)
        self.run = run
        self.introductions = introductions
        self.keyring()

    def __repr__(self) -> str:
        return f"<Trust {', '.join(key.name for key in self.keys)}>"

    def keyring(self) -> _native.Keyring:
        """A new keyring for one board, without what others have learned."""
        return _native.Keyring(
            [(k.name, k.ed25519.hex(), k.first, k.last, k.revoked) for k in self.keys],
            self.run,
            self.introductions,
        )


def load_keys(path: str | os.PathLike[str]) -> list[PublicKey]:
    """The keys of a keyring file, or of all ``.pub`` files of a directory.

    Raises:
        KeyFileError, StoreError: as :class:`Trust`.
    """
    source = Path(path)
    files = [source]
    if source.is_dir():
        try:
            files = sorted(p for p in source.iterdir() if p.suffix == PUBLIC_SUFFIX)
        except OSError as error:
            raise store_error(error, source, "cannot be read") from error
        if not files:
            raise KeyFileError(
                f"no {PUBLIC_SUFFIX} file in this directory; put public keys there",
                path=str(source),
            )
    entries: list[tuple[str, str, int, int | None, bool]] = []
    for file in files:
        entries += _native.load_keyring(str(file))
    return [
        PublicKey(name, bytes.fromhex(key), first, last, revoked)
        for name, key, first, last, revoked in entries
    ]


def keygen(name: str, directory: str | os.PathLike[str]) -> tuple[SigningKey, Path, Path]:
    """Draw a key and write ``NAME.key`` (private, mode 0600) and ``NAME.pub``.

    Returns:
        The key and both paths.

    Raises:
        KeyFileError: an impossible name, or one of the files exists; none was changed.
        StoreError: they cannot be written.
    """
    key = SigningKey.generate(name)
    private = Path(directory) / f"{name}{PRIVATE_SUFFIX}"
    public = Path(directory) / f"{name}{PUBLIC_SUFFIX}"
    key.save(private)
    try:
        key.public.save(public)
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    return key, private, public
