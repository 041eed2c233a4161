# SPDX-License-Identifier: Apache-2.0
"""The job `archive`, which writes each record of a topic once to Parquet, by the hour of its event time, and the reader
of its files."""
