# SPDX-License-Identifier: Apache-2.0
"""Jobs on Spark compared with plain Spark jobs: backlogs, small batches, and growing load."""
