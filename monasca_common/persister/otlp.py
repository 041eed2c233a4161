# SPDX-License-Identifier: Apache-2.0
"""The decoder of requests of OTLP, as an OpenTelemetry Collector writes them to a topic: one message becomes many
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from monasca_common.kafka.message import Headers, PartitionBatch
from monasca_common.models import log, metric
from monasca_common.models.errors import InvalidEnvelope, Violation
from monasca_common.models.otlp.logs import parse_logs
from monasca_common.models.otlp.metrics import add_samples
from monasca_common.models.otlp.requests import from_protobuf
from monasca_common.models.post import ParsedPost
from monasca_common.models.rows import Decoded
from monasca_common.models.samples import Samples
from monasca_common.persister.settings import OtlpTopicSettings
from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.batch_handler import Faults, rows_of_kind

_MOST_SAMPLES = 200_000  # samples of a message; a message of a megabyte with histograms has 130,000 samples
_MOST_LOG_BYTES = 64 * 1024 * 1024  # logs of a message; short logs have several times their size with all dimensions
_SHOWN_VIOLATIONS = 10


class OtlpDecoder:
    """A `Decoder`. It converts each item of a request to an envelope and decodes the envelopes, so the same rules apply
    to its rows as in other topics. ``decode``: a thread-safe function from envelopes to rows."""

    def __init__(
        self,
        kind: Kind,
        settings: OtlpTopicSettings,
        max_dimensions: int,
        decode: Callable[[Sequence[bytes | None]], Decoded[Any]],
    ) -> None:
        self._kind = kind
        self._settings = settings
        self._attributes = frozenset(settings.otlp_attributes)
        self._max_dimensions = max_dimensions
        self._decode = decode

    def __call__(self, part: PartitionBatch, faults: Faults) -> Rows:
        envelopes: list[bytes] = []
        positions: list[int] = []
        indexes: list[int] = []
        for position, value in enumerate(part.values):
            offset = part.offsets[position]
            try:
                tenant = self._tenant(part.headers[position])
                post = self._parse(value)
            except InvalidEnvelope as error:
                faults.add(offset, None, str(error))
                continue
            if len(post.valid) < post.total:
                refused = next(iter(set(range(post.total)).difference(post.indices)))
                faults.add(offset, refused, "; ".join(map(str, post.violations[:_SHOWN_VIOLATIONS])))
            # The time of the message is the same each time it is decoded.
            envelopes += self._envelopes(post.valid, tenant, (part.timestamps[position] or 0) / 1000)
            positions += [position] * len(post.valid)
            indexes += post.indices
        decoded = self._decode(envelopes)
        for row, refusal in decoded.errors.items():
            faults.add(part.offsets[positions[row]], indexes[row], str(refusal))
        return rows_of_kind(
            self._kind,
            part,
            decoded.rows,
            [positions[row] for row in decoded.indices],
            indexes=[indexes[row] for row in decoded.indices],
            untimed=decoded.untimed,
        )

    def _tenant(self, headers: Headers) -> str:
        name, tenant = self._settings.otlp_tenant_header, self._settings.otlp_tenant
        if name is not None:
            found = dict(headers).get(name)
            if found is not None:
                return found.decode(errors="replace")
        if tenant is None:
            raise InvalidEnvelope([Violation("", f"has no header {name} with its tenant")])
        return tenant

    def _parse(self, value: bytes | None) -> ParsedPost:
        if value is None:
            raise InvalidEnvelope([Violation("", "has no value")])
        if self._kind is Kind.LOGS:
            request = from_protobuf(value, ExportLogsServiceRequest())
            return parse_logs(
                request, self._attributes, max_dimensions=self._max_dimensions, most_bytes=_MOST_LOG_BYTES
            )
        samples = Samples(max_dimensions=self._max_dimensions, most=_MOST_SAMPLES)
        add_samples(from_protobuf(value, ExportMetricsServiceRequest()), self._attributes, samples)
        return samples.post()

    def _envelopes(self, texts: list[bytes], tenant: str, created: float) -> list[bytes]:
        region = self._settings.otlp_region
        if self._kind is Kind.LOGS:
            return [log.envelope(text, tenant, region, created) for text in texts]
        return metric.envelopes(texts, tenant, region, created)
