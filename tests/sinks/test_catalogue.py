"""One catalogue of metrics: the library and the service export the same names, kinds, texts and labels."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ratekeeper.service.http2_listener import has_session
from ratekeeper.sinks.catalogue import CATALOGUE
from ratekeeper.sinks.prometheus import PrometheusSink
from tests.service.running import ANY, running
from tests.sinks.samples import policy, visit

RULES = """
store = "redis://127.0.0.1:1/0"

[[rules]]
name = "per-ip"
by = "ip"
limit = "5/day"
"""


def exported(text):
    """The kind, text and labels of each metric on a page."""
    families = {}
    for each in text_string_to_metric_families(text):
        labels = {name for sample in each.samples for name in sample.labels} - {"le"}
        if not each.name.endswith("_created"):
            name = f"{each.name}_total" if each.type == "counter" else each.name
            families[name] = (each.type, each.documentation, labels)
    return families


def expected(names):
    return {name: (CATALOGUE[name].kind, CATALOGUE[name].text, set(CATALOGUE[name].labels)) for name in names}


def test_the_service_exports_the_whole_catalogue(tmp_path):
    with running(tmp_path, RULES, resp=ANY, grpc=ANY) as service:
        for _ in range(9):
            service.post("/v1/check", {"request": {"ip": "203.0.113.9"}})
        text = service.call("GET", "/metrics")[2].decode()
        # grpcio's server does not tell its connections.
        missing = set() if has_session() else {"ratekeeper_grpc_connections"}
        assert exported(text) == expected([name for name in CATALOGUE if name not in missing])
        errors = service.worker.decider.counters.store_errors
    assert errors == 9  # the fallback decided each: an alert must tell, in the service as in the library


def test_the_library_exports_its_part_of_it():
    registry = CollectorRegistry()
    own = policy(PrometheusSink(registry), store="redis://127.0.0.1:1/0")
    visit(own, *["/search/1"] * 9)
    names = [name for name, metric in CATALOGUE.items() if metric.in_library]
    assert exported(generate_latest(registry).decode()) == expected(names)
    assert registry.get_sample_value("ratekeeper_store_errors_total") == 9


def test_each_metric_is_documented():
    page = Path(__file__).parents[2].joinpath("docs/reference/events.md").read_text()
    for name, metric in CATALOGUE.items():
        row = re.search(rf"^\| `{name}` \|([^|]*)\|", page, re.MULTILINE)
        assert row, name
        assert re.findall(r"\w+", row.group(1)) == list(metric.labels), name
