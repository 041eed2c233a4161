# SPDX-License-Identifier: Apache-2.0
"""Kafka producers and consumers whose every outcome is known, and the services that run on them."""
