# SPDX-License-Identifier: Apache-2.0
"""Monasca's HTTP interface: what is posted goes to Kafka, what is asked for comes from storage."""
