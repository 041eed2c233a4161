# SPDX-License-Identifier: Apache-2.0
"""The file system that an archive is on, the same for driver and executors: a folder, or a URI that pyarrow opens.

``file``, ``s3``, ``gs``, ``abfs`` and ``hdfs`` (which needs libhdfs and Hadoop's class path). Spark writes to it by its
own connector, under `Store.spark_uri`. `Store.place` is what makes a file visible. A folder and HDFS rename: at once,
or not. An object store copies and removes: the copy is complete as soon as it is there at all, and whoever dies in
between does both again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable

if TYPE_CHECKING:
    from pyarrow import fs


# What Hadoop calls a scheme, and whether a login may come before its host.
_HADOOP_SCHEMES = {"s3": ("s3a", True), "gs": ("gs", True)}


class Store:
    """Paths are relative to the location, with ``/``. Every call raises `ArchiveUnavailable`."""

    def __init__(self, location: str) -> None:
        """Raises `ConfigurationError`: no location that can be."""
        self.location = location
        self._files, self._base = _open(location)
        self._is_local = self._files.type_name == "local"

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """A new file, complete and on its disk at the end of the block."""
        full = self._full(path)
        with _translated(full):
            self._files.create_dir(full.rpartition("/")[0])
            with self._files.open_output_stream(full) as stream:
                yield stream
            self._sync(full)

    def sync(self, path: str) -> None:
        """A file that another process has written: on its disk from now on."""
        full = self._full(path)
        with _translated(full):
            self._sync(full)

    def spark_uri(self, path: str) -> str:
        """The same place in Hadoop's words. Logins within the location are not told: Spark finds its own."""
        if self._is_local:
            return f"file://{self._full(path)}"
        told = urlsplit(self.location)
        scheme, login = _HADOOP_SCHEMES.get(told.scheme, (told.scheme, False))
        host = told.netloc.rpartition("@")[2] if login else told.netloc
        return f"{scheme}://{host}{told.path.rstrip('/')}/{path}"

    def reading(self, path: str) -> Any:
        """A file to read at any place of it."""
        full = self._full(path)
        with _translated(full):
            return self._files.open_input_file(full)

    @contextlib.contextmanager
    def decoding(self, path: str) -> Iterator[None]:
        """For what reads an opened file of Parquet: its errors as `ArchiveUnavailable`, and `ArchiveDamaged`."""
        from pyarrow import ArrowInvalid

        full = self._full(path)
        try:
            with _translated(full):
                yield
        except ArrowInvalid as error:
            raise ArchiveDamaged(f"{full} is no whole file of Parquet: {error}") from error

    def read_small(self, path: str) -> bytes | None:
        """All of a file; ``None`` where there is none."""
        full = self._full(path)
        with _translated(full):
            try:
                with self._files.open_input_stream(full) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def size(self, path: str) -> int | None:
        """Bytes; ``None`` where there is no such file."""
        full = self._full(path)
        with _translated(full):
            return self._files.get_file_info(full).size  # type: ignore[no-any-return]

    def place(self, staged: str, final: str) -> None:
        """Move a file to where readers find it; one that is there already stays. Raises `ArchiveDamaged`."""
        source, target = self._full(staged), self._full(final)
        with _translated(target):
            self._files.create_dir(target.rpartition("/")[0])
            try:
                self._files.move(source, target)
            except OSError:
                if self.size(staged) is not None:
                    raise
                # Somebody else has, or this process before it died.
                if self.size(final) is None:
                    raise ArchiveDamaged(f"{target} is in the manifest, but neither there nor at {source}") from None
            self._sync(target.rpartition("/")[0])

    def folders(self, path: str) -> list[str]:
        """Names of those in a folder, which need not exist."""
        from pyarrow import fs

        return [info.base_name for info in self._listed(path) if info.type == fs.FileType.Directory]

    def files(self, path: str) -> dict[str, int]:
        """Names and sizes of those in a folder, which need not exist."""
        from pyarrow import fs

        return {info.base_name: info.size for info in self._listed(path) if info.type == fs.FileType.File}

    def files_below(self, path: str) -> list[str]:
        """Paths of those in a folder, which need not exist, and in all that are in it."""
        from pyarrow import fs

        found = self._listed(path, recursive=True)
        return sorted(
            f"{path}{info.path.removeprefix(self._full(path))}" for info in found if info.type == fs.FileType.File
        )

    def remove_file(self, path: str) -> None:
        """One that is gone is no error."""
        full = self._full(path)
        with _translated(full), contextlib.suppress(FileNotFoundError):
            self._files.delete_file(full)

    def remove_folder(self, path: str) -> None:
        """With all that is in it; one that is gone is no error."""
        full = self._full(path)
        with _translated(full), contextlib.suppress(FileNotFoundError):
            self._files.delete_dir(full)

    def remove_empty_folder(self, path: str) -> bool:
        """Whether it is gone. Elsewhere than on a disk it stays: what comes into it meanwhile would go with it."""
        if not self._is_local:
            return False
        full = self._full(path)
        with _translated(full):
            try:
                os.rmdir(full)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    raise
                return error.errno == errno.ENOENT
        return True

    def _listed(self, path: str, *, recursive: bool = False) -> list[Any]:
        from pyarrow import fs

        full = self._full(path)
        selector = fs.FileSelector(full, allow_not_found=True, recursive=recursive)
        with _translated(full):
            return self._files.get_file_info(selector)  # type: ignore[no-any-return]

    def _full(self, path: str) -> str:
        return f"{self._base}/{path}"

    def _sync(self, full: str) -> None:
        # The database remembers a commit through a loss of power; so must the disk the files that it speaks of.
        if self._is_local:
            opened = os.open(full, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def _open(location: str) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    if "://" not in location:
        if not os.path.isabs(location):
            raise ConfigurationError(
                f"the archive's location is {location!r}: write an absolute path, or a URI such as s3://bucket/archive"
            )
        return fs.LocalFileSystem(), os.path.normpath(location)
    try:
        files, base = fs.FileSystem.from_uri(location)
    except (OSError, ValueError, NotImplementedError, ImportError) as error:
        # Of a URI that may have a password in it, only the scheme is quoted.
        scheme = location.partition("://")[0]
        raise ConfigurationError(
            f"the archive's location, a URI of {scheme!r}, cannot be opened: {_told(error)}"
        ) from None
    if not base.strip("/"):
        raise ConfigurationError("the archive's location is a URI without a bucket or folder: name one")
    return files, base.rstrip("/")


def _told(error: Exception) -> str:
    return type(error).__name__ if "@" in str(error) else (str(error).splitlines() or [""])[0]


@contextlib.contextmanager
def _translated(full: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveUnavailable(f"{full}: {error.strerror or error}") from error
