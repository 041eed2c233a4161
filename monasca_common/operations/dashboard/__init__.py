# SPDX-License-Identifier: Apache-2.0
"""A web page that shows whether messages of a cluster are late, missing or at risk."""
