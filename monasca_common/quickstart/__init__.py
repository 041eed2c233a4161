# SPDX-License-Identifier: Apache-2.0
"""The quickstart: posts this machine's metrics, causes failures on purpose, and counts rows."""
