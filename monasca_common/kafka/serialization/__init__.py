# SPDX-License-Identifier: Apache-2.0
"""Serializers convert values to bytes and back: their interface, and `json`, `msgspec` and `raw`."""
