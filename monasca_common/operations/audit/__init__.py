# SPDX-License-Identifier: Apache-2.0
"""The counter of logs, and the service that reconciles the reports of all tiers."""
