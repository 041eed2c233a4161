# SPDX-License-Identifier: Apache-2.0
"""Storage, which the persister writes and the API reads: one contract for several databases."""

from monasca_common.storage.base import Capability, Claim, Kind, Rows, Storage, Writer, Written
from monasca_common.storage.plugins import load_storage, open_storage
from monasca_common.storage.settings import StorageSettings

__all__ = [
    "Capability",
    "Claim",
    "Kind",
    "Rows",
    "Storage",
    "StorageSettings",
    "Writer",
    "Written",
    "load_storage",
    "open_storage",
]
