# SPDX-License-Identifier: Apache-2.0
"""The command `monasca-common`, with one module for each group of subcommands."""
