# SPDX-License-Identifier: Apache-2.0
"""The jobs that `monasca-common pipeline` runs; each is a plugin of `monasca_common.pipeline.jobs`."""
