# SPDX-License-Identifier: Apache-2.0
"""A process of this package: where it listens and logs, its start and stop, its restarts, its status and its folder."""

from monasca_common.runtime.announcement import joined, shown_url, started, stopped
from monasca_common.runtime.listener import check_listener, listen
from monasca_common.runtime.logs import PROJECT, register_logging, start_logging
from monasca_common.runtime.temporary_folder import temporary_folder

__all__ = [
    "PROJECT",
    "check_listener",
    "joined",
    "listen",
    "register_logging",
    "shown_url",
    "start_logging",
    "started",
    "stopped",
    "temporary_folder",
]
