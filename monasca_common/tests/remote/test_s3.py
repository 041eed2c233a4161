# SPDX-License-Identifier: Apache-2.0
"""Archive and replay in an object store, where a copy can be interrupted before its source is removed."""

import atexit
import functools
import json
import logging
import os
import shutil
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from monasca_common.kafka.errors import ConfigurationError
from monasca_common.pipeline.errors import ArchiveDamaged, ArchiveUnavailable
from monasca_common.tests.functional.pipeline import test_archive, test_secrets
from monasca_common.tests.functional.pipeline.archive_case import ArchiveCase, metric
from monasca_common.tests.functional.pipeline.pipeline_case import SPARK
from monasca_common.tests.remote import hadoop
from monasca_common.tests.remote.remote_archive import (
    RemoteArchive,
    RemoteReplay,
    die_before_placing,
    go_on_under_watch,
)

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


class S3Archive(RemoteArchive):
    def setUp(self):
        self.server = shared_server()
        self.spark_settings = self.server.spark_settings
        super().setUp()

    def new_location(self):
        return f"s3a://{BUCKET}/{uuid.uuid4().hex}/archive"

    def all_files(self):
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self.key(""))
        found = [each["Key"].removeprefix(self.key("")) for page in pages for each in page.get("Contents", [])]
        return sorted(name for name in found if name and not name.endswith("/"))  # except the markers of folders

    def key(self, path):
        return f"{self.location.partition(f'{BUCKET}/')[2]}/{path}"


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


class S3ReplayTest(S3Archive, RemoteReplay, ArchiveCase):
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
