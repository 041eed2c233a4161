# SPDX-License-Identifier: Apache-2.0
import setuptools

# All metadata is in setup.cfg; pbr reads it.
setuptools.setup(pbr=True)
