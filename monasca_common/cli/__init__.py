# SPDX-License-Identifier: Apache-2.0
"""The command `monasca-common`: one file for each group of subcommands."""
