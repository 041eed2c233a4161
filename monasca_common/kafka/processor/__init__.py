# SPDX-License-Identifier: Apache-2.0
"""Processing: calls handlers with retries, dead letters and outputs, then commits."""

from monasca_common.kafka.processor.processor import Processor

__all__ = ["Processor"]
