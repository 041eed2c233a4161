# SPDX-License-Identifier: Apache-2.0
"""Processing: calls of a handler, their retries, dead letters and outputs, and the commits after them."""

from monasca_common.kafka.processor.processor import Processor

__all__ = ["Processor"]
