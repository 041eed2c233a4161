# SPDX-License-Identifier: Apache-2.0
"""The limits of polls in loops that read from a consumer."""

#: The time-out of one poll, after which a loop checks whether it must stop.
POLL_SECONDS = 0.2
#: The maximum number of messages of one poll in loops that read a whole log.
POLL_MESSAGES = 5000
