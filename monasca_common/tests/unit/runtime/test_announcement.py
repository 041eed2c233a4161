# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from monasca_common.runtime import shown_url, started, stopped


class LineTest(base.BaseTestCase):
    def test_a_start_is_one_line_with_version_and_facts(self):
        line = started("api", at="127.0.0.1:8070", reads_database="", workers=2)
        self.assertRegex(line, r"^api \d+\.\d+\.\S+ started: at 127\.0\.0\.1:8070; workers 2$")

    def test_a_stop_without_facts_is_one_line(self):
        self.assertRegex(stopped("api"), r"^api \d+\.\d+\.\S+ stopped$")

    def test_nothing_counted_is_said_too(self):
        self.assertIn("dead letters 0", stopped("persister", dead_letters=0))


class UrlTest(base.BaseTestCase):
    def test_host_and_database_are_shown(self):
        for url, shown in (
            ("postgresql://me:hush@db.example.org:5432/monasca", "postgresql://db.example.org:5432/monasca"),
            ("postgresql://db/monasca?password=hush&sslmode=require", "postgresql://db/monasca"),
            ("sqlite:////var/lib/monasca.sqlite", "sqlite:////var/lib/monasca.sqlite"),
            ("/archive", "/archive"),
            ("s3://key:hush@bucket/folder", "s3://bucket/folder"),
            ("hush", "(not shown)"),
        ):
            self.assertEqual(shown, shown_url(url))

    @given(st.text("/?#@:&=x$", max_size=4), st.text("/?#@:&=x$", max_size=4), st.sampled_from(["", "?password=hush"]))
    def test_no_password_is_shown_wherever_its_signs_would_split_the_url(self, before, after, query):
        url = f"postgresql://me:{before}hush{after}@db/monasca{query}"
        self.assertNotIn("hush", shown_url(url))
        self.assertNotIn("hush", shown_url(f"postgresql://db/monasca?password={before}hush{after}"))
