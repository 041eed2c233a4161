# SPDX-License-Identifier: Apache-2.0
"""Requests to a cluster for services written for monasca-common 3: topics and offsets. Without a protocol client."""
