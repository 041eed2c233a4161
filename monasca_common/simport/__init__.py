# SPDX-License-Identifier: Apache-2.0
"""Loading what a configuration names as ``module:attribute``, for services written for monasca-common 3."""
