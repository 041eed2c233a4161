# SPDX-License-Identifier: Apache-2.0
"""A test runs or checks each program, command and setting of the pages, and fails if a page has a new one."""

import configparser
import json
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from urllib.parse import urlsplit

import fixtures
from oslo_config import cfg
from oslo_log import log

from monasca_common.cli.configuration import own_options
from monasca_common.devbroker import certificates
from monasca_common.kafka.config import config_file
from monasca_common.kafka.testing import MemoryKafka
from monasca_common.tests.unit.api.alarms_case import AlarmsCase
from monasca_common.tests.unit.kafka.config_case import ConfigurationTestCase
from monasca_common.tests.unit.storage.sqlite_case import SqliteTestCase

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "doc" / "source"
PAGES = {str(path.relative_to(SOURCE).with_suffix("")): path for path in sorted(SOURCE.rglob("*.rst"))}
PAGES |= {name: ROOT / f"{name}.rst" for name in ("README", "CONTRIBUTING", "HACKING")}
_BLOCK = re.compile(r"(?m)^( *)\.\. code-block:: (\w+)\n((?:\1   :.*\n)*)\n((?:\1   .*\n|\n)+)")
# The tests that run the programs of a page, each of which reads the page.
TESTS = {
    "README": "unit/test_examples.py",
    "admin/archive": "functional/pipeline/test_archive_readers.py",
    "admin/to_prometheus": "functional/persister/test_to_prometheus.py",
    "configuration/index": "unit/test_page_programs.py",
    "contributor/devbroker": "functional/devbroker/test_devbroker.py",
    "install/from-nothing-to-running": "functional/pipeline/test_from_nothing_to_running.py",
    "user/coming_from_arroyo": "unit/test_examples.py",
    "user/coming_from_faststream": "unit/test_examples.py",
    "user/coming_from_kafka_python": "unit/test_examples.py",
    "user/first_alarm": "functional/pipeline/test_from_nothing_to_running.py",
    "user/first_service": "unit/test_examples.py",
    "user/migration": "unit/test_page_programs.py",
    "user/run_your_service": "unit/test_examples.py",
    "user/sink": "unit/sink/test_examples.py",
}
_RUN = {"bash", "python", "toml"}
_READ = {"console", "ini", "json", "text", "yaml"}
_OTHER_PRODUCTS = {"admin/to_prometheus", "user/run_your_service"}  # their ini blocks are for CloudKitty and systemd
_OF_KEYSTONE = "keystone_authtoken"
_SYSTEM = {"cat", "cd", "chmod", "curl", "docker", "export", "for", "kubectl", "mkdir", "openssl", "printf", ".", "["}
_PROGRAMS = _SYSTEM | {
    "bash",
    "mypy",
    "openstack",
    "pip",
    "python",
    "python3",
    "ruff",
    "sphinx-build",
    "stestr",
    "tempest",
    "tox",
}


def blocks(*languages):
    """Yield the page, the options and the text of each block."""
    for name, path in PAGES.items():
        for _, language, options, text in _BLOCK.findall(path.read_text()):
            if language in languages:
                yield name, options, textwrap.dedent(text).strip("\n")


def only_block(page, language):
    [text] = [text for name, _, text in blocks(language) if name == page]
    return text


def command_lines():
    """Yield the page and each command of its console blocks, on one line."""
    for page, _, text in blocks("console"):
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            if line.startswith("$ "):
                yield page, line.removeprefix("$ ")


class CoverageTest(ConfigurationTestCase):
    def test_each_page_with_a_program_has_a_test_that_reads_the_page(self):
        self.assertEqual(TESTS.keys(), {page for page, *_ in blocks(*_RUN)})
        for page, test in TESTS.items():
            source = (ROOT / "monasca_common" / "tests" / test).read_text()
            self.assertTrue(f'{page.rpartition("/")[2]}.rst"' in source or f'"{page}"' in source, page)

    def test_the_language_of_each_block_is_one_that_tests_run_or_read(self):
        marked = {match[1] for path in PAGES.values() for match in re.finditer(r"code-block::(.*)", path.read_text())}
        self.assertEqual({f" {name}" for name in _RUN | _READ}, marked)

    def test_each_included_program_is_run_by_a_test(self):
        included = {
            Path(name).relative_to("../../../examples")
            for path in PAGES.values()
            for name in re.findall(r"literalinclude:: (\S+/examples/\S+\.py)", path.read_text())
        }
        self.assertGreater(len(included), 20)
        tests = "\n".join(path.read_text() for path in (ROOT / "monasca_common" / "tests").rglob("test_*.py"))
        for path in included:
            names = (path.name, f'"{path.stem}"', f'"{path.parent}"', f'"{path.parent.name}"')
            self.assertTrue(any(name in tests for name in names), path)


