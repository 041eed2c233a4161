# SPDX-License-Identifier: Apache-2.0
"""Kafka producers and consumers that report every outcome, and the services that run on them."""
