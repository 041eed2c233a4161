# SPDX-License-Identifier: Apache-2.0
"""How long and how much a loop over a consumer asks for at a time."""

#: The wait of one poll, within which a loop notices that it is to stop.
POLL_SECONDS = 0.2
#: The messages of one poll of a loop that reads a whole log.
POLL_MESSAGES = 5000
#: The wait of a member for how far it is behind; without an answer that is not known.
LAG_SECONDS = 1.0
