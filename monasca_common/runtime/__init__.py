# SPDX-License-Identifier: Apache-2.0
"""Components that all services share: logging, sockets, restarts, health, metrics and temporary folders."""

from monasca_common.runtime.listener import check_listener, listen
from monasca_common.runtime.logs import (
    PROJECT,
    joined,
    register_logging,
    shown_url,
    start_logging,
    started,
    stopped,
)
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
