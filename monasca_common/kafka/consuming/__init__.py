# SPDX-License-Identifier: Apache-2.0
"""Inside the consumer: whose partitions, under which epoch, from which position."""
