# SPDX-License-Identifier: Apache-2.0
"""A topic's records in Parquet, by the hour of their own time, each once; and the way back."""
