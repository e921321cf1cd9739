"""File handling that survives crashes: nothing has its final name before it is on disk.

New files and directories are made under a temporary name beside their target, synced and
renamed. On any error, also Ctrl-C, the temporary is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import StoreError, TargetError

Progress = Callable[[int], object]

_COPY_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
# Linux: make the target share the source's extents (Btrfs, XFS, bcachefs, ...).
_FICLONE = 0x40049409
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def store_error(error: OSError | ValueError, path: Path, what: str) -> StoreError:
    """The typed error for a failed file operation: what happened and what to do."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        reason = (
            f"{error.strerror}; free some space or choose another place, nothing was left behind"
        )
    elif isinstance(error, OSError):
        reason = error.strerror or str(error)
    else:
        reason = str(error)
    return StoreError(f"{what}: {reason}", path=str(path))


def read_small(path: Path, most: int) -> bytes | None:
    """The first ``most`` bytes of a file; None if there is none.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise store_error(error, path, "cannot be read") from error


def sync_directory(directory: Path) -> None:
    """Make renames and new names in ``directory`` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network filesystems cannot sync directories.
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
    finally:
        os.close(fd)


def temporary_beside(path: Path) -> Path:
    """A fresh hidden name in the same directory, so that a rename stays on one filesystem."""
    return path.parent / f".{path.name[:100]}.{secrets.token_hex(6)}.tmp"


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears complete under its name or not at all.

    Yields:
        A buffered binary file. An existing ``path`` is replaced at the end.

    Raises:
        StoreError: the file cannot be written (full disk, missing directory, ...).
    """
    path = Path(os.path.abspath(path))
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise store_error(error, path, "cannot be written") from error
    finally:
        # After the rename there is none.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_path(path: Path) -> Iterator[Path]:
    """As :func:`new_file`, for a file that is made and synced by other code.

    Yields:
        A temporary name that does not exist yet.

    Raises:
        TargetError: ``path`` exists.
        StoreError: the file cannot be written.
    """
    path = Path(os.path.abspath(path))
    refuse_existing(path)
    temporary = temporary_beside(path)
    try:
        yield temporary
        os.rename(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise store_error(error, path, "cannot be written") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Fill a directory that appears complete under its name or not at all.

    Yields:
        A temporary directory to fill. Its files must be synced by whoever writes them.

    Raises:
        TargetError: ``directory`` exists and is not an empty directory.
        StoreError: it cannot be made.
    """
    # abspath and not resolve: a dangling symlink at the target must not be followed.
    directory = Path(os.path.abspath(directory))
    refuse_existing(directory)
    temporary = temporary_beside(directory)
    try:
        temporary.mkdir()
        yield temporary
        sync_directory(temporary)
        os.rename(temporary, directory)
        sync_directory(directory.parent)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            refuse_existing(directory)
        if isinstance(error, FileNotFoundError) and not directory.parent.is_dir():
            raise StoreError(
                f"cannot be written: {directory.parent} is not a directory; make it first",
                path=str(directory),
            ) from error
        raise store_error(error, directory, "cannot be written") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(directory: Path) -> None:
    """Refuse a target that exists and is not an empty directory.

    Raises:
        TargetError: says what to do.
    """
    try:
        if not directory.is_symlink() and directory.is_dir():
            if not os.listdir(directory):
                if directory.samefile(Path.cwd()):
                    raise TargetError(
                        "the target is the current directory; name a new one", path=str(directory)
                    )
                return
            reason = "the directory exists and is not empty"
        elif os.path.lexists(directory):
            reason = "the path exists and is not a directory"
        else:
            return
    except (OSError, ValueError) as error:
        raise store_error(error, directory, "cannot be read") from error
    raise TargetError(f"{reason}; name a new directory, or remove it first", path=str(directory))


def copy_file(source: Path, target: Path, *, progress: Progress | None = None) -> None:
    """Copy a file's bytes, sharing extents where the filesystem can, and sync the copy.

    Args:
        target: must not exist. Gets default permissions, so a copy of a read-only file can be
            changed.
        progress: called with the number of bytes just copied.

    Raises:
        OSError: as from the system.
        StoreError: the source became shorter while it was copied.
    """
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        size = os.fstat(reader.fileno()).st_size
        done = 0
        if _clone(reader.fileno(), writer.fileno()):
            done = size
            if progress is not None:
                progress(size)
        for copied in _copy_in_kernel(reader.fileno(), writer.fileno(), size - done):
            done += copied
            if progress is not None:
                progress(copied)
        reader.seek(done)
        writer.seek(done)
        buffer = memoryview(bytearray(_BUFFER_BYTES if done < size else 0))
        while done < size:
            length = reader.readinto(buffer[: size - done])
            if not length:
                raise StoreError(
                    f"the file became shorter while it was copied (byte {done} of {size}); stop "
                    "whatever writes it and try again",
                    path=str(source),
                )
            write_all(writer.fileno(), buffer[:length])
            done += length
            if progress is not None:
                progress(length)
        os.fsync(writer.fileno())


def require_space(directory: Path, needed: int) -> None:
    """Refuse to begin what the filesystem cannot hold.

    For copies that are changed through a memory map: where a copy shares extents with its
    original, space is taken page by page later, and lack of it would kill the process.

    Raises:
        OSError: ``ENOSPC``, when fewer than ``needed`` bytes are free.
    """
    stats = os.statvfs(directory)
    free = stats.f_bavail * stats.f_frsize
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({needed} bytes needed, {free} free)"
        )


def write_all(fd: int, data: memoryview) -> None:
    """Write all of ``data`` at the file's position, however short single writes are."""
    while data:
        data = data[os.write(fd, data) :]


def _clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy_in_kernel(source: int, target: int, size: int) -> Iterator[int]:
    """Copy with copy_file_range as far as it goes; yields the bytes of each step."""
    done = 0
    while done < size:
        try:
            copied = os.copy_file_range(source, target, min(_COPY_BYTES, size - done), done, done)
        except OSError as error:
            if error.errno in _NO_SPACE or error.errno == errno.EIO:
                raise
            return  # not between these filesystems
        if copied == 0:
            return
        done += copied
        yield copied
