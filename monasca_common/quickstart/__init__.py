# SPDX-License-Identifier: Apache-2.0
"""The quickstart: posts this machine's metrics, injects failures, and counts rows."""
