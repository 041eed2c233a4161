# SPDX-License-Identifier: Apache-2.0
"""Monasca's HTTP API: posts are published to Kafka, reads are answered from storage."""
