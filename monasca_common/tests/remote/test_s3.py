# SPDX-License-Identifier: Apache-2.0
"""Archive and replay in an object store, where a copy can be interrupted before its source is removed."""

import atexit
import functools
import json
import logging
import os
import shutil
import signal
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from monasca_common.kafka import failpoints
from monasca_common.kafka.errors import ConfigurationError
from monasca_common.kafka.failpoints import FailPointReached
from monasca_common.pipeline.archive import manifest
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable
from monasca_common.pipeline.replay.senders import MatchingCount
from monasca_common.pipeline.source.offset_store import Source
from monasca_common.tests.functional.pipeline import test_archive, test_secrets
from monasca_common.tests.functional.pipeline.archive_case import ArchiveCase, Watch, metric
from monasca_common.tests.functional.pipeline.pipeline_case import SPARK
from monasca_common.tests.functional.pipeline.test_archive_replay import ReplayCase, expected_rows
from monasca_common.tests.remote import hadoop

# Processes that outlive a test use the folder for temporary files that was set before the test.
_TEMPORARY = tempfile.gettempdir()
BUCKET, REGION = "monasca", "us-east-1"
#: The credentials are only in a file, as recommended for production.
KEY, SECRET = "plantedkey", "plantedsecret"


class S3Server:
    def __init__(self):
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        for loud in ("werkzeug", "botocore", "boto3", "urllib3"):
            logging.getLogger(loud).setLevel(logging.WARNING)
        folder = Path(tempfile.mkdtemp(prefix="monasca-s3-", dir=_TEMPORARY))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        credentials = folder / "credentials"
        credentials.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
        # Spark's workers and the commands of tests inherit these variables.
        os.environ |= {
            "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.client = boto3.client("s3")
        self.client.create_bucket(Bucket=BUCKET)
        options = {
            "endpoint": self.url,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "aws.credentials.provider": "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
        }
        self.spark_settings = replace(
            SPARK,
            options={
                **SPARK.options,
                "spark.jars.packages": hadoop.S3_CLIENT,
                **{f"spark.hadoop.fs.s3a.{name}": value for name, value in options.items()},
            },
        )


@functools.cache
def shared_server():
    """Return the server of this process; the first call starts it."""
    return S3Server()


class S3Archive:
    """A mixin for an `ArchiveCase` whose archive is in an object store. Spark reads it with Hadoop's own client."""

    def setUp(self):
        self.server = shared_server()
        self.spark_settings = self.server.spark_settings
        super().setUp()

    def new_location(self):
        return f"s3a://{BUCKET}/{uuid.uuid4().hex}/archive"

    def visible_files(self):
        return [name for name in self.all_files() if not any(part[0] in "_." for part in name.split("/"))]

    def staged_files(self):
        return [name.rpartition("/")[2] for name in self.all_files() if name.startswith("_staging/")]

    def all_files(self):
        """Return the relative paths of all files, in order."""
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.key(""))
        found = [each["Key"].removeprefix(self.key("")) for page in pages for each in page.get("Contents", [])]
        return sorted(name for name in found if name and not name.endswith("/"))  # except the markers of folders

    def key(self, path):
        return f"{self.location.partition(f'{BUCKET}/')[2]}/{path}"

    def committed(self):
        source = Source(self.group, self.topic, None)
        with self.offset_store.reading() as connection:
            return manifest.find(connection, source, manifest.FileState.COMMITTED)


def go_on_under_watch(case):
    """Let another process continue with the committed files, while a reader watches."""
    with Watch(case) as watch:
        case.archiver().step()
        watch.look()
    case.assertEqual([], watch.faults)
    case.assertEqual([], case.staged_files())


def die_before_placing(case):
    with failpoints.armed("archive.before_rename", "raise"):
        case.assertRaises(FailPointReached, case.archiver().step)


_LOUD = """\
[DEFAULT]
debug = true
[spark]
options = spark.eventLog.enabled=true
options = spark.eventLog.dir={events}
options = spark.eventLog.compress=false
"""


class S3CrashTest(S3Archive, test_archive.CrashTest):
    """The command is killed at each fail point, and another process continues."""


