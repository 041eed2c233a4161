# SPDX-License-Identifier: Apache-2.0
"""What an operator asks of a running system: are its consumers late, is anything missing, would anything be lost?"""
