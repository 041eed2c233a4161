# SPDX-License-Identifier: Apache-2.0
"""Topic and offset requests for services written for monasca-common 3."""
