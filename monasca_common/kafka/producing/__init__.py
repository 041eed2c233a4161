# SPDX-License-Identifier: Apache-2.0
"""Inside the producer: the book of outcomes, the ways to topics, and who serves the client."""
