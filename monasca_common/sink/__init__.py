# SPDX-License-Identifier: Apache-2.0
"""The sink: worker processes that store the messages of any topic as rows of users' tables, exactly once."""
