"""What is in deploy/ can be read, and speaks of metrics, options and rules that exist.

The proxies' configurations are run by tests/real/test_proxies.py; what else needs a program of its own is in
tests/real/test_deploy_tools.py.
"""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from ratekeeper import Policy
from ratekeeper.commands.app import app
from tests.service.running import running

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\bratekeeper_[a-z_]+")
KUBERNETES = [
    part for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for part in yaml.safe_load_all(file.read_text())
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Every name that a service with some traffic exports."""
    rules = '[[rules]]\nname = "a"\nby = "ip"\nlimit = "1/hour"\n'
    with running(tmp_path_factory.mktemp("deploy"), rules) as service:
        for _ in range(2):
            service.post("/v1/check", {"request": {"ip": "198.51.100.1"}})
        text = service.call("GET", "/metrics")[2].decode()
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize("file", ["prometheus/alerts.yml", "grafana/ratekeeper.json"])
def test_alerts_and_panels_ask_for_metrics_that_exist(file, exported):
    text = (DEPLOY / file).read_text()
    exprs = [rule["expr"] for rule in yaml.safe_load(text)["groups"][0]["rules"]] if file.endswith("yml") else [
        target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]
    ]  # fmt: skip
    asked = {name for expr in exprs for name in METRIC.findall(expr)}
    assert len(asked) > 5
    assert asked <= exported


def test_every_alert_has_a_test_that_sees_it_fire():
    alerts = {
        rule["alert"] for rule in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    }
    cases = yaml.safe_load((DEPLOY / "prometheus/alerts.test.yml").read_text())["tests"]
    fired = {one["alertname"] for case in cases for one in case["alert_rule_test"] if one["exp_alerts"]}
    assert fired == alerts


def test_promtool_agrees():
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("no promtool here")
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        found = subprocess.run([binary, *words], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr


def test_systemd_agrees():
    binary = shutil.which("systemd-analyze")
    if binary is None:
        pytest.skip("no systemd here")
    words = [binary, "verify", DEPLOY / "systemd/ratekeeper.service"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    told = [line for line in found.stderr.splitlines() if "ratekeeper" in line and "is not executable" not in line]
    assert told == []


def commands():
    """The words behind ``serve`` in every file that starts the service."""
    for part in KUBERNETES:
        if part["kind"] == "Deployment":
            pod = part["spec"]["template"]["spec"]
            for container in [*pod.get("initContainers", ()), *pod["containers"]]:
                if "ratekeeper" in container["image"]:
                    yield container["args"]
    yield yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]["ratekeeper"]["command"]
    docker = (DEPLOY / "Dockerfile").read_text()
    yield json.loads(re.search(r"^CMD (.*)$", docker, re.M)[1])
    unit = (DEPLOY / "systemd/ratekeeper.service").read_text()
    yield shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.M)[1])[1:]


@pytest.mark.parametrize("words", list(commands()))
def test_what_starts_the_service_uses_options_that_exist(words):
    assert words[0] == "serve"
    command = get_command(app).commands["serve"]
    command.make_context("serve", list(words[1:]), resilient_parsing=False)


def rules():
    yield tomllib.loads((DEPLOY / "compose/rules.toml").read_text())
    yield tomllib.loads((DEPLOY.parent / "src/ratekeeper/service/sample.toml").read_text())
    for part in KUBERNETES:
        if part["kind"] == "ConfigMap":
            yield tomllib.loads(part["data"]["rules.toml"])


@pytest.mark.parametrize("found", list(rules()))
def test_the_rules_can_be_taken(found):
    assert Policy.parse(found, store="memory://").rules


def test_images_have_a_tag_that_does_not_move():
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"].values()
    images = [service["image"] for service in compose if "image" in service]
    images += re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert len(images) >= 4
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []


@pytest.mark.parametrize("script", ["ensure-tools", "ensure-redis", "ensure-arq"])
def test_what_the_tests_download_is_pinned_by_version_and_hash(script):
    text = (DEPLOY.parent / "scripts" / script).read_text()
    packages = re.findall(r'"([a-z-]+)==[\w.]+"', text)
    assert packages
    assert len(set(re.findall(r'"[0-9a-f]{64}"', text))) >= len(packages)
    assert ">=" not in re.sub(r"sys.version_info >= .*", "", text)
