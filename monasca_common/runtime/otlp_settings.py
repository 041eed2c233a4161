# SPDX-License-Identifier: Apache-2.0
"""The options of a topic that an OpenTelemetry Collector may write. The persister declares them in the groups of its
consumers, and jobs of the pipeline read those of ``[kafka_metrics]``."""

from __future__ import annotations

from dataclasses import dataclass

from monasca_common.kafka.config import GroupReader, option
from monasca_common.kafka.extras import remedy
from monasca_common.models.limits import RESOURCE_ATTRIBUTES

ENVELOPES, OTLP = "envelopes", "otlp_proto"
OTLP_BATCH_SIZE = 20


@dataclass(frozen=True, slots=True)
class OtlpTopicSettings:
    """The options of a topic whose messages may be OTLP requests, as an OpenTelemetry Collector writes them."""

    format: str = option(
        ENVELOPES,
        choices={
            ENVELOPES: "JSON or Avro, as the API writes them",
            OTLP: "OTLP in protobuf, as the Kafka exporter of a Collector writes it; needs the extra otlp",
        },
        help="The format of the topic's messages, also for jobs of the pipeline that read the topic of "
        "[kafka_metrics]. A message in OTLP becomes many rows, so batch_size is "
        f"{OTLP_BATCH_SIZE} by default in its group.",
    )
    otlp_tenant: str | None = option(
        None, help="The tenant of OTLP messages without the header that otlp_tenant_header names."
    )
    otlp_tenant_header: str | None = option(
        None,
        help="The header of an OTLP message that contains its tenant. Set it only if the Collector sets this header "
        "in every message; otherwise its clients can write for any tenant.",
    )
    otlp_region: str = option("RegionOne", help="The region of rows from OTLP messages.")
    otlp_attributes: tuple[str, ...] = option(
        RESOURCE_ATTRIBUTES,
        help="The attributes of OTLP resources and scopes that become dimensions, as in [api] otlp_attributes.",
    )


def otlp_settings(read: GroupReader) -> OtlpTopicSettings | None:
    """Return the settings, or ``None`` for a topic with envelopes. Raises `ConfigurationError`."""
    settings = read.settings(OtlpTopicSettings)
    if settings.format == ENVELOPES:
        return None
    try:
        import monasca_common.models.otlp.metrics  # noqa: F401
    except ImportError as error:
        raise read.error("format", f"is {OTLP}, but {remedy(error, 'otlp')}") from None
    if settings.otlp_tenant is None and settings.otlp_tenant_header is None:
        raise read.error("otlp_tenant", f"is not set, but format is {OTLP}: set this option or otlp_tenant_header")
    return settings
