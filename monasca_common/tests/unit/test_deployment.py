# SPDX-License-Identifier: Apache-2.0
"""The files in ``deploy/`` match the services: commands, options, ports, paths, versions, and the time that a stop
can take."""

import configparser
import functools
import re
import shlex
from base64 import urlsafe_b64encode
from pathlib import Path

import yaml
from keystoneauth1 import loading
from keystonemiddleware.auth_token import _opts as middleware_options
from oslo_config import cfg
from oslotest import base

from monasca_common.api import server
from monasca_common.api.limits import PUBLIC_PATHS
from monasca_common.api.settings import api_settings
from monasca_common.cli import services
from monasca_common.cli.config import check_service
from monasca_common.devbroker.jars import KAFKA_VERSION
from monasca_common.notification.settings import notification_settings
from monasca_common.operations.dashboard.settings import DashboardSettings
from monasca_common.operations.lag.service import READ_SECONDS
from monasca_common.persister.settings import persister_settings
from monasca_common.pipeline.settings import spark_settings
from monasca_common.runtime.status_server import STATUS_PATHS
from monasca_common.runtime.workers import grace_seconds
from monasca_common.sink.settings import sink_settings
from monasca_common.tests.unit.test_command_pages import commands

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
SERVICES = ("api", "persister", "sink", "pipeline", "evaluator", "notification", "lag")
CONFIGURED = {"evaluator": "pipeline"}  # services of `config check` for these files; the others have their own names
JOBS = {"pipeline": "aggregate", "evaluator": "evaluate"}
COMMANDS = {"sink": ["sink", "run"], **{name: ["pipeline", "run", job] for name, job in JOBS.items()}}
[RELEASE] = re.findall(r"(?m)^version = (.+)$", (ROOT / "setup.cfg").read_text())
_SECONDS = {"s": 1, "min": 60}
_BATCH_SECONDS = 180  # jobs of the pipeline: batches are short, and an interrupted batch is recomputed
PATHS = {
    "api": PUBLIC_PATHS,
    **dict.fromkeys(("persister", "sink", "pipeline", "evaluator", "notification", "lag"), STATUS_PATHS),
}


def unit(name):
    """Return the options of a unit; of repeated options the last one."""
    text = (DEPLOY / "systemd" / f"monasca-{name}.service").read_text()
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(text)
    return {option: value for section in parser.sections() for option, value in parser[section].items()}


def seconds(text):
    number, unit_of_time = re.fullmatch(r"(\d+)(s|min)", text).groups()
    return int(number) * _SECONDS[unit_of_time]


def composed():
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())


def kustomization():
    return yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())


@functools.cache
def manifests(kind):
    """Return {name: manifest} of a kind. Callers must not change the manifests."""
    found = {}
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            if each["kind"] == kind:
                found[each["metadata"]["name"].removeprefix("monasca-")] = each
    return found


def pods():
    """Return {name of the service: specification of its pod}, including ``init``."""
    found = {**manifests("Deployment"), **manifests("StatefulSet"), **manifests("Job")}
    return {name: each["spec"]["template"]["spec"] for name, each in found.items()}


def words_of_containers():
    """Return the command lines of compose and of the manifests, starting with the name of the command."""
    for name in (*SERVICES, "init"):
        yield composed()["services"][name]["command"]
        yield pods()[name]["containers"][0]["args"]


