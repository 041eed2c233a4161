# SPDX-License-Identifier: Apache-2.0
"""The metrics of one service for Prometheus: what it counts itself, and families computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

#: The values of a family's labels, and the value; ``None``: it has none now, and is left out.
Sample = tuple[Sequence[str], float | None]


class ComputedMetrics(Collector):
    """Serves what ``families`` returns, which is called at each scrape, by any thread."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()


class ServiceMetrics:
    """``prefix``: of every name. ``registry``: what ``/metrics`` serves."""

    def __init__(self, prefix: str) -> None:
        self.registry = CollectorRegistry()
        self._prefix = prefix

    def counter(self, name: str, text: str, *labels: str, known: Iterable[str] = ()) -> Counter:
        """``known``: values of its only label that are served from 0: Prometheus sees no increase in a new series."""
        counter = Counter(name, text, labels, namespace=self._prefix, registry=self.registry)
        for value in known:
            counter.labels(value)
        return counter

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=self._prefix, registry=self.registry)

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, labels, namespace=self._prefix, registry=self.registry, buckets=buckets)

    def computed(self, families: Callable[[], Iterable[Metric]]) -> None:
        """See `ComputedMetrics`."""
        self.registry.register(ComputedMetrics(families))


def gauge_family(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """A family of gauges of one moment, for `ServiceMetrics.computed`."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def counter_family(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """A family of counters that are kept elsewhere, for `ServiceMetrics.computed`."""
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, float(value))
    return family
