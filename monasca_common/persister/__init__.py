# SPDX-License-Identifier: Apache-2.0
"""The persister: worker processes that store Kafka's messages as rows, exactly once, from the stored offsets on."""