class S3ReplayTest(S3Archive, ReplayCase):
    def test_a_replay_that_is_killed_and_repeated_stores_each_row_once(self):
        sent = [metric(number) for number in range(60)]
        self.publish(sent)
        archiving = self.archiver(max_offsets_per_trigger=20)
        while archiving.step().left:
            pass
        url = self.new_database()
        configuration = self.configuration(replay="to = storage", url=url, name="replay")
        died = self.run_command(configuration, "replay", "--execute", fail_points="replay.after_some=kill")
        self.assertEqual(-signal.SIGKILL, died.returncode, died.stderr)
        self.assertTrue(0 < len(self.rows_of(url)) < 60)
        for _ in range(2):
            again = self.run_command(configuration, "replay", "--execute")
            self.assertEqual(0, again.returncode, again.stderr)
            self.assertEqual(expected_rows([record.value for record in sent]), self.rows_of(url))

    def assert_no_replay(self):
        error = self.assertRaises(ConfigurationError, self.replay, MatchingCount(self.archive()))
        path = self.location.partition("://")[2]
        self.assertIn(f"{path}/topic={self.topic} does not exist", str(error))

    def test_a_replay_from_a_missing_archive_names_the_path(self):
        self.assert_no_replay()

    def test_a_replay_from_a_missing_bucket_names_the_bucket(self):
        self.location = "s3://no-such-bucket/archive"
        self.assert_no_replay()


class S3PlacingTest(S3Archive, ArchiveCase):
    def test_a_copy_interrupted_before_the_removal_of_its_source_is_repeated(self):
        sent = self.publish(metric(number) for number in range(12))
        die_before_placing(self)
        [file, *_] = self.committed()
        source = {"Bucket": BUCKET, "Key": self.key(file.staged)}
        self.server.client.copy_object(Bucket=BUCKET, Key=self.key(file.path), CopySource=source)
        go_on_under_watch(self)
        self.assert_archived_once(sent)

    def test_a_file_that_s3_cannot_move_is_refused_before_the_commit(self):
        sent = self.publish([metric(1)])
        archiving = self.archiver()
        archiving._store.largest_bytes = 10
        error = self.assertRaises(ConfigurationError, archiving.step)
        self.assertIn("max_offsets_per_trigger", str(error))
        self.assertEqual([], self.manifest())
        self.archiver().step()
        self.assert_archived_once(sent)

    def test_a_missing_bucket_is_named(self):
        self.publish([metric(1)])
        self.location = "s3://no-such-bucket/archive"
        error = self.assertRaises(ArchiveUnavailable, self.archiver().step)
        self.assertIn("no-such-bucket", str(error))

    def test_mutant_that_removes_staged_files_loses_records(self):
        """The mutant removes staged files instead of placing committed files."""
        sent = self.publish(metric(number) for number in range(12))
        die_before_placing(self)
        archiving = self.archiver()
        for file in self.committed():
            archiving._store.remove_file(file.staged)
        self.assertRaises(ArchiveDamaged, archiving.step)
        self.assertNotEqual(len(sent), len(self.places()))


class S3SecretsTest(S3Archive, ArchiveCase):
    def run_watched(self):
        """Return where the credentials are visible in command lines, environments, logs and Spark's event log."""
        events = self.folder / "events"
        events.mkdir(exist_ok=True)
        watch = test_secrets.Watch()
        watch.start()
        self.addCleanup(watch.stop)
        done = self.run_command(self.configuration(others=_LOUD.format(events=events)), "archive", "--once")
        watch.stop()
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("java", watch.programs)
        event_log = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
        self.assertIn("SparkListenerApplicationStart", event_log)
        reported = done.stdout + done.stderr + event_log
        return watch.found, [secret for secret in (KEY, SECRET) if secret in reported]

    def test_credentials_in_the_aws_file_do_not_leak(self):
        self.publish([metric(1)])
        self.assertEqual((set(), []), self.run_watched())
        self.assertEqual(1, len(self.visible_files()))

    def test_credentials_in_the_location_do_not_leak(self):
        self.publish([metric(1)])
        self.location = self.location.replace("s3a://", f"s3://{KEY}:{SECRET}@")
        self.assertEqual((set(), []), self.run_watched())
        self.assertEqual(1, len(self.visible_files()))
        self.assertNotIn(SECRET, json.dumps([list(map(str, row)) for row in self.manifest()]))
