"""The real envoyproxy/ratelimit on a real Redis, and random configurations and requests to compare it with ours.

What the comparison leaves out, as we differ on purpose:

- keys and values with ``_``: that service joins them by it, so that two descriptors may share a limit and a counter;
- a ``*`` that is not at the end of a value: the released version takes it for a letter;
- two limits of one descriptor with different units: its counters are named by the start of their window alone, so a
  minute and an hour that start together share one.
"""

import os
import random
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import yaml
from envoy.service.ratelimit.v3 import rls_pb2

from tests.servers import END_WITH_PARENT, Server, free_port

PROGRAM = Path(sys.prefix, "tools", "upstream-ratelimit")
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
KEYS = ["a", "b", "user", "path"]
VALUES = ["", "x", "y", "xy", "x/1", "x/2", "true", "010", "12:30", "x*", "é"]
PATTERNS = ["x*", "x/*", "*", "y*"]
UNITS = ["day", "DAY", "Day"]  # a comparison must not depend on when a window ends: see ``ask_both``


@contextmanager
def upstream(folder, **settings):
    """The program, listening; its limits are the files of ``folder / "config"``."""
    if not PROGRAM.exists():
        pytest.skip("no envoyproxy/ratelimit here: scripts/ensure-upstream-ratelimit says why")
    redis = Server()
    port, grpc_port, debug_port = free_port(), free_port(), free_port()
    environment = {
        "PATH": os.environ["PATH"], "USE_STATSD": "false", "LOG_LEVEL": "warn", "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{redis.port}", "RUNTIME_ROOT": str(folder), "RUNTIME_SUBDIRECTORY": "",
        "RUNTIME_WATCH_ROOT": "false", "HOST": "127.0.0.1", "PORT": str(port), "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": str(grpc_port), "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": str(debug_port),
        "LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RESPONSE_DYNAMIC_METADATA": "true", **settings,
    }  # fmt: skip
    log = (folder / "upstream.log").open("wb")
    process = subprocess.Popen([*END_WITH_PARENT, str(PROGRAM)], env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=10).read()
                break
            except OSError:
                assert process.poll() is None, (folder / "upstream.log").read_text()
                assert time.monotonic() < until, (folder / "upstream.log").read_text()
                time.sleep(0.05)
        yield grpc_port
    finally:
        process.terminate()
        process.wait(20)
        log.close()
        redis.close()


def method(channel):
    return channel.unary_unary(METHOD, rls_pb2.RateLimitRequest.SerializeToString, rls_pb2.RateLimitResponse.FromString)


def ask_both(ask_them, ask_us, request):
    """Both answers to a question, on one day: that is the window of every limit here."""
    while time.time() % 86_400 > 86_400 - 60:
        time.sleep(1)
    return ask_them(request), ask_us(request)


class Configuration:
    """A random configuration, and random requests to it."""

    def __init__(self, chance):
        self.chance = chance
        self.names = []
        self.content = {"domain": "d", "descriptors": self.level(0)}

    def level(self, depth):
        chance, taken, nodes = self.chance, set(), []
        for _ in range(chance.randrange(1, 6 if depth == 0 else 4)):
            key = chance.choice(KEYS)
            value = chance.choice([None, None, *VALUES[1:9], *PATTERNS, *PATTERNS])
            if (key, value) in taken:
                continue
            taken.add((key, value))
            nodes.append(self.node(key, value, depth))
        return nodes

    def node(self, key, value, depth):
        chance = self.chance
        node = {"key": key}
        if value is not None:
            node["value"] = value
            if value.endswith("*") and chance.random() < 0.5:
                node["share_threshold"] = True
        for flag in ("shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"):
            if chance.random() < 0.15:
                node[flag] = True
        if chance.random() < 0.75:
            node["rate_limit"] = self.rate()
        if depth < 2 and chance.random() < 0.5:
            node["descriptors"] = self.level(depth + 1)
        return node

    def rate(self):
        chance = self.chance
        rate = {}
        if chance.random() < 0.12:
            rate["unlimited"] = True
        else:
            rate |= {"unit": chance.choice(UNITS), "requests_per_unit": chance.choice([0, 1, 2, 3, 5, 20, 2**32 - 1])}
        if chance.random() < 0.3:
            rate["name"] = f"n{len(self.names)}"
            self.names.append(rate["name"])
        others = [name for name in self.names if name != rate.get("name")]
        if others and chance.random() < 0.3:
            rate["replaces"] = [{"name": name} for name in chance.sample(others, chance.randrange(1, len(others) + 1))]
        return rate

    def write(self, folder):
        """Unquoted, so that scalars are read as they are written: true, 010, 12:30."""
        folder.mkdir(exist_ok=True)
        text = yaml.safe_dump(self.content, allow_unicode=True)
        for word in ("true", "010", "12:30"):
            text = text.replace(f"value: '{word}'", f"value: {word}")
        (folder / "limits.yaml").write_text(text)

    def entries(self):
        """Entries that often lead to a limit."""
        chance, nodes, entries = self.chance, self.content["descriptors"], []
        while nodes and chance.random() < (1.0 if not entries else 0.75):
            node = chance.choice(nodes)
            value = node.get("value")
            if value is None:
                value = chance.choice(VALUES)
            elif value.endswith("*") and chance.random() < 0.9:
                value = value[:-1] + chance.choice(["", "1", "/1", "é"])
            entries.append((node["key"], value))
            nodes = node.get("descriptors")
        if chance.random() < 0.08:
            entries.append((chance.choice(KEYS), chance.choice(VALUES)))
        if chance.random() < 0.05:
            entries = entries[1:]
        return entries

    def request(self):
        chance = self.chance
        request = rls_pb2.RateLimitRequest(domain="d" if chance.random() < 0.97 else "other")
        request.hits_addend = chance.choice([0, 0, 0, 1, 2, 7, 2**32 - 1])
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            descriptor = request.descriptors.add()
            for key, value in self.entries():
                descriptor.entries.add(key=key, value=value)
            if chance.random() < 0.25:
                descriptor.hits_addend.value = chance.choice([0, 0, 1, 3, 60, 2**33])
            if chance.random() < 0.06:
                descriptor.limit.requests_per_unit = chance.choice([0, 1, 4, 1000])
                descriptor.limit.unit = 4
        return request


def answered(response):
    """What is compared of a response: all of it.  Go writes limits in metadata with one space or two."""
    metadata = rls_pb2.RateLimitResponse()
    metadata.CopyFrom(response)
    for descriptor in metadata.dynamic_metadata.fields["descriptors"].list_value.values:
        fields = descriptor.struct_value.fields
        if "limit" in fields:
            fields["limit"].string_value = " ".join(fields["limit"].string_value.split())
    return metadata


def random_chance(seed):
    return random.Random(seed)


def channel_to(port):
    return grpc.insecure_channel(f"127.0.0.1:{port}")
