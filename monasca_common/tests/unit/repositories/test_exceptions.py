# SPDX-License-Identifier: Apache-2.0
"""Services catch the base class for all of these errors."""

from oslotest import base

from monasca_common.repositories import exceptions


class ExceptionsTest(base.BaseTestCase):
    def test_the_base_class_catches_each_exception(self):
        for error in (
            exceptions.DoesNotExistException,
            exceptions.AlreadyExistsException,
            exceptions.InvalidUpdateException,
        ):
            with self.assertRaisesRegex(exceptions.RepositoryException, "no such alarm"):
                raise error("no such alarm")
