# SPDX-License-Identifier: Apache-2.0
"""The ways to notify, each an entry point of ``monasca_common.notifiers``."""
