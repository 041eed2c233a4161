# SPDX-License-Identifier: Apache-2.0
"""Jobs on Spark, beside bare jobs: backlogs, small batches, and how they grow."""
