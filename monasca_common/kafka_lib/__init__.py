# SPDX-License-Identifier: Apache-2.0
"""What services written for monasca-common 3 ask a cluster: its topics, and offsets of groups. No protocol client."""
