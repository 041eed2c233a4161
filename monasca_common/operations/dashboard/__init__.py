# SPDX-License-Identifier: Apache-2.0
"""A page in the browser: what is wrong with the messages of this cluster, seen at a glance; and the metrics."""
