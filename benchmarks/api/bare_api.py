# SPDX-License-Identifier: Apache-2.0
"""A minimal server that returns the same responses: Falcon and confluent-kafka, status 204 after every message of the
request is acknowledged.

It does not validate, assigns no ids, and reports only success. Metrics in JSON are wrapped without parsing them. A
request of remote write is parsed by protobuf, and its samples are written by msgspec.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import cramjam
import falcon
import msgspec
from confluent_kafka import Producer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_META = {"tenantId": "t", "region": "RegionOne"}
_WAIT_SECONDS = 30.0

# The fields of Prometheus' remote.proto and types.proto that requests have
_REMOTE_WRITE = """
name: "remote.proto" package: "prometheus" syntax: "proto3"
message_type { name: "Label"
  field { name: "name" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type: TYPE_STRING }
}
message_type { name: "Sample"
  field { name: "value" number: 1 type: TYPE_DOUBLE }
  field { name: "timestamp" number: 2 type: TYPE_INT64 }
}
message_type { name: "TimeSeries"
  field { name: "labels" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".prometheus.Label" }
  field { name: "samples" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".prometheus.Sample" }
}
message_type { name: "WriteRequest"
  field { name: "timeseries" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".prometheus.TimeSeries" }
}
"""


class _Request:
    """Counts the acknowledgements of one request."""

    __slots__ = ("done", "failed", "left")

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.failed = False
        self.done = threading.Event()

    def acknowledged(self, error: object, message: object) -> None:
        self.failed = self.failed or error is not None
        self.left -= 1
        if not self.left:
            self.done.set()


class _Publisher:
    def __init__(self, options: dict[str, object], topic: str) -> None:
        self._producer = Producer(options)
        self._topic = topic
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        while True:
            self._producer.poll(0.1)

    def publish(self, values: Sequence[bytes]) -> None:
        """Return after all acknowledgements. Raises `falcon.HTTPServiceUnavailable`."""
        waiting = _Request(len(values))
        produce, topic, acknowledged = self._producer.produce, self._topic, waiting.acknowledged
        for value in values:
            produce(topic, value, on_delivery=acknowledged)
        if not waiting.done.wait(_WAIT_SECONDS) or waiting.failed:
            raise falcon.HTTPServiceUnavailable


class Metrics:
    def __init__(self, publisher: _Publisher) -> None:
        self._publisher = publisher

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        end = b',"meta":%b,"creation_time":%d}' % (_encode(_META), time.time())
        elements = _split(request.bounded_stream.read())
        self._publisher.publish([b'{"metric":' + bytes(element) + end for element in elements])
        response.status = falcon.HTTP_204


class RemoteWrite:
    def __init__(self, publisher: _Publisher) -> None:
        self._publisher = publisher
        self._parse = _write_request().FromString

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        body = cramjam.snappy.decompress_raw(request.bounded_stream.read())
        created = int(time.time())
        values = []
        for series in self._parse(bytes(body)).timeseries:
            labels = {label.name: label.value for label in series.labels}
            name = labels.pop("__name__")
            for sample in series.samples:
                metric = {"name": name, "dimensions": labels, "timestamp": sample.timestamp, "value": sample.value}
                values.append(_encode({"metric": metric, "meta": _META, "creation_time": created}))
        self._publisher.publish(values)
        response.status = falcon.HTTP_204


def _write_request() -> Any:
    """Return the class of ``prometheus.WriteRequest``, as protoc would generate it."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_REMOTE_WRITE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


def application() -> falcon.App:
    """Return the application of a gunicorn worker. Its options come from the environment."""
    options = msgspec.json.decode(os.environ["BENCHMARK_OPTIONS"], type=dict[str, object])
    publisher = _Publisher(options, os.environ["BENCHMARK_TOPIC"])
    app = falcon.App()
    app.add_route("/v2.0/metrics", Metrics(publisher))
    app.add_route("/api/v1/write", RemoteWrite(publisher))
    return app
