# SPDX-License-Identifier: Apache-2.0
"""The one run beside peers: what is measured and required, sessions that measure it, results, tables and the plot."""
