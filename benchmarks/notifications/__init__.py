# SPDX-License-Identifier: Apache-2.0
"""The notification service, beside the old service's way of sending."""
