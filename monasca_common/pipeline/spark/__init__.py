# SPDX-License-Identifier: Apache-2.0
"""Code that runs on Spark: frames of Kafka ranges, and what executors do with them. pyspark is imported on first
use."""
