# SPDX-License-Identifier: Apache-2.0
"""From Kafka to rows, exactly once: worker processes that start where the database left off."""
