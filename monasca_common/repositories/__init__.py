# SPDX-License-Identifier: Apache-2.0
"""The errors of databases that services written for monasca-common 3 raise. What stores rows here is ``storage``."""
