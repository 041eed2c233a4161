# SPDX-License-Identifier: Apache-2.0
"""The panels of the dashboard, and the sources of their figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from monasca_common.audit.settings import AuditSettings
from monasca_common.kafka import Admin
from monasca_common.kafka.settings import ConnectionSettings
from monasca_common.operations.dashboard import (
    audit_panel,
    dead_letter_panel,
    durability_panel,
    lag_panel,
    load_panel,
)
from monasca_common.operations.dashboard.audit_panel import AuditGatherer
from monasca_common.operations.dashboard.dead_letter_panel import DeadLetterGatherer
from monasca_common.operations.dashboard.durability_panel import DurabilityGatherer
from monasca_common.operations.dashboard.lag_panel import GroupFigures, LagGatherer
from monasca_common.operations.dashboard.load_panel import LoadGatherer
from monasca_common.operations.dashboard.panel_source import PanelSource, Snapshot
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.operations.dashboard.view import PanelView
from monasca_common.operations.lag.history import read_history
from monasca_common.operations.lag.survey import LagSurvey
from monasca_common.operations.lag.verdict import LagWindow
from monasca_common.runtime.health import ServiceHealth

LOG = logging.getLogger(__name__)

_SELDOM = 6  # number of intervals between checks of facts that rarely change but need a request per topic
_SOURCE_SECONDS = 30.0  # the time-out of a panel's source
_NO_SNAPSHOT: Snapshot[Any] = Snapshot()


class Panels:
    """All panels with their current figures. ``sources``: the panel sources by panel name."""

    def __init__(self, sources: dict[str, PanelSource[Any]], now_ms: Callable[[], int]) -> None:
        self._sources = sources
        self._now_ms = now_ms
        self._views: dict[str, tuple[tuple[Any, ...], PanelView]] = {}

    def start(self) -> None:
        for source in self._sources.values():
            source.start()

    def stop(self) -> None:
        for source in self._sources.values():
            source.stop()

    def health(self) -> ServiceHealth:
        """Return the health of the dashboard. It is ready once every source has figures or an error, and stays ready
        while Kafka is unavailable, because it shows the outage."""
        return ServiceHealth(
            "dashboard",
            lambda: {name: each.seconds_overdue for name, each in self._sources.items()},
            self._unseen,
            self._failures,
        )

    def _unseen(self) -> Iterator[str]:
        for name, source in self._sources.items():
            snapshot = source.snapshot()
            if snapshot.gathered_ms is None and not snapshot.error:
                yield f"{name}: no figures yet"

    def _failures(self) -> dict[str, Any]:
        return {"failures": {name: error for name, each in self._sources.items() if (error := each.snapshot().error)}}

    @property
    def now_ms(self) -> int:
        return self._now_ms()

    def views(self) -> list[PanelView]:
        """Return all panels. A panel is rebuilt only if its figures have changed."""
        lag: Snapshot[tuple[GroupFigures, ...]] = self._snapshot("lag")
        readers = None if lag.error else lag.figures
        return [
            self._view(audit_panel.EMPTY, audit_panel.audit_panel, self._snapshot("audit")),
            self._view(lag_panel.EMPTY, lag_panel.lag_panel, lag),
            self._view(dead_letter_panel.EMPTY, dead_letter_panel.dead_letter_panel, self._snapshot("dead-letters")),
            self._view(durability_panel.EMPTY, durability_panel.durability_panel, self._snapshot("durability")),
            self._view(load_panel.EMPTY, load_panel.load_panel, self._snapshot("load"), readers),
        ]

    def _view(self, empty: PanelView, build: Callable[..., PanelView], *facts: Any) -> PanelView:
        """Return the view of a panel. An error in its figures affects only this panel."""
        known = self._views.get(empty.name)
        if known is not None and all(one is other for one, other in zip(known[0], facts, strict=True)):
            return known[1]
        try:
            view = build(*facts, self._now_ms())
        except Exception:
            LOG.exception("the figures of panel %s cannot be shown", empty.name)
            stale = "the figures cannot be shown: see the log of the dashboard"
            view = replace(empty, stale=stale, summary="No data.")
        self._views[empty.name] = (facts, view)
        return view

    def group(self, name: str) -> GroupFigures | None:
        lag: Snapshot[tuple[GroupFigures, ...]] = self._snapshot("lag")
        return next((group for group in lag.figures or () if group.name == name), None)

    def _snapshot(self, name: str) -> Snapshot[Any]:
        source = self._sources.get(name)
        return source.snapshot() if source is not None else _NO_SNAPSHOT


def kafka_panels(
    settings: DashboardSettings,
    load_admin: Callable[[], Admin],
    connection: ConnectionSettings,
    audit: AuditSettings,
    dead_letter_topics: Iterable[str],
    window: LagWindow,
    now_ms: Callable[[], int],
    *,
    history_topic: str,
) -> Panels:
    """Return the panels of one cluster. Each source has its own clients, so no source waits for another.
    ``history_topic``: the history topic of ``lag serve``."""

    def source(name: str, gather: Callable[[int], Any], times: int = 1) -> PanelSource[Any]:
        return PanelSource(
            name,
            gather,
            interval_seconds=settings.interval_seconds * times,
            timeout_seconds=_SOURCE_SECONDS,
            now_ms=now_ms,
        )

    admin = load_admin()
    survey = LagSurvey(admin, connection, window, timeout_seconds=_SOURCE_SECONDS)
    history = partial(read_history, admin, connection, history_topic, timeout_seconds=_SOURCE_SECONDS)
    sources = [
        source("lag", LagGatherer(survey, window, history)),
        source("audit", AuditGatherer(load_admin(), connection, audit, timeout_seconds=_SOURCE_SECONDS), _SELDOM),
        source("load", LoadGatherer(load_admin())),
        source("durability", DurabilityGatherer(load_admin()), _SELDOM),
        source(
            "dead-letters",
            DeadLetterGatherer(load_admin(), connection, dead_letter_topics, timeout_seconds=_SOURCE_SECONDS),
        ),
    ]
    return Panels({each.name: each for each in sources}, now_ms)
