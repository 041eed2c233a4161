# SPDX-License-Identifier: Apache-2.0
"""The job ``replay``, which sends archived messages to Kafka or to storage."""
