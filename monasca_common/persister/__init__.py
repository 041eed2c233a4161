# SPDX-License-Identifier: Apache-2.0
"""The persister: worker processes that store messages of Kafka as rows exactly once, starting at the stored offsets."""