class ConfiguredTestCase(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        key = urlsafe_b64encode(b"replace+this+example+key+at+once").decode()
        secrets = f"[database]\nconnection = postgresql://u:p@db/d\n[alarms]\naddress_keys = {key}\n"
        [database] = self.create_tempfiles([("secret", secrets)])
        authority = self.create_tempfiles([("ca", "")], ext=".pem")[0]
        mapping = str(DEPLOY / "kubernetes" / "sink.toml")
        here, composed_here, kubernetes_here = self.create_tempfiles(
            (
                where,
                (DEPLOY / where / "monasca.conf")
                .read_text()
                .replace("/etc/monasca/ca.pem", authority)
                .replace("/etc/monasca/sink.toml", mapping),
            )
            for where in ("systemd", "compose", "kubernetes")
        )
        secret = str(DEPLOY / "systemd" / "secret.conf")
        self.files = {
            "systemd": [here, secret],
            "compose": [composed_here, database],
            "kubernetes": [kubernetes_here, secret],
        }

    def conf(self, where, service_name="persister"):
        return services.read_service(service_name, self.files[where])


class CommandsTest(base.BaseTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.commands = commands()

    def assert_accepted(self, words):
        known = self.commands
        words = words[words[0] == "monasca-common" :]
        length = next(length for length in (3, 2, 1) if " ".join(words[:length]) in known)
        parsed = known[" ".join(words[:length])].parse_args(words[length:])
        self.assertIn(len(parsed.config_file), (2, 3))
        self.assertNotRegex(" ".join(words), "(?i)password|token|://")

    def test_each_command_of_a_unit_exists(self):
        for name in SERVICES:
            program, *words = shlex.split(unit(name)["ExecStart"])
            self.assertEqual("/opt/monasca/bin/monasca-common", program)
            command = COMMANDS.get(name, [name])
            self.assertEqual(command, words[: len(command)])
            self.assert_accepted(words)

    def test_each_command_of_a_container_exists(self):
        for words in words_of_containers():
            self.assert_accepted(words)


class ConfigurationsTest(ConfiguredTestCase):
    def test_each_service_accepts_each_file(self):
        for where, files in self.files.items():
            for name in SERVICES:
                found = check_service(CONFIGURED.get(name, name), files)
                self.assertEqual(((), ()), (found.faults, found.notes), f"{where}: {name}")

    def test_each_keystone_option_belongs_to_the_middleware_or_the_auth_plugin(self):
        options = [*middleware_options._OPTS, *loading.get_auth_common_conf_options()]
        options += loading.get_auth_plugin_conf_options("password")
        known = {option.dest for option in options}
        for where in ("systemd", "kubernetes"):
            for file in self.files[where]:
                parser = configparser.RawConfigParser(strict=False)
                parser.read(file)
                if parser.has_section("keystone_authtoken"):
                    self.assertLessEqual(set(parser["keystone_authtoken"]), known)

    def test_ports_match_the_configuration_files(self):
        spec, config = composed()["services"], (DEPLOY / "compose" / "monasca.conf").read_text()
        for name in SERVICES:
            pod = pods()[name]["containers"][0]
            ports = {each["name"]: each["containerPort"] for each in pod["ports"]}
            self.assertEqual(port_of(name, (DEPLOY / "kubernetes" / "monasca.conf").read_text()), ports["http"])
            [url] = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", spec[name]["healthcheck"]["test"][-1])
            self.assertEqual(port_of(name, config), int(url[0]))
            self.assertIn(url[1], PATHS[name])
        self.assertEqual(["127.0.0.1:8070:8070", "127.0.0.1:8077:8077"], spec["api"]["ports"])

    def test_prometheus_scrapes_the_api_at_a_port_that_tenants_cannot_reach(self):
        status = api_settings(self.conf("systemd", "api")).status
        asked = {
            each["job_name"]: each["static_configs"][0]["targets"]
            for each in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
        }
        self.assertEqual([status.address], asked["monasca-api"])
        pod = manifests("Deployment")["api"]["spec"]["template"]
        ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
        self.assertEqual(api_settings(self.conf("kubernetes", "api")).status.port, ports["status"])
        self.assertEqual(str(ports["status"]), pod["metadata"]["annotations"]["prometheus.io/port"])
        served = {port["targetPort"] for port in manifests("Service")["api"]["spec"]["ports"]}
        self.assertEqual({"http"}, served)
        in_compose = api_settings(self.conf("compose", "api"))
        self.assertEqual((8070, 8077), (in_compose.port, in_compose.status.port))

    def test_no_other_service_has_the_default_port_of_the_dashboard(self):
        files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix in (".conf", ".yml", ".yaml")]
        ports = {
            int(port)
            for path in files
            for port in re.findall(r"(?:(?m:^\w*port = )|127\.0\.0\.1:|containerPort: )(\d+)", path.read_text())
        }
        self.assertIn(port_of("lag", (DEPLOY / "systemd" / "monasca.conf").read_text()), ports)
        self.assertNotIn(DashboardSettings().port, ports)

    def test_the_driver_has_the_address_and_ports_of_its_service(self):
        text = (DEPLOY / "kubernetes" / "monasca.conf").read_text()
        own = {"pipeline": "", "evaluator": (DEPLOY / "kubernetes" / "evaluator.conf").read_text()}
        for name, more in own.items():
            options = dict(re.findall(r"(?m)^options = ([\w.]+)=(.+)$", text + more))
            ports = {each["name"]: each["port"] for each in manifests("Service")[name]["spec"]["ports"]}
            self.assertEqual(f"monasca-{name}", options["spark.driver.host"])
            self.assertEqual(f"monasca-{name}-0", options["spark.kubernetes.driver.pod.name"])
            self.assertEqual(str(ports["driver"]), options["spark.driver.port"])
            self.assertEqual(str(ports["blocks"]), options["spark.driver.blockManager.port"])
        [image] = [each for each in kustomization()["images"] if each["name"] == "monasca-pipeline"]
        self.assertEqual(f"{image['newName']}:{image['newTag']}", options["spark.kubernetes.container.image"])

    def test_the_later_file_overrides_the_options_of_the_evaluator(self):
        folder = DEPLOY / "kubernetes"
        files = [folder / "monasca.conf", folder / "evaluator.conf", DEPLOY / "systemd" / "secret.conf"]
        settings = spark_settings(services.read_service("pipeline", list(map(str, files))))
        self.assertEqual("monasca-evaluator", settings.options["spark.driver.host"])
        self.assertEqual("2", settings.options["spark.executor.instances"])
        [container] = pods()["evaluator"]["containers"]
        named = [Path(word).name for word in container["args"] if word.endswith(".conf")]
        self.assertEqual([path.name for path in files], named)

    def test_the_stop_time_out_is_at_least_that_of_the_service(self):
        compose, kubernetes = composed()["services"], pods()
        for where in self.files:
            gunicorn = server.Server(self.conf(where, "api"), api_settings(self.conf(where, "api")))
            takes = {
                "api": gunicorn.cfg.graceful_timeout,
                "persister": grace_seconds(persister_settings(self.conf(where)).consumers),
                "sink": grace_seconds([sink_settings(self.conf(where, "sink")).consumer]),
                "pipeline": _BATCH_SECONDS,
                "evaluator": _BATCH_SECONDS,
                "notification": grace_seconds([notification_settings(self.conf(where, "notification")).consumer]),
                "lag": READ_SECONDS,
            }
            for name, least in takes.items():
                self.assertGreater(seconds(unit(name)["TimeoutStopSec"]), least)
                self.assertGreater(seconds(compose[name]["stop_grace_period"]), least)
                self.assertGreater(kubernetes[name]["terminationGracePeriodSeconds"], least)


def port_of(name, text):
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    group = f"pipeline_{JOBS[name]}" if name in JOBS else name
    return int(parser[group]["port" if name == "api" else "status_port"])


class UnitsTest(base.BaseTestCase):
    def test_a_unit_has_a_user_a_folder_and_a_restart_limit(self):
        for name in SERVICES:
            found = unit(name)
            self.assertEqual(("monasca", "/var/lib/monasca"), (found["User"], found["WorkingDirectory"]))
            self.assertEqual(("on-failure", "mixed"), (found["Restart"], found["KillMode"]))
            attempts = int(found["StartLimitBurst"]) * seconds(found["RestartSec"])
            self.assertLess(attempts, seconds(found["StartLimitIntervalSec"]))
            self.assertEqual(
                ("yes", "strict", ""),
                tuple(found[option] for option in ("NoNewPrivileges", "ProtectSystem", "CapabilityBoundingSet")),
            )


class ContainersTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        self.containerfile = (DEPLOY / "Containerfile").read_text()

    def test_deployed_versions_are_the_tested_versions(self):
        [spark] = re.findall(r"(?m)^pyspark==(.+)$", (ROOT / "upper-constraints.txt").read_text())
        self.assertIn(f"/spark:{spark}-", self.containerfile)
        self.assertEqual({RELEASE}, set(re.findall(r"(?m)^ARG VERSION=(.+)$", self.containerfile)))
        self.assertEqual(f"docker.io/apache/kafka:{KAFKA_VERSION}", composed()["services"]["kafka"]["image"])
        self.assertEqual({RELEASE}, {str(each["newTag"]) for each in kustomization()["images"]})
        for name in SERVICES:
            self.assertTrue(composed()["services"][name]["image"].endswith(f":{RELEASE}"))

    def test_images_contain_only_existing_extras_and_files(self):
        parser = configparser.RawConfigParser()
        parser.read(ROOT / "setup.cfg")
        for extras in re.findall(r'"\.\[([\w,]+)\]"', self.containerfile):
            self.assertLessEqual(set(extras.split(",")), set(parser["extras"]))
        copied = {
            word for line in re.findall(r"(?m)^COPY (?!--)(.+) \S+$", self.containerfile) for word in line.split()
        }
        let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
        self.assertEqual(copied, let_in)
        self.assertEqual([], [name for name in copied if not (ROOT / name).exists()])

    def test_no_container_runs_as_root(self):
        users = [stage.split() for stage in re.findall(r"(?m)^FROM .+ AS (.+(?:\n(?!FROM).*)*)", self.containerfile)]
        last = {words[0]: words[len(words) - 1 - words[::-1].index("USER") + 1] for words in users if "USER" in words}
        self.assertEqual(("42420:42420", "185:185"), (last["service"], last["pipeline"]))
        for name, pod in pods().items():
            context = pod["containers"][0]["securityContext"]
            self.assertTrue(pod["securityContext"]["runAsNonRoot"], name)
            self.assertIn(f"{pod['securityContext']['runAsUser']}:", self.containerfile)
            self.assertEqual((False, True), (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]))
            self.assertIn("memory", pod["containers"][0]["resources"]["limits"])

    def test_java_can_load_libraries_from_the_temporary_folder(self):
        # By default Docker mounts a tmpfs with noexec, which prevents loading the libraries of zstd and snappy.
        for name in JOBS:
            self.assertEqual(["/tmp:exec"], composed()["services"][name]["tmpfs"])

    def test_each_probe_requests_an_existing_path(self):
        for name in SERVICES:
            container = pods()[name]["containers"][0]
            probes = [probe for key, probe in container.items() if key.endswith("Probe")]
            self.assertGreaterEqual(len(probes), 2)
            for probe in probes:
                port, path = probe["httpGet"]["port"], probe["httpGet"]["path"]
                self.assertIn(path, PATHS[name] if port == "http" else STATUS_PATHS)
                self.assertIn(port, [each["name"] for each in container["ports"]])

    def test_clients_that_occupy_the_threads_of_the_api_restart_no_pod(self):
        container = pods()["api"]["containers"][0]
        for name in ("startupProbe", "livenessProbe"):
            self.assertEqual("status", container[name]["httpGet"]["port"])

    def test_an_unavailable_dependency_restarts_no_pod(self):
        for name in SERVICES:
            path = pods()[name]["containers"][0]["livenessProbe"]["httpGet"]["path"]
            self.assertNotIn(path, ("/healthcheck", "/readyz"))

    def test_kustomize_lists_exactly_the_existing_files(self):
        there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
        self.assertEqual(there, set(kustomization()["resources"]))
        [config] = kustomization()["configMapGenerator"]
        self.assertTrue(all((DEPLOY / "kubernetes" / name).exists() for name in config["files"]))
        self.assertEqual(
            {each["name"] for each in kustomization()["images"]},
            {pod["containers"][0]["image"] for pod in pods().values()},
        )


