# SPDX-License-Identifier: Apache-2.0
"""How many series a tenant may have: approximate, because workers share nothing.

A worker counts what the database has of a tenant when it first hears of it, and what it admits itself from then on.
So one worker is exact; several may each let through what the others admitted since. It learns anew every hour, for
series also end by retention. Without a database it starts from nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from monasca_common.api.problems import Problem
from monasca_common.models.series import series_id
from monasca_common.storage.errors import StorageError
from monasca_common.storage.reader import PageOf, Reader, SeriesFilter

LOG = logging.getLogger(__name__)

_PAGE = 10_000
_LEARN_AGAIN_SECONDS = 3600.0
_MAX_TENANTS = 1000  # the one that posted longest ago is forgotten, and learnt again when it posts
_RETRY_AFTER_SECONDS = 60


class _SeriesKey(msgspec.Struct):
    name: str
    dimensions: dict[str, str] = {}  # msgspec copies it for each object


_decode = msgspec.json.Decoder(_SeriesKey).decode


class _CachedSeries:
    __slots__ = ("ids", "learnt_at", "lock")

    def __init__(self) -> None:
        self.ids: set[bytes] | None = None  # None: not learnt yet
        self.learnt_at = 0.0
        self.lock = threading.Lock()


class SeriesLimit:
    """``limit`` series a tenant, ``region`` being this API's. Thread-safe; takes about 100 bytes a series."""

    def __init__(
        self, limit: int, region: str, reader: Reader | None, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._region = region
        self._reader = reader
        self._monotonic = monotonic
        self._tenants: OrderedDict[str, _CachedSeries] = OrderedDict()
        self._lock = threading.Lock()

    def admit(self, tenant: str, metrics: Sequence[bytes], indices: Sequence[int]) -> None:
        """Remember the series of these metrics. Raises `Problem` (429), and remembers none, if they are too many.

        ``indices``: their places in the request, for the error.
        """
        ids = [self._id(tenant, text) for text in metrics]
        known = self._of(tenant)
        with known.lock:
            seen = self._learnt(tenant, known)
            new = {own_id: index for own_id, index in zip(ids, indices, strict=True) if own_id not in seen}
            if new and len(seen) + len(new) > self._limit:
                raise self._refusal(len(seen), len(new), sorted(new.values()))
            seen.update(new)

    def _id(self, tenant: str, text: bytes) -> bytes:
        decoded = _decode(text)
        return series_id(tenant, self._region, decoded.name, decoded.dimensions)

    def _of(self, tenant: str) -> _CachedSeries:
        with self._lock:
            known = self._tenants.setdefault(tenant, _CachedSeries())
            self._tenants.move_to_end(tenant)
            if len(self._tenants) > _MAX_TENANTS:
                self._tenants.popitem(last=False)
            return known

    def _learnt(self, tenant: str, known: _CachedSeries) -> set[bytes]:
        now = self._monotonic()
        if known.ids is None or now - known.learnt_at > _LEARN_AGAIN_SECONDS:
            stored = self._stored(tenant)
            if stored is None:
                stored = known.ids or set()  # the database is unavailable: continue with what this worker saw
            known.ids, known.learnt_at = stored, now
        return known.ids

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
            LOG.warning("The series of a tenant cannot be counted, so its limit starts from what is posted: %s", error)
            return None
        return ids

    def _refusal(self, known: int, new: int, places: Sequence[int]) -> Problem:
        shown = ", ".join(map(str, places[:20])) + (", ..." if len(places) > 20 else "")
        return Problem(
            429,
            "Too Many Requests",
            f"the tenant has {known} of the {self._limit} series that it may have, and the request would add {new} "
            f"(at {shown}); nothing of it was taken: use fewer distinct dimensions, or have the limit raised",
            headers={"Retry-After": str(_RETRY_AFTER_SECONDS)},
        )
