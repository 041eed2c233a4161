# SPDX-License-Identifier: Apache-2.0
"""Monasca's HTTP API: publishes posted data to Kafka, and serves reads from storage."""
