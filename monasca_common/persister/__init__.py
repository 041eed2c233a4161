# SPDX-License-Identifier: Apache-2.0
"""The persister: worker processes that store the messages of Kafka topics as rows, exactly once, and start at the
stored offsets."""
