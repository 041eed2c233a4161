# SPDX-License-Identifier: Apache-2.0
"""Errors that monasca-api's repositories raise and its resources convert to an HTTP status. This library does not raise
them; `monasca_common.storage` has its own errors."""

from __future__ import annotations


class RepositoryException(Exception):
    """Base class of repository errors."""


class DoesNotExistException(RepositoryException):
    """The object does not exist."""


class AlreadyExistsException(RepositoryException):
    """The object already exists."""


class InvalidUpdateException(RepositoryException):
    """The object cannot be changed in this way."""
