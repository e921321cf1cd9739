"""Checkpoints as mappings of tensor views over memory-mapped files."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from ..closing import Closing
from ..errors import CorruptCheckpoint, TargetError, TargetTorn
from ..tensors import TensorView
from .directory import Layout, extra_files, find_layout
from .durable import Progress, copy_file, new_directory, store_error, sync_directory
from .header import Entry, key_offset, read_header


class _MappedFile:
    """One safetensors file: its header, and its bytes as one memory map."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Open, check and map the file.

        Raises:
            CorruptCheckpoint: malformed, or shorter than it says.
            TargetError: to be written, and read-only.
            StoreError: cannot be opened.
        """
        self.path = path
        try:
            # Before the open: opening a FIFO would wait for its other end.
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise CorruptCheckpoint("not an ordinary file", path=str(path))
            if writable and not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
                # The system would let root write it; whoever removed the bits meant it.
                raise PermissionError(errno.EACCES, "no write permission for anyone")
            flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
            self.fd = os.open(path, flags)
        except (OSError, ValueError) as error:
            if writable and isinstance(error, OSError) and error.errno in _READ_ONLY:
                raise TargetError(
                    f"the file cannot be written: {error.strerror}; allow it (chmod u+w), or "
                    "write the result to a new directory",
                    path=str(path),
                ) from error
            raise store_error(error, path, "cannot be opened") from error
        try:
            size = os.fstat(self.fd).st_size
            self.header = read_header(self.fd, size, str(path))
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            # The header proved that all tensors lie within the mapped length: no access
            # through a view is beyond the file's end.
            self.map = mmap.mmap(self.fd, size, access=access)
            if not writable:
                # Readers go front to back once; writers touch scattered elements.
                with contextlib.suppress(OSError):
                    self.map.madvise(mmap.MADV_SEQUENTIAL)
        except (OSError, ValueError) as error:
            os.close(self.fd)
            raise store_error(error, path, "cannot be mapped") from error
        except BaseException:
            os.close(self.fd)
            raise

    def view(self, entry: Entry) -> TensorView:
        return TensorView.from_bytes(entry.dtype, entry.shape, self.map, offset=entry.start)

    def flush(self) -> None:
        try:
            self.map.flush()
            os.fsync(self.fd)
        except OSError as error:
            raise TargetTorn(
                f"the changes could not be written to disk: {error.strerror}; correct the cause "
                "and apply the same delta again",
                path=str(self.path),
            ) from error

    def close(self) -> None:
        # Views that are still alive keep the map; it goes with the last of them.
        with contextlib.suppress(BufferError):
            self.map.close()
        os.close(self.fd)


_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY}


class Checkpoint(Mapping[str, TensorView], Closing):
    """The tensors of a safetensors file or a Hugging Face checkpoint directory.

    A read-only mapping of tensor names to :class:`TensorView`, whose bytes are memory-mapped:
    nothing is loaded before it is looked at, and what is loaded is file-backed, so it counts
    as page cache and not as memory in use. The order is that of the files in the index (or by
    name), and of the bytes in each file.

    Open with :meth:`open`. Use as a context manager, or :meth:`close`; views that are still
    held stay valid after that.
    """

    def __init__(self, path: Path, layout: Layout, *, writable: bool) -> None:
        """Use :meth:`open`."""
        self._path = path
        self._layout = layout
        self._writable = writable
        self._closed = False
        self._files: list[_MappedFile] = []
        self._entries: dict[str, tuple[_MappedFile, Entry]] = {}
        self._metadata: dict[str, str] = {}
        try:
            for file_path in layout.files:
                self._add(_MappedFile(file_path, writable=writable))
            self._check_index()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, writable: bool = False) -> Self:
        """Map a checkpoint.

        Args:
            path: a ``.safetensors`` file, or a directory with or without
                ``model.safetensors.index.json``.
            writable: map for changes in place; call :meth:`flush` to make them durable.

        Raises:
            CorruptCheckpoint: malformed, incomplete, or with a tensor in two files; names the
                file, the tensor and the byte offset.
            TargetError: to be written, and read-only or a symbolic link into a shared store.
            StoreError: does not exist or cannot be read.
        """
        path = Path(path)
        layout = find_layout(path)
        if writable and path not in layout.files:
            for file in layout.files:
                if file.is_symlink():
                    raise TargetError(
                        f"the file is a symbolic link to {os.readlink(file)}, which others may "
                        "share; write the result to a new directory, or replace the link by a "
                        "copy",
                        path=str(file),
                    )
        return cls(path, layout, writable=writable)

    def _add(self, file: _MappedFile) -> None:
        self._files.append(file)
        for entry in file.header.entries:
            earlier = self._entries.get(entry.name)
            if earlier is not None:
                raise CorruptCheckpoint(
                    f"the tensor is also in {earlier[0].path.name}; remove one of the two",
                    path=str(file.path),
                    tensor=entry.name,
                    offset=entry.start,
                )
            self._entries[entry.name] = (file, entry)
        for key, value in file.header.metadata.items():
            self._metadata.setdefault(key, value)

    def _check_index(self) -> None:
        """Every tensor of the index must be in the file that it names."""
        for tensor, name in self._layout.weight_map.items():
            held = self._entries.get(tensor)
            if held is None or held[0].path.name != name:
                where = "" if held is None else f" ({held[0].path.name} holds it)"
                raise CorruptCheckpoint(
                    f"the index places the tensor in {name}, which does not hold it{where}; get "
                    "the complete checkpoint",
                    path=str(self._layout.index),
                    tensor=tensor,
                    offset=key_offset(self._layout.index_raw, tensor),
                )

    # --- Mapping ---------------------------------------------------------------------

    def __getitem__(self, name: str) -> TensorView:
        """The view of a tensor; ``KeyError`` where there is none of that name."""
        file, entry = self._entries[name]
        if self._closed:
            raise ValueError(f"the checkpoint {self._path} is closed")
        return file.view(entry)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        return (
            f"<Checkpoint {str(self._path)!r}: {len(self)} tensors, {self.nbytes} bytes, "
            f"{len(self._files)} files{', writable' if self._writable else ''}>"
        )

    # Two checkpoints are compared by deltas, not by ==.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    # --- Properties ------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """What was opened: the file or the directory."""
        return self._path

    @property
    def files(self) -> list[Path]:
        """The weight files in reading order."""
        return list(self._layout.files)

    @property
    def index(self) -> Path | None:
        """The index file, where there is one."""
        return self._layout.index

    @property
    def writable(self) -> bool:
        """Whether the tensors may be changed in place."""
        return self._writable

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for _, entry in self._entries.values())

    @property
    def metadata(self) -> dict[str, str]:
        """``__metadata__`` of all files; the first file that has a key decides."""
        return dict(self._metadata)

    # --- Lifetime --------------------------------------------------------------------

    def flush(self) -> None:
        """Write changed bytes to disk and wait for it (msync and fsync).

        Raises:
            TargetTorn: the disk refused; the same delta may be applied again.
        """
        if self._writable and not self._closed:
            for file in self._files:
                file.flush()

    def close(self) -> None:
        """Release the files. Changes that were not flushed still reach the disk, later."""
        if not self._closed:
            self._closed = True
            for file in self._files:
                file.close()

    # --- Copies ----------------------------------------------------------------------

    def copy_to(
        self,
        directory: str | os.PathLike[str],
        *,
        files_only: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Copy the checkpoint into a new directory, byte for byte.

        The copy appears under its name once it is complete and on disk, and shares storage
        with the original where the filesystem can. Nothing is left behind on an error.

        Args:
            directory: must not exist, or be empty.
            files_only: only the weight files and their index. Otherwise the configuration,
                tokenizer and code files beside them too.
            progress: called with the number of weight bytes just copied.

        Raises:
            TargetError: ``directory`` exists and is not empty.
            StoreError: a full disk or another failure of the filesystem.
        """
        with new_directory(Path(directory)) as temporary:
            self.copy_into(temporary, files_only=files_only, progress=progress)

    def copy_into(
        self, directory: Path, *, files_only: bool = False, progress: Progress | None = None
    ) -> None:
        """As :meth:`copy_to`, into a directory that is not under its final name yet.

        Raises:
            OSError: as from the system; what was copied so far stays.
        """
        for file in self._layout.files:
            copy_file(file, directory / file.name, progress=progress)
        others = [] if self._layout.index is None else [self._layout.index]
        if not files_only and self._path.is_dir():
            others += extra_files(self._path)
        for file in others:
            copy_file(file, directory / file.name)
        sync_directory(directory)
