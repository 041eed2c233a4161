# SPDX-License-Identifier: Apache-2.0
"""A web page that shows problems with the messages of a cluster, and charts of metrics."""
