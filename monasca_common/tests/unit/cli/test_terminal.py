# SPDX-License-Identifier: Apache-2.0
import io

from oslotest import base
from rich.console import Console

from monasca_common.cli.terminal import PlainStream, unfiltered


class PlainStreamTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.out = io.StringIO()
        self.stream = PlainStream(self.out)

    def test_lines_tabs_and_letters_of_any_language_are_kept(self):
        text = "\u00fcber\tdie 1.000\u00a0km\n\u03b1\u2026\U0001f600\n"
        self.assertEqual(len(text), self.stream.write(text))
        self.assertEqual(text, self.out.getvalue())

    def test_control_characters_are_shown_by_their_code_points(self):
        self.stream.write("a\x1b[2Jb\rc\x00\x7f\x9b\u202e\udcff")
        self.assertEqual("a\\x1b[2Jb\\x0dc\\x00\\x7f\\x9b\\u202e\\udcff", self.out.getvalue())

    def test_colors_of_commands_are_not_filtered(self):
        for stream in (self.stream, self.out):
            Console(file=unfiltered(stream), force_terminal=True, color_system="standard").print("[red]late[/red]")
        self.assertEqual(2, self.out.getvalue().count("\x1b[31mlate"))
