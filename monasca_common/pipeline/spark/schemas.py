# SPDX-License-Identifier: Apache-2.0
"""Schemas of envelopes in Avro: the driver resolves the ids of a batch, and executors decode without a registry.

A task records unknown ids and then returns nothing. The driver resolves these ids and runs the batch again, so only the
first batch with a schema runs twice.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any, TypeVar

from monasca_common.kafka.config.schema_registry import SchemaRegistrySettings
from monasca_common.kafka.errors import SerializationError
from monasca_common.pipeline.spark.counts import Adder, Union, accumulator
from monasca_common.runtime.envelopes import EnvelopeReader, EnvelopeSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

Result = TypeVar("Result")

_MOST_IDS = 20_000  # unknown ids that one run of a batch records; corrupt values can have any number of ids
_ID_END = 5


class BatchSchemas:
    """The schemas of the batches of a job. ``reader``: reads envelopes in the driver."""

    def __init__(self, spark: SparkSession, settings: SchemaRegistrySettings | None) -> None:
        self._spark = spark
        self.reader = EnvelopeReader(settings)
        self._ids: Set[int] = frozenset()  # schemas of the last batches
        self._noted: Accumulator[Set[int]] | None = None

    def run(self, attempt: Callable[[EnvelopeReader], Result]) -> Result:
        """Call ``attempt`` with a reader of envelopes for executors, and return its result. It is called again if
        executors find unknown ids. Raises `RegistryUnavailable` if the registry does not return their schemas."""
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


@functools.lru_cache(maxsize=2)
def _unpickled(schemas: bytes) -> dict[int, EnvelopeSchema | SerializationError]:
    """Return the schemas; the next task of this process uses them as well."""
    found: dict[int, EnvelopeSchema | SerializationError] = pickle.loads(schemas)
    return found
