# SPDX-License-Identifier: Apache-2.0
"""Errors that monasca-api's repositories raise and its resources answer with an HTTP status. Nothing here raises them;
`monasca_common.storage` has its own."""

from __future__ import annotations


class RepositoryException(Exception):
    """Root of what a repository raises."""


class DoesNotExistException(RepositoryException):
    """There is no such object."""


class AlreadyExistsException(RepositoryException):
    """There is such an object already."""


class InvalidUpdateException(RepositoryException):
    """The object cannot be changed in this way."""
