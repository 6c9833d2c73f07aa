"""Adapters: a framework's request -> Request facts -> Policy -> the framework's response.

Each is thin: rules, identity, headers and failure live in the core, once.  An adapter

1. makes a ``Request`` of what the framework knows (``peer`` is the socket's, never a header's);
2. asks ``policy.check`` (or awaits ``policy.acheck``);
3. answers a refusal with ``verdict.status``, ``verdict.headers`` and ``verdict.body``;
4. else waits ``verdict.delay`` seconds, giving the place back if the client leaves, and adds ``verdict.headers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.rules.policy import Policy


def policy_of(policy: Policy | str | Path | Mapping[str, Any]) -> Policy:
    """The policy itself, of a rules file, or of a dictionary of rules."""
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, (str, Path)):
        return Policy.load(policy)
    if isinstance(policy, Mapping):
        return Policy.parse(dict(policy))
    raise InvalidInput(f"policy: expected a Policy, the path of a rules file or a dictionary, got {shown(policy)}.")
