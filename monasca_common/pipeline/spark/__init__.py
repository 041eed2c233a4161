# SPDX-License-Identifier: Apache-2.0
"""What runs on Spark: frames of Kafka ranges, and what executors make of them. Imports pyspark when it is used."""
