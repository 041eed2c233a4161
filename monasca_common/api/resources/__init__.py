# SPDX-License-Identifier: Apache-2.0
"""The resources of the API, a module per family of URLs."""
