# SPDX-License-Identifier: Apache-2.0
"""Reads the envelopes of batches: a message is an envelope in JSON or Avro, or an OTLP request with many envelopes.

The driver resolves the ids of Avro schemas of a batch, and executors decode without a registry. A task that finds
unknown ids records them and stops returning rows. The driver resolves these ids and runs the batch again, so only the
first batch with a schema runs twice.
"""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from monasca_common.kafka.errors import SerializationError
from monasca_common.models.errors import InvalidEnvelope
from monasca_common.pipeline.settings import StreamSettings
from monasca_common.pipeline.spark.arrow import numbers
from monasca_common.pipeline.spark.counts import Adder, Union, accumulator
from monasca_common.runtime.envelopes import EnvelopeReader, EnvelopeSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from monasca_common.runtime.otlp import OtlpReader

Result = TypeVar("Result")

_MOST_IDS = 20_000  # the limit on unknown ids of one run of a batch; corrupt values can have any number
_ID_END = 5
_MOST_ENVELOPES = 10_000  # the limit for several OTLP messages together; one message can have more


class BatchSchemas:
    """The schemas of the batches of a job. ``reader``: reads envelopes in the driver."""

    def __init__(self, spark: SparkSession, stream: StreamSettings) -> None:
        self._spark = spark
        self.reader = EnvelopeReader(stream.registry) if stream.otlp is None else _otlp_reader(stream)
        self._ids: Set[int] = frozenset()  # schemas of the last batches
        self._noted: Accumulator[Set[int]] | None = None
        #: The columns from which executors read envelopes.
        self.columns = ("value",) if stream.tenant_header is None else ("value", "tenant")

    def run(self, attempt: Callable[[EnvelopeReader], Result]) -> Result:
        """Call ``attempt`` with a reader of envelopes for executors, and return its result. ``attempt`` is called again
        if executors find unknown ids. Raises `RegistryUnavailable` if the registry does not return their schemas."""
        if self.reader.schema is None:
            return attempt(self.reader)
        if self._noted is None:
            self._noted = accumulator(self._spark, frozenset(), Union(_MOST_IDS))
        while True:
            schemas = {each: self._resolve(each) for each in sorted(self._ids)}
            self._noted.value = frozenset()
            result = attempt(TaskReader(pickle.dumps(schemas), Adder((self._noted,))))
            if not self._noted.value:
                # A refused id is requested again in the next batch, because its schema may be registered later.
                self._ids = {each for each, found in schemas.items() if isinstance(found, EnvelopeSchema)}
                return result
            self._ids |= self._noted.value

    def _resolve(self, schema_id: int) -> EnvelopeSchema | SerializationError:
        assert self.reader.schema is not None
        try:
            return self.reader.schema(schema_id)
        except SerializationError as error:
            return SerializationError(str(error))


class TaskReader(EnvelopeReader):
    """Reads envelopes on an executor. ``schemas``: the pickled schema or error of each id."""

    def __init__(self, schemas: bytes, on_unknown: Callable[[Set[int]], None]) -> None:
        super().__init__()
        self._pickled = schemas
        self._on_unknown = on_unknown
        self._known = _unpickled(schemas)
        self.schema = self._schema

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReader, (self._pickled, self._on_unknown)

    def _schema(self, schema_id: int) -> EnvelopeSchema:
        found = self._known[schema_id]
        if isinstance(found, SerializationError):
            raise found
        return found

    def knows(self, batch: pa.RecordBatch) -> bool:
        """Return whether all schemas of a batch are known, and record unknown ids."""
        import pyarrow.compute as pc

        frames = pc.unique(pc.binary_slice(batch.column("value"), 0, _ID_END)).to_pylist()
        ids = {int.from_bytes(each[1:]) for each in frames if each is not None and each[:1] == b"\0"}
        unknown = ids - self._known.keys()
        if unknown:
            self._on_unknown(unknown)
        return not unknown


def readable(batches: Iterable[pa.RecordBatch], envelopes: EnvelopeReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches. On an executor, yield batches up to the first one with an unknown schema, and record all
    unknown ids.

    Every batch has a column ``value``.
    """
    if not isinstance(envelopes, TaskReader):
        yield from batches
        return
    is_complete = True
    for batch in batches:
        is_complete = envelopes.knows(batch) and is_complete
        if is_complete:
            yield batch


@dataclass(slots=True)
class EnvelopePart:
    """Envelopes in JSON of an Arrow batch, with ``None`` for those that cannot be read, and their ``errors`` by index.
    ``messages``: the index of each envelope's message; ``None`` if each message is an envelope."""

    batch: pa.RecordBatch
    values: Sequence[bytes | None]
    errors: Mapping[int, InvalidEnvelope]
    messages: Sequence[int] | None = None

    def numbers(self, name: str) -> Sequence[int]:
        """Return a column of the messages, with an entry for each envelope."""
        found = numbers(self.batch, name)
        return found if self.messages is None else [found[index] for index in self.messages]


def envelope_parts(batch: pa.RecordBatch, envelopes: EnvelopeReader) -> Iterator[EnvelopePart]:
    """Yield the envelopes of a batch of `readable`, all envelopes of a message in one part."""
    if envelopes.otlp is None:
        yield EnvelopePart(batch, *envelopes.as_json(batch.column("value").to_pylist()))
    else:
        yield from _otlp_parts(batch, envelopes.otlp)


def _otlp_parts(batch: pa.RecordBatch, otlp: OtlpReader) -> Iterator[EnvelopePart]:
    """Yield parts of limited size, because envelopes can be up to 40 times as large as their messages."""
    values: list[bytes | None] = []
    messages: list[int] = []
    errors: dict[int, InvalidEnvelope] = {}
    has_header = otlp.settings.otlp_tenant_header is not None
    tenants = batch.column("tenant").to_pylist() if has_header else itertools.repeat(None, batch.num_rows)
    for index, (value, tenant) in enumerate(zip(batch.column("value"), tenants, strict=True)):
        found: Sequence[bytes | None]
        try:
            # No job uses the time of the message, which is the envelope's creation_time.
            post = otlp.metrics(value.as_py(), tenant, 0)
            found, refused = post.valid, post.violations
        except InvalidEnvelope as error:
            found, refused = (), error.violations
        if refused:
            errors[len(values)] = InvalidEnvelope(refused)
            found = (None, *found)
        values += found
        messages += [index] * len(found)
        if len(values) >= _MOST_ENVELOPES:
            yield EnvelopePart(batch, values, errors, messages)
            values, messages, errors = [], [], {}
    if values:
        yield EnvelopePart(batch, values, errors, messages)


def _otlp_reader(stream: StreamSettings) -> EnvelopeReader:
    from monasca_common.runtime.otlp import OtlpReader  # needs the extra [otlp]

    assert stream.otlp is not None
    return EnvelopeReader(otlp=OtlpReader(stream.otlp, stream.max_dimensions))


@functools.lru_cache(maxsize=2)
def _unpickled(schemas: bytes) -> dict[int, EnvelopeSchema | SerializationError]:
    """Return the schemas; the next task of this process reuses them."""
    found: dict[int, EnvelopeSchema | SerializationError] = pickle.loads(schemas)
    return found
