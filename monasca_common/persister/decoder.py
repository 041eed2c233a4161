# SPDX-License-Identifier: Apache-2.0
"""The decoders of the persister for envelopes in JSON or Avro, one per message; see also `otlp`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monasca_common.kafka.message import PartitionBatch
from monasca_common.models import alarm, event, log
from monasca_common.models.metric import MetricDecoder
from monasca_common.models.rows import Decoded, Measurement
from monasca_common.persister.settings import GroupSettings
from monasca_common.runtime.envelopes import EnvelopeReader
from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.batch_handler import Decoder, Faults, rows_of_kind

Decode = Callable[[Sequence[bytes | None]], Decoded[Any]]


class EnvelopeDecoder:
    """A `Decoder` of messages with one envelope. ``decode``: a thread-safe function that converts JSON to rows."""

    def __init__(self, kind: Kind, envelopes: EnvelopeReader, decode: Decode) -> None:
        self._kind = kind
        self._envelopes = envelopes
        self._decode = decode

    def __call__(self, part: PartitionBatch, faults: Faults) -> Rows:
        texts, unreadable = self._envelopes.as_json(part.values)
        decoded = self._decode(texts)
        decoded.errors.update(unreadable)
        for position, error in decoded.errors.items():
            faults.add(part.offsets[position], None, str(error))
        positions = decoded.indices if decoded.errors else None
        return rows_of_kind(self._kind, part, decoded.rows, positions, untimed=decoded.untimed)


def decoder(group: GroupSettings) -> Decoder[Rows]:
    """Return the decoder of the group's topics."""
    if group.otlp is not None:
        from monasca_common.persister.otlp import OtlpDecoder  # needs the extra [otlp]
        from monasca_common.runtime.otlp import OtlpReader

        return OtlpDecoder(group.kind, OtlpReader(group.otlp, group.max_dimensions), _decode(group))
    return EnvelopeDecoder(group.kind, EnvelopeReader(group.registry), _decode(group))


def _decode(group: GroupSettings) -> Decode:
    if group.kind is Kind.METRICS:
        return _MetricDecoders(group.max_cached_series, group.max_dimensions)
    if group.kind is Kind.ALARM_HISTORY:
        return alarm.decode_all
    return partial(log.decode_all if group.kind is Kind.LOGS else event.decode_all, max_dimensions=group.max_dimensions)


class _MetricDecoders(threading.local):
    """A `MetricDecoder` per thread, because it is not thread-safe; each has its own cache."""

    def __init__(self, max_series: int, max_dimensions: int) -> None:
        self._decoder = MetricDecoder(max_series, max_dimensions=max_dimensions)

    def __call__(self, values: Sequence[bytes | None]) -> Decoded[Measurement]:
        return self._decoder.decode_all(values)
