# SPDX-License-Identifier: Apache-2.0
"""Consuming: reads batches from a group's partitions, and commits them with the epoch of their assignment."""
