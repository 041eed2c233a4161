# SPDX-License-Identifier: Apache-2.0
"""Limits the number of series per tenant. The limit is approximate, because workers do not share their counts.

A worker reads a tenant's series from the database at the first post, and again every hour because retention removes
series; in between, it adds the series of its own posts. A single worker therefore enforces the limit exactly; several
workers together can exceed it. Without a database, a worker counts from 0.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import msgspec
from cachetools import LRUCache

from monasca_common.api.problems import Problem
from monasca_common.models.series import series_id
from monasca_common.storage.errors import StorageError
from monasca_common.storage.reader import PageOf, SeriesFilter
from monasca_common.storage.sql.reader import SqlReader

LOG = logging.getLogger(__name__)

_PAGE = 10_000
_REFRESH_SECONDS = 3600.0
_MAX_TENANTS = 1000  # an additional tenant replaces the least recently used tenant
_RETRY_AFTER_SECONDS = 60


class _SeriesKey(msgspec.Struct):
    name: str
    dimensions: dict[str, str] = {}  # msgspec copies this default for each object


_decode = msgspec.json.Decoder(_SeriesKey).decode


class _CachedSeries:
    __slots__ = ("ids", "lock", "read_at")

    def __init__(self) -> None:
        self.ids: set[bytes] | None = None  # None: the series have not been read yet
        self.read_at = 0.0
        self.lock = threading.Lock()


class SeriesLimit:
    """Permits ``limit`` series per tenant in ``region``. It uses about 100 bytes of memory per series. Thread-safe."""

    def __init__(self, limit: int, region: str, reader: SqlReader | None) -> None:
        self._limit = limit
        self._region = region
        self._reader = reader
        self._tenants: LRUCache[str, _CachedSeries] = LRUCache(_MAX_TENANTS)
        self._lock = threading.Lock()

    def admit(self, tenant: str, metrics: Sequence[bytes], indices: Sequence[int]) -> None:
        """Count the series of these metrics. If they exceed the limit, count none and raise `Problem` (429).

        ``indices``: the positions of the metrics in the request, for the error message.
        """
        ids = [self._id(tenant, text) for text in metrics]
        with self._lock:
            cached: _CachedSeries = self._tenants.setdefault(tenant, _CachedSeries())
        with cached.lock:
            current = self._current(tenant, cached)
            new = {own_id: index for own_id, index in zip(ids, indices, strict=True) if own_id not in current}
            if new and len(current) + len(new) > self._limit:
                raise self._refusal(len(current), len(new), sorted(new.values()))
            current.update(new)

    def _id(self, tenant: str, text: bytes) -> bytes:
        decoded = _decode(text)
        return series_id(tenant, self._region, decoded.name, decoded.dimensions)

    def _current(self, tenant: str, cached: _CachedSeries) -> set[bytes]:
        now = time.monotonic()
        if cached.ids is None or now - cached.read_at > _REFRESH_SECONDS:
            stored = self._stored(tenant)
            if stored is None:
                stored = cached.ids or set()  # if the read fails, continue with the series known to this worker
            cached.ids, cached.read_at = stored, now
        return cached.ids

    def _stored(self, tenant: str) -> set[bytes] | None:
        ids: set[bytes] = set()
        if self._reader is None:
            return None
        which = SeriesFilter(tenant=tenant, region=self._region)
        after = None
        try:
            while len(ids) <= self._limit:
                page = [series.id for series in self._reader.iter_series(which, PageOf(_PAGE, after))]
                ids.update(page)
                if len(page) < _PAGE:
                    break
                after = page[-1].hex()
        except StorageError as error:
            LOG.warning("a tenant's series cannot be read; only the series of its posts are counted: %s", error)
            return None
        return ids

    def _refusal(self, current: int, new: int, places: Sequence[int]) -> Problem:
        shown = ", ".join(map(str, places[:20])) + (", ..." if len(places) > 20 else "")
        return Problem(
            429,
            "Too Many Requests",
            f"the tenant has {current} of at most {self._limit} series, and the request was refused because it would "
            f"add {new} (at {shown}): use fewer distinct dimensions, or ask the operator to raise the limit",
            headers={"Retry-After": str(_RETRY_AFTER_SECONDS)},
        )
