# SPDX-License-Identifier: Apache-2.0
"""The decoder of OTLP requests that an OpenTelemetry Collector has written to a topic: one message becomes many
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monasca_common.kafka.message import PartitionBatch
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.models.rows import Decoded
from monasca_common.runtime.otlp import OtlpReader
from monasca_common.storage.base import Kind, Rows
from monasca_common.storage.batch_handler import Faults, rows_of_kind

_SHOWN_VIOLATIONS = 10


class OtlpDecoder:
    """A `Decoder`. It converts each item of a request to an envelope and decodes the envelopes, so the same rules apply
    to its rows as in other topics. ``decode``: a thread-safe function that converts envelopes to rows."""

    def __init__(
        self, kind: Kind, reader: OtlpReader, decode: Callable[[Sequence[bytes | None]], Decoded[Any]]
    ) -> None:
        self._kind = kind
        self._header = reader.header
        self._read = reader.logs if kind is Kind.LOGS else reader.metrics
        self._decode = decode

    def __call__(self, part: PartitionBatch, faults: Faults) -> Rows:
        envelopes: list[bytes] = []
        positions: list[int] = []
        indexes: list[int] = []
        for position, value in enumerate(part.values):
            offset = part.offsets[position]
            # Use the time of the message, because it is the same each time the message is decoded.
            created = (part.timestamps[position] or 0) / 1000
            try:
                post = self._read(value, self._header(part.headers[position]), created)
            except InvalidEnvelope as error:
                faults.add(offset, None, str(error))
                continue
            if len(post.valid) < post.total:
                refused = next(iter(set(range(post.total)).difference(post.indices)))
                faults.add(offset, refused, "; ".join(map(str, post.violations[:_SHOWN_VIOLATIONS])))
            envelopes += post.valid
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
            dead=faults.reasons,
        )
