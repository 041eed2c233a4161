# SPDX-License-Identifier: Apache-2.0
"""Opens the file system that a location names, the same way on the driver and on every executor.

An absolute path is a folder. A URI of ``file``, ``s3``, ``gs`` or ``abfs`` is opened by pyarrow's own clients; ``s3a``,
as Hadoop writes it, is ``s3``. ``hdfs`` is opened by hdfs-native, because pyarrow's client needs Hadoop's native
library, which no package ships.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from monasca_common.kafka.errors import ConfigurationError

if TYPE_CHECKING:
    from pyarrow import fs

_SAME = {"s3a": "s3", "s3n": "s3"}
# An attempt waits twice as long as the one before; 3 take 5 s, and the default over two minutes.
_HDFS_OPTIONS = {"dfs.client.failover.max.attempts": "3"}
# A forked child, such as the one that becomes Spark's Java, drops what fsspec has cached. The end of a client waits for
# its threads, which a child does not have: so none may end there.
_HDFS_CLIENTS: set[Any] = set()


def open_file_system(location: str) -> tuple[fs.FileSystem, str]:
    """The file system, and the path of the location in it. Raises `ConfigurationError`."""
    from pyarrow import fs

    scheme, separator, rest = location.partition("://")
    if not separator:
        if not os.path.isabs(location):
            raise ConfigurationError(
                f"the archive's location is {location!r}: write an absolute path, or a URI such as s3://bucket/archive"
            )
        return fs.LocalFileSystem(), os.path.normpath(location)
    try:
        if scheme == "hdfs":
            files, base = _hdfs(rest)
        else:
            files, base = fs.FileSystem.from_uri(f"{_SAME.get(scheme, scheme)}://{rest}")
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        # Only the scheme is quoted, because the URI may contain a password.
        raise ConfigurationError(
            f"the archive's location, a URI of {scheme!r}, cannot be opened: {_told(error)}"
        ) from None
    if not base.strip("/"):
        raise ConfigurationError("the archive's location is a URI without a bucket or folder: name one")
    return files, base.rstrip("/")


def _hdfs(rest: str) -> tuple[fs.FileSystem, str]:
    from pyarrow import PythonFile, fs

    class HdfsHandler(fs.FSSpecHandler):  # type: ignore[misc]  # it has no annotations
        """fsspec takes every error of `isfile` for a file that is not there, and of `find` for an empty folder."""

        def open_input_stream(self, path: str) -> Any:
            if self.fs.info(path)["type"] != "file":
                raise FileNotFoundError(path)
            return PythonFile(self.fs.open(path, mode="rb"), mode="r")

        open_input_file = open_input_stream

        def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
            assert not selector.recursive
            try:
                if self.fs.info(selector.base_dir)["type"] != "directory":
                    raise NotADirectoryError(selector.base_dir)
                return [self._create_file_info(each["name"], each) for each in self.fs.ls(selector.base_dir)]
            except FileNotFoundError:
                if selector.allow_not_found:
                    return []
                raise

    authority, _, path = rest.partition("/")
    host, _, port = authority.partition(":")
    if port and not port.isdecimal():
        raise ValueError("its port is not a number: write hdfs://host:port/folder, or hdfs://nameservice/folder")
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError:
        raise ImportError("hdfs-native is not installed: install monasca-common[hdfs]") from None
    client = HdfsFileSystem(host or None, int(port) if port else None, **_HDFS_OPTIONS)
    _HDFS_CLIENTS.add(client)
    return fs.PyFileSystem(HdfsHandler(client)), f"/{path}"


def _told(error: Exception) -> str:
    return type(error).__name__ if "@" in str(error) else (str(error).splitlines() or [""])[0]
