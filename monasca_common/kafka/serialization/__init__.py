# SPDX-License-Identifier: Apache-2.0
"""Serializers convert values to bytes and back: their interface, `json`, `msgspec` and `raw`, and those with a schema
registry: `avro`, `protobuf` and `json-schema`."""
