# SPDX-License-Identifier: Apache-2.0
"""The metrics of one service for Prometheus: its counters, and families computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

#: The values of a family's labels, and the sample's value; a sample whose value is ``None`` is not served.
Sample = tuple[Sequence[str], float | None]


class ComputedMetrics(Collector):
    """Serves the families that ``families`` returns. At each scrape, any thread may call it."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()


class ServiceMetrics:
    """Declares the metrics of a service, whose names start with ``prefix``. ``/metrics`` serves ``registry``."""

    def __init__(self, prefix: str, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._prefix = prefix

    def counter(self, name: str, text: str, *labels: str, known: Iterable[str] = ()) -> Counter:
        """Declare a counter. ``known``: values of its only label whose series start at 0, because Prometheus cannot
        detect an increase in a new series."""
        counter = Counter(name, text, labels, namespace=self._prefix, registry=self.registry)
        for value in known:
            counter.labels(value)
        return counter

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=self._prefix, registry=self.registry)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, labels, namespace=self._prefix, registry=self.registry, buckets=buckets)

    def computed_gauge(self, name: str, text: str, *labels: str, samples: Callable[[], Iterable[Sample]]) -> None:
        """Declare a gauge whose ``samples`` are computed at each scrape, by any thread."""

        def families() -> Iterator[Metric]:
            family = GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=labels)
            for values, value in samples():
                if value is not None:
                    family.add_metric(values, float(value))
            yield family

        self.registry.register(ComputedMetrics(families))