class SettingsTest(ConfigurationTestCase):
    def test_each_setting_on_a_page_exists_and_its_value_is_valid(self):
        checked = 0
        for page, _, text in blocks("ini"):
            if page in _OTHER_PRODUCTS:
                continue
            conf = cfg.ConfigOpts()
            log.register_options(conf)
            for group, options in own_options():
                if group != _OF_KEYSTONE:  # has required options
                    conf.register_opts(options, group=group)
            conf(["--config-file", self.path_of(text)], project="monasca-common-tests", default_config_dirs=[])
            for group, names in config_file.names_in_files(conf).items():
                section = conf if group == "DEFAULT" else conf[group]
                for name in names:
                    checked += 1
                    if group != _OF_KEYSTONE:
                        self.assertIsNotNone(getattr(section, name), f"{page}: [{group}] {name}")
        self.assertGreater(checked, 80)

    def test_the_settings_of_the_first_page_open_its_clients(self):
        memory = self.useFixture(MemoryKafka())
        memory.broker.create_topic("metrics")
        text = next(text for page, _, text in blocks("ini") if page == "configuration/index")
        folder = Path(self.useFixture(fixtures.TempDir()).path)
        certificates.issue(folder, ["kafka"])
        text = text.replace("/etc/monasca/ca.pem", str(folder / "ca.pem"))
        conf = self.configured(text.replace("[kafka]\n", "[kafka]\ndriver = memory\n"))
        opened = {"conf": conf}
        exec(only_block("configuration/index", "python"), opened)
        self.addCleanup(opened["consumer"].close)
        self.addCleanup(opened["producer"].close, 0)
        self.assertEqual("memory", opened["producer"].health().driver)


class OldSignaturesTest(ConfigurationTestCase):
    def test_the_former_calls_of_the_page_publish_and_commit(self):
        memory = self.useFixture(MemoryKafka())
        memory.broker.create_topic("metrics", 1)
        program = only_block("user/migration", "python").replace("kafka1.example.org:9092", "memory://memory:9092")
        memory.producer().publish("metrics", [b"first"]).raise_for_undelivered()
        stored = []

        def store(value):
            stored.append(value)
            if len(stored) == 2:
                raise KeyboardInterrupt

        defined = {"store": store}
        self.assertRaises(KeyboardInterrupt, exec, program, defined)
        defined["consumer"].close()
        defined["producer"].close(0)
        self.assertEqual((0, [b"first", b"..."]), (defined["waiting"], stored))
        self.assertEqual([1], list(memory.broker.committed("1_metrics").values()))


class CommandsTest(ConfigurationTestCase):
    def test_each_command_runs_a_known_program(self):
        for page, line in command_lines():
            program = line.split()[0].rpartition("/")[2]
            self.assertTrue(program == "monasca-common" or program in _PROGRAMS or "=" in program, f"{page}: {line}")

    def test_extras_environments_and_files_of_commands_exist(self):
        setup, tox = configparser.ConfigParser(), configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        tox.read(ROOT / "tox.ini")
        environments = " ".join(tox.sections())
        checked = 0
        for page, line in command_lines():
            where = f"{page}: {line}"
            for extras in re.findall(r"(?:\.|CHECKOUT)\[([\w,-]+)\]", line):
                self.assertLessEqual(set(extras.split(",")), set(setup["extras"]) | extras_of(setup), where)
            for name in re.findall(r"\btox (?:run )?-e (\w+)", line):
                self.assertIn(name, environments, where)
            for name in re.findall(r"(?<![\w/.-])((?:examples|tools|deploy)/[\w./-]+)", line):
                self.assertTrue((ROOT / name).exists(), where)
                checked += 1
        self.assertGreater(checked, 8)

    def test_each_program_on_a_command_line_prints_what_the_page_needs(self):
        programs = [shlex.split(line)[2] for _, line in command_lines() if line.startswith("python -c ")]
        printed = [
            subprocess.run(
                [sys.executable, "-c", program],
                input="secret\n",
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
                start_new_session=True,  # without a terminal, getpass reads stdin
            ).stdout.strip()
            for program in programs
        ]
        self.assertEqual([44, 64], sorted(map(len, printed)))


class RequestsTest(AlarmsCase, SqliteTestCase):
    def test_each_request_of_a_page_is_accepted(self):
        answers = {}
        for _, line in command_lines():
            if line.startswith("curl ") and "/v2.0/" in line:
                line = re.sub(r"\$\(date \+%s000\)", str(self.now_ms), line)
                words = shlex.split(re.sub(r"\$\(uuidgen\)", "5", line))
                [url] = [word for word in words if "/v2.0/" in word]
                body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
                method = words[words.index("-X") + 1] if "-X" in words else "GET" if body is None else "POST"
                path = urlsplit(url).path.replace("$ALARM", "an-alarm")
                found = self.client.simulate_request(
                    method, path, query_string=urlsplit(url).query, json=body, headers={"X-Project-Id": "t1"}
                )
                answers[f"{method} {path}"] = found.status_code
        self.assertEqual(
            {
                "GET /v2.0/silences": 200,
                "PATCH /v2.0/alarms/an-alarm": 404,  # the body is valid, and the alarm does not exist
                "POST /v2.0/metrics": 204,
                "POST /v2.0/silences": 201,
            },
            answers,
        )


def extras_of(setup):
    """Return the extras, of which configparser reads only the names: pbr's format has no values."""
    return set(re.findall(r"(?m)^([\w-]+) =$", (ROOT / "setup.cfg").read_text().partition("[extras]")[2]))