class ProxyTest(base.BaseTestCase):
    def setUp(self):
        super().setUp()
        text = re.sub(r"#.*", "", (DEPLOY / "nginx" / "monasca-api.conf").read_text())
        self.directives = dict(re.findall(r"(?m)^\s*(\w+) ([^;{]+);", text))
        self.text = text
        self.settings = api_settings(self.conf())

    def conf(self):
        conf = cfg.ConfigOpts()
        [file] = self.create_tempfiles([("api", "[kafka]\nbootstrap_servers = nowhere:9092\n")])
        conf(["--config-file", file], default_config_files=[])
        return conf

    def test_the_limits_of_the_proxy_match_those_of_the_api(self):
        megabytes = int(self.directives["client_max_body_size"].removesuffix("m"))
        self.assertEqual(megabytes * 1024 * 1024, self.settings.max_body_bytes)
        self.assertGreater(seconds(self.directives["proxy_read_timeout"]), self.settings.publish_timeout_seconds)
        self.assertLess(seconds(self.directives["keepalive_timeout"]), server._KEEP_ALIVE_SECONDS)

    def test_the_proxy_does_not_repeat_posts_and_passes_the_idempotency_header(self):
        self.assertEqual("error timeout", self.directives["proxy_next_upstream"])
        self.assertNotIn("non_idempotent", self.text)
        self.assertIn("proxy_set_header Idempotency-Key $http_idempotency_key;", self.text)
        self.assertIn("proxy_pass_header Retry-After;", self.text)

    def test_tenants_cannot_reach_metrics_by_any_form_of_the_path(self):
        [hidden] = re.findall(r"location ~ (\S+) {\s*return 404;\s*}", self.text)
        for path, is_hidden in (("/metrics", True), ("/metrics/", True), ("/v2.0/metrics", False)):
            self.assertEqual(is_hidden, re.search(hidden, path) is not None, path)


class ProjectFilesTest(base.BaseTestCase):
    def test_each_job_runs_an_existing_environment(self):
        tox = configparser.RawConfigParser()
        tox.read(ROOT / "tox.ini")
        environments = {section.partition(":")[2] for section in tox.sections()}
        entries = yaml.safe_load((ROOT / ".zuul.yaml").read_text())
        own = {each["job"]["name"]: each["job"]["vars"]["tox_envlist"] for each in entries if "job" in each}
        self.assertLessEqual(set(own.values()), environments)
        [project] = [each["project"] for each in entries if "project" in each]
        for name in project["check"]["jobs"]:
            environment = own.get(name, name.removeprefix("openstack-tox-").removeprefix("build-openstack-"))
            self.assertTrue(environment in environments or re.fullmatch(r"py3\d+", environment), name)
