"""Every metric of ratekeeper, once: the library and the service export the same names with the same meaning.

The library exports those with ``in_library``: what its policy decides.  The service adds what only a service has.
"""

from __future__ import annotations

from typing import NamedTuple

SHARES = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)
SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
MINUTE = 60.0  # seconds that the gauges of a minute look back
LEAST_REFUSALS = 20  # in a minute, before the share of one client means anything


class Metric(NamedTuple):
    kind: str  # counter, gauge or histogram
    text: str
    labels: tuple[str, ...] = ()
    in_library: bool = True


CATALOGUE = {
    "ratekeeper_requests_total": Metric("counter", "Requests by result.", ("endpoint", "result")),
    "ratekeeper_decisions_total": Metric("counter", "Decisions of each rule.", ("rule", "result")),
    "ratekeeper_utilisation_ratio": Metric("histogram", "Used share of a limit, after each decision.", ("rule",)),
    "ratekeeper_headroom_ratio": Metric(
        "gauge", "Smallest share of a limit that any client had left in this minute.", ("rule",)
    ),
    "ratekeeper_decision_seconds": Metric("histogram", "Duration of decisions, including the store."),
    "ratekeeper_top_source_ratio": Metric("gauge", "Largest share of one client in the refusals of this minute."),
    "ratekeeper_store_errors_total": Metric(
        "counter", "Requests that the store could not decide, so that on_store_error did."
    ),
    "ratekeeper_stand_ins_total": Metric("counter", "Decisions by a fallback of the store.", ("rule", "by")),
    "ratekeeper_calls_total": Metric("counter", "Calls by listener.", ("door",), False),
    "ratekeeper_turned_away_total": Metric(
        "counter", "Calls and connections rejected for lack of room, by listener.", ("door",), False
    ),
    "ratekeeper_faults_total": Metric(
        "counter", "Calls that failed because of a mistake in ratekeeper, by listener.", ("door",), False
    ),
    "ratekeeper_reloads_total": Metric("counter", "Reloads of the rules, by result.", ("result",), False),
    "ratekeeper_rule_mode": Metric("gauge", "Mode of each rule: 2 enforce, 1 shadow, 0 off.", ("rule",), False),
    "ratekeeper_store_up": Metric("gauge", "Whether the store answers.", (), False),
    "ratekeeper_store_seconds": Metric("gauge", "Duration of the last probe of the store.", (), False),
    "ratekeeper_killed": Metric("gauge", "Whether the kill switch is on.", (), False),
    "ratekeeper_memory_bytes": Metric("gauge", "Most memory that this worker has used.", (), False),
    "ratekeeper_http_connections": Metric("gauge", "Open HTTP connections of this worker.", (), False),
    "ratekeeper_resp_connections": Metric("gauge", "Open connections of Redis clients to this worker.", (), False),
    "ratekeeper_grpc_connections": Metric("gauge", "Open connections of gRPC clients to this worker.", (), False),
}
