# SPDX-License-Identifier: Apache-2.0
"""Converts messages with an OTLP request, as an OpenTelemetry Collector writes them to a topic, to envelopes: one
message becomes many. Needs the extra ``[otlp]``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monasca_common.kafka.message import Headers
from monasca_common.models import log, metric
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.otlp.logs import parse_logs
from monasca_common.models.otlp.metrics import add_samples
from monasca_common.models.otlp.requests import from_protobuf
from monasca_common.models.post import ParsedPost, PostRules
from monasca_common.models.samples import Samples
from monasca_common.runtime.otlp_settings import OtlpTopicSettings

_MOST_SAMPLES = 200_000  # per message; a message of a megabyte with histograms has 130,000 samples
_MOST_LOG_BYTES = 64 * 1024 * 1024  # per message; with all dimensions, short logs have several times their size


@dataclass(frozen=True, slots=True)
class OtlpReader:
    """Converts messages. Thread-safe, and pickled for executors.

    Both methods return a request whose ``valid`` items are envelopes. ``tenant``: the value of the header that
    ``otlp_tenant_header`` names; ``created``: the time of the message in seconds. Raises `InvalidEnvelope` if no item
    can be read.
    """

    settings: OtlpTopicSettings
    max_dimensions: int

    def metrics(self, value: bytes | None, tenant: bytes | None, created: float) -> ParsedPost:
        project = self._tenant(tenant)
        samples = Samples(PostRules(max_dimensions=self.max_dimensions), most=_MOST_SAMPLES)
        request = from_protobuf(_present(value), ExportMetricsServiceRequest())
        add_samples(request, frozenset(self.settings.otlp_attributes), samples)
        post = samples.post()
        return replace(post, valid=metric.envelopes(post.valid, project, self.settings.otlp_region, created))

    def logs(self, value: bytes | None, tenant: bytes | None, created: float) -> ParsedPost:
        project, settings = self._tenant(tenant), self.settings
        post = parse_logs(
            from_protobuf(_present(value), ExportLogsServiceRequest()),
            frozenset(settings.otlp_attributes),
            PostRules(max_dimensions=self.max_dimensions),
            most_bytes=_MOST_LOG_BYTES,
        )
        return replace(post, valid=log.envelopes(post.valid, project, settings.otlp_region, created))

    def header(self, headers: Headers) -> bytes | None:
        """Return the tenant in the headers of a message, or ``None``."""
        name = self.settings.otlp_tenant_header
        return None if name is None else dict(headers).get(name)

    def _tenant(self, found: bytes | None) -> str:
        if found is not None:
            return found.decode(errors="replace")
        tenant = self.settings.otlp_tenant
        if tenant is None:
            name = self.settings.otlp_tenant_header
            raise InvalidEnvelope([Violation("", f"has no header {name} with its tenant")])
        return tenant


def _present(value: bytes | None) -> bytes:
    if value is None:
        raise InvalidEnvelope([Violation("", "has no value")])
    return value
