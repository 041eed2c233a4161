# SPDX-License-Identifier: Apache-2.0
"""Jobs on Spark next to bare Spark jobs: backlogs, small batches, and growing load."""
