# SPDX-License-Identifier: Apache-2.0
"""The notifiers, each an entry point of ``monasca_common.notifiers``."""
