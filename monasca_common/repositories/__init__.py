# SPDX-License-Identifier: Apache-2.0
"""Database errors of services written for monasca-common 3. This library's own storage is `monasca_common.storage`."""
