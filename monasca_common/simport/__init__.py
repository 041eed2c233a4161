# SPDX-License-Identifier: Apache-2.0
"""Loads attributes by ``module:attribute`` names in configurations of services written for monasca-common 3."""
