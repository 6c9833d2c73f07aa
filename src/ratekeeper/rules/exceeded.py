"""``LimitExceeded``, raised by ``@limiter.limit`` or a reservation inside of a handler, as the verdict on its request.

Every adapter answers it with this verdict: 429, Retry-After and the header fields of the limiter's own limit, in the
form that the application's policy gives to refusals.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ratekeeper.http.verdict import HttpVerdict
from ratekeeper.limit import Limit
from ratekeeper.rules.counter import TierLimit
from ratekeeper.rules.rule import Rule
from ratekeeper.rules.settings import Response

if TYPE_CHECKING:
    from ratekeeper.errors import LimitExceeded
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

NAME = re.compile(r"[ !#-\[\]-~]{1,64}")  # that a header can show, as that of a rule
ANY = Limit(1, 1)


def exceeded(error: LimitExceeded, request: Request, policy: Policy | None = None) -> HttpVerdict:
    """The refusal of ``request`` that the error means, in the form of the policy's refusals."""
    response = policy.compiled.response if policy is not None else Response()
    is_named = NAME.fullmatch(error.name) is not None
    has_headers = is_named and error.limits is not None
    rule = Rule(error.name if is_named else "limit", (), (), {}, headers=has_headers)
    counter: Any = SimpleNamespace(rule=rule, name=rule.name)
    entry = TierLimit(counter, ANY if error.limits is None else error.limits)
    return HttpVerdict(request, response, ((entry, error.decision),), "limit")
