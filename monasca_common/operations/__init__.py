# SPDX-License-Identifier: Apache-2.0
"""What an operator asks of a running system: are its consumers late, would anything be lost, what was not handled?"""
