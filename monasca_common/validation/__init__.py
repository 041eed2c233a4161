# SPDX-License-Identifier: Apache-2.0
"""Checks a metric before it is sent, for services written for monasca-common 3."""
