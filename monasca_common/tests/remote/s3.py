# SPDX-License-Identifier: Apache-2.0
"""A server that is compatible with S3, for the tests of this process and the processes that they start; and the
archive in it."""

import atexit
import functools
import logging
import os
import shutil
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from monasca_common.tests.functional.pipeline.pipeline_case import SPARK
from monasca_common.tests.remote import hadoop
from monasca_common.tests.remote.remote_archive import RemoteArchive

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
