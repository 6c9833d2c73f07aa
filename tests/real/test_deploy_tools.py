"""Dockerfile, compose file and Kubernetes manifests, read by the tools of those who run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.real.proxies import DEPLOY, binary

pytestmark = pytest.mark.real
TOOLS = Path(sys.prefix, "tools")


def told(*words, **environment):
    found = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    return found.returncode, found.stdout + found.stderr


def test_hadolint_has_nothing_to_say_about_the_dockerfile():
    # Versions of Debian packages are gone from the mirrors within weeks: pinned, the image could not be built.
    words = [binary("hadolint", TOOLS / "hadolint"), "--no-color", "--ignore", "DL3008", DEPLOY / "Dockerfile"]
    assert told(*words) == (0, "")


def test_compose_reads_its_file():
    words = [binary("docker-compose"), "-f", DEPLOY / "compose/compose.yaml", "config"]
    code, text = told(*words, RATEKEEPER_ADMIN_TOKEN="sesame")
    assert code == 0, text
    found = yaml.safe_load(text)["services"]["ratekeeper"]
    assert found["environment"] == {"RATEKEEPER_ADMIN_TOKEN": "sesame"}
    assert "choose one" in told(*words, RATEKEEPER_ADMIN_TOKEN="")[1]  # nobody starts it with an empty one


@pytest.mark.parametrize("file", ["shared.yaml", "sidecar.yaml"])
def test_kubernetes_knows_every_field(file):
    validate = pytest.importorskip("kubernetes_validate")
    for part in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text()):
        validate.validate(part, validate.latest_version(), strict=True)
    broken = {**part, "spec": {**part["spec"], "replicaz": 2}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, validate.latest_version(), strict=True)
