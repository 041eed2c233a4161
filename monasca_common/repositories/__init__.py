# SPDX-License-Identifier: Apache-2.0
"""Errors of databases that services written for monasca-common 3 raise. The storage of this library is ``storage``."""
