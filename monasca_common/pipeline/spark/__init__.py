# SPDX-License-Identifier: Apache-2.0
"""Code that runs on Spark: frames of Kafka ranges, and functions that executors run. pyspark is imported on first
use."""
