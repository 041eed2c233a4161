# SPDX-License-Identifier: Apache-2.0
"""Fixtures and contracts that users' own tests import (needs the ``test`` extra)."""

from monasca_common.kafka.testing.memory import MemoryKafka

__all__ = ["MemoryKafka"]
