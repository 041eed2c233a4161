# SPDX-License-Identifier: Apache-2.0
"""Components that a test defines, found as if their entry points were installed."""

from unittest import mock

import fixtures

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline import components


class InstalledComponents(fixtures.Fixture):
    """``found``: the components of a namespace by name; an exception represents a broken package."""

    def __init__(self, namespace, **found):
        super().__init__()
        self._namespace = namespace
        self._found = found

    def _setUp(self):
        real_names, real_entry_point = components.names, components.entry_point

        def names(namespace):
            added = self._found if namespace == self._namespace else ()
            return tuple(sorted({*real_names(namespace), *added}))

        def entry_point(namespace, name, **options):
            if namespace != self._namespace or name not in self._found:
                return real_entry_point(namespace, name, **options)
            found = self._found[name]
            if isinstance(found, ConfigurationError):
                raise found
            return found

        for name, replacement in (("names", names), ("entry_point", entry_point)):
            patch = mock.patch.object(components, name, replacement)
            patch.start()
            self.addCleanup(patch.stop)
