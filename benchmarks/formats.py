# SPDX-License-Identifier: Apache-2.0
"""Print what one value costs in each format, and its size: ``python -m benchmarks.formats``. It needs no broker.

The rounds of all formats take turns. A ratio is the median of the comparisons with ``msgspec`` in the same round.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cramjam
import msgspec
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField
from confluent_kafka.serialization import SerializationContext as ConfluentContext
from oslo_config import cfg

from benchmarks.envelopes import values
from monasca_common.kafka import SerializationContext, load_serializer
from monasca_common.kafka.config.schema_registry import REGISTRY_GROUP, SchemaRegistrySettings
from monasca_common.kafka.testing import MemoryRegistry
from monasca_common.models import avro
from monasca_common.models.metric import MetricDecoder
from monasca_common.runtime.envelopes import EnvelopeReader, EnvelopeWriter

_VALUES, _ROUNDS = 2_000, 15
_TOPIC = "metrics"
_TEXTS = {"type": "map", "values": "string"}
_METRIC = [("name", "string"), ("dimensions", _TEXTS), ("timestamp", "long"), ("value", "double")]
_FIELDS = [{"name": name, "type": kind} for name, kind in _METRIC]
_FIELDS.append({"name": "value_meta", "type": ["null", _TEXTS]})
_SCHEMA = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "metric", "type": {"type": "record", "name": "Metric", "fields": _FIELDS}},
        {"name": "meta", "type": _TEXTS},
        {"name": "creation_time", "type": "long"},
    ],
}
_JSON_SCHEMA = {
    "title": "Envelope",
    "type": "object",
    "required": ["metric"],
    "properties": {"metric": {"type": "object"}},
}

Pair = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]


def main() -> None:
    plain = [json.loads(text) for _, text, _ in values(_VALUES)]
    with MemoryRegistry() as registry, tempfile.TemporaryDirectory() as folder:
        formats = _formats(registry.url, Path(folder))
        written = {name: [encode(value) for value in plain] for name, (encode, _) in formats.items()}
        for name, (_, decode) in formats.items():
            assert [decode(value) for value in written[name]] == plain, name
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in formats}
        for _ in range(_ROUNDS):
            for name, (encode, decode) in formats.items():
                costs[name].append((_seconds(encode, plain), _seconds(decode, written[name])))
    ratio = f"{'ratio':>7}"
    print(f"{'format':<20} {'encode us':>10} {ratio} {'decode us':>10} {ratio} {'bytes':>7} {'lz4':>6} {'zstd':>6}")
    for name, rounds in costs.items():
        cells = [f"{name:<20}"]
        for side in (0, 1):
            cells.append(f"{statistics.median(each[side] for each in rounds) * 1e6:>10.2f}")
            ratios = [ours[side] / peer[side] for ours, peer in zip(rounds, costs["msgspec"], strict=True)]
            cells.append(f"{statistics.median(ratios):>7.1f}")
        batch = b"".join(written[name])
        sizes = (batch, cramjam.lz4.compress(batch), cramjam.zstd.compress(batch))
        print(*cells, *(f"{len(size) / _VALUES:>{width}.0f}" for size, width in zip(sizes, (7, 6, 6), strict=True)))
    _print_rows([text for _, text, _ in values(_VALUES)])


def _print_rows(texts: Sequence[bytes]) -> None:
    """Print the cost of the API's messages and of the persister's rows in both formats."""
    with metrics_registry() as (settings, writer):
        framed = writer.values(texts)
        decode = MetricDecoder().decode_all
        reader = EnvelopeReader(settings)
        decode_both = lambda values: decode(reader.as_json(values)[0])  # noqa: E731
        assert decode(texts) == decode_both(framed)
        rounds = [
            (_seconds(decode, [texts]), _seconds(decode_both, [framed]), _seconds(writer.values, [texts]))
            for _ in range(_ROUNDS)
        ]
    from_json, from_avro, to_avro = (statistics.median(each) * 1e6 / _VALUES for each in zip(*rounds, strict=True))
    ratio = sum(map(len, framed)) / sum(map(len, texts))
    print(f"rows of envelopes: JSON {from_json:.2f} us, Avro {from_avro:.2f} us; envelope to Avro {to_avro:.2f} us")
    print(f"bytes of an envelope in Avro: {ratio:.2f} of those in JSON")


@contextlib.contextmanager
def metrics_registry() -> Iterator[tuple[SchemaRegistrySettings, EnvelopeWriter]]:
    """Yield the settings of a new registry, in which the schema of metrics always has the id 1, and its writer."""
    with MemoryRegistry() as registry:
        settings = SchemaRegistrySettings(url=registry.url, auto_register=True)
        writer = EnvelopeWriter(settings, avro.METRICS, _TOPIC)
        writer.values(())
        yield settings, writer


def _formats(url: str, folder: Path) -> dict[str, Pair]:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[])
    REGISTRY_GROUP.register(conf)
    for name, value in (("url", url), ("subject_name_strategy", "topic"), ("auto_register", True)):
        conf.set_override(name, value, group=REGISTRY_GROUP.name)
    context = SerializationContext(_TOPIC)
    ours: dict[str, Pair] = {}
    for name, schema in (("avro", _SCHEMA), ("json-schema", _JSON_SCHEMA)):
        path = folder / name
        path.write_text(json.dumps(schema))
        topic = SerializationContext(f"{_TOPIC}-{name}")
        conf.set_override("schema_files", [f"{topic.topic}={path}"], group=REGISTRY_GROUP.name)
        serializer: Any = load_serializer(name, conf=conf)
        ours[name] = (
            lambda value, dumps=serializer.dumps, at=topic: dumps(value, at),
            lambda value, loads=serializer.loads, at=topic: loads(value, at),
        )
    client = SchemaRegistryClient({"url": url})
    theirs = ConfluentContext(context.topic, MessageField.VALUE)
    serialize, deserialize = AvroSerializer(client, json.dumps(_SCHEMA)), AvroDeserializer(client)
    checked = load_serializer("json")
    return {
        "msgspec": (msgspec.json.encode, msgspec.json.decode),
        "json": (checked.dumps, checked.loads),
        **ours,
        "confluent avro": (lambda value: serialize(value, theirs), lambda value: deserialize(value, theirs)),
    }


def _seconds(function: Callable[[Any], Any], items: Sequence[Any]) -> float:
    """Return the time for each item."""
    start = time.perf_counter()
    for item in items:
        function(item)
    return (time.perf_counter() - start) / len(items)


if __name__ == "__main__":
    main()
