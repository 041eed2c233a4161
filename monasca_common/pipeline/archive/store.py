# SPDX-License-Identifier: Apache-2.0
"""The files of an archive, in a folder or at a URI that driver and executors share. `Store.place` makes a file visible.
Folders and HDFS rename atomically. An object store copies and removes: a copy is complete as soon as it is visible, and
after a crash in between the next process repeats both. S3 cannot copy objects larger than 5 GiB, so
`Store.largest_bytes` is checked before a file is committed. An absolute path is a folder. pyarrow's own clients open a
URI; ``s3a``, which Hadoop uses, is read as ``s3``.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable

if TYPE_CHECKING:
    from pyarrow import fs


_S3_COPIES_BYTES = 5 * 1024**3
_SAME = {"s3a": "s3", "s3n": "s3"}


class Store:
    """The files of an archive. Paths are relative to the location, with ``/``. Every call raises
    `ArchiveUnavailable`."""

    def __init__(self, location: str) -> None:
        """Raises `ConfigurationError` for an invalid location."""
        self.location = location
        self._files, self._base = open_file_system(location)
        self._is_local = self._files.type_name == "local"
        #: The size of the largest file that `place` can move, or ``None`` for no limit.
        self.largest_bytes = _S3_COPIES_BYTES if self._files.type_name == "s3" else None

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """Open a new file; at the end of the block it is complete and on disk."""
        with self._at(path) as full:
            self._files.create_dir(full.rpartition("/")[0])
            with self._files.open_output_stream(full) as stream:
                yield stream
            self._sync(full)

    def reading(self, path: str) -> Any:
        """Open a file for random access."""
        with self._at(path) as full:
            return self._files.open_input_file(full)

    @contextlib.contextmanager
    def decoding(self, path: str) -> Iterator[None]:
        """Translate the errors of reading an open Parquet file to `ArchiveUnavailable` and `ArchiveDamaged`."""
        from pyarrow import ArrowInvalid

        try:
            with self._at(path) as full:
                yield
        except ArrowInvalid as error:
            raise ArchiveDamaged(f"{full} is not a complete Parquet file: {error}") from error

    def read_small(self, path: str) -> bytes | None:
        """Return the content of a file, or ``None`` if it does not exist."""
        with self._at(path) as full:
            try:
                with self._files.open_input_stream(full) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def size(self, path: str) -> int | None:
        """Return the size in bytes, or ``None`` if the file does not exist."""
        with self._at(path) as full:
            return self._files.get_file_info(full).size  # type: ignore[no-any-return]

    def require_folder(self, path: str) -> None:
        """Raise `ConfigurationError` if the folder does not exist."""
        from pyarrow import fs

        with self._at(path) as full:
            found = self._files.get_file_info(full).type
        if found != fs.FileType.Directory:
            raise ConfigurationError(
                f"{full} does not exist: the archive's location or topic is wrong, or nothing was archived yet"
            )

    def place(self, staged: str, final: str) -> None:
        """Move a file to its final path. An existing file at that path is kept. Raises `ArchiveDamaged`."""
        source = f"{self._base}/{staged}"
        with self._at(final) as target:
            self._files.create_dir(target.rpartition("/")[0])
            try:
                self._files.move(source, target)
            except OSError:
                if self.size(staged) is not None:
                    raise
                # Another process or an earlier attempt has moved the file.
                if self.size(final) is None:
                    raise ArchiveDamaged(
                        f"{target} is in the manifest, but exists neither there nor at {source}"
                    ) from None
            self._sync(target.rpartition("/")[0])

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder. A missing folder counts as empty."""
        from pyarrow import fs

        return [info.base_name for info in self._listed(path) if info.type == fs.FileType.Directory]

    def files(self, path: str) -> dict[str, int]:
        """Return the names and sizes of the files in a folder. A missing folder counts as empty."""
        return {info.base_name: info.size for info in self._listed(path) if info.is_file}

    def remove_file(self, path: str) -> None:
        """Remove a file. A missing file is not an error."""
        with self._at(path) as full, contextlib.suppress(FileNotFoundError):
            self._files.delete_file(full)

    def remove_folder(self, path: str) -> None:
        """Remove a folder with its content. A missing folder is not an error."""
        with self._at(path) as full, contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(full)

    def remove_empty_folder(self, path: str) -> bool:
        """Remove a folder if it is empty, and return whether it was removed. Only local folders are removed: in other
        stores, a file that is added in the meantime would be removed with the folder.
        """
        if not self._is_local:
            return False
        with self._at(path) as full:
            try:
                os.rmdir(full)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                return error.errno == errno.ENOENT
        return True

    def _listed(self, path: str) -> list[Any]:
        from pyarrow import fs

        with self._at(path) as full:
            selector = fs.FileSelector(full, allow_not_found=True)
            return self._files.get_file_info(selector)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _at(self, path: str) -> Iterator[str]:
        """Yield the path in the file system, and translate its errors to `ArchiveUnavailable`."""
        full = f"{self._base}/{path}"
        try:
            yield full
        except OSError as error:
            raise ArchiveUnavailable(f"{full}: {error.strerror or error}") from error

    def _sync(self, full: str) -> None:
        # A commit in the database survives a power failure, so the files in the manifest must also survive it.
        if self._is_local:
            opened = os.open(full, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def open_file_system(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the location's path in it. Raises `ConfigurationError`."""
    from pyarrow import fs

    scheme, separator, rest = location.partition("://")
    if not separator:
        if not os.path.isabs(location):
            raise ConfigurationError(
                f"the archive's location is {location!r}: write an absolute path, or a URI such as s3://bucket/archive"
            )
        return fs.LocalFileSystem(), os.path.normpath(location)
    try:
        files, base = fs.FileSystem.from_uri(f"{_SAME.get(scheme, scheme)}://{rest}")
    except (OSError, ValueError) as error:
        # Only the scheme is quoted, because the URI may contain a password.
        raise ConfigurationError(
            f"the archive's location, a {scheme!r} URI, cannot be opened: {_brief(error)}"
        ) from None
    if not base.strip("/"):
        raise ConfigurationError("the archive's location is a URI without a bucket or folder: name one")
    return files, base.rstrip("/")


def _brief(error: Exception) -> str:
    return type(error).__name__ if "@" in str(error) else (str(error).splitlines() or [""])[0]
