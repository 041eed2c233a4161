# SPDX-License-Identifier: Apache-2.0
"""The envelopes in topics: encoding, decoding and validation of metrics, logs, events and alarm transitions. No I/O."""
