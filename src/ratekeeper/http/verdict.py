"""The verdict of a policy: what every adapter needs to answer a request.

``allowed`` or not; ``headers`` for either; ``status`` and ``body`` for a refusal; ``delay`` in seconds to wait before
an admitted request goes on.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quote
from math import ceil
from time import time
from typing import TYPE_CHECKING

from ratekeeper.decision import Verdict
from ratekeeper.http.headers import EXPOSED, JSON, NO_STORE, binding, warning

if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import Field, LimitLabel
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.settings import Response

    Limited = tuple[LimitLabel, Decision]

# Why a request was refused, and the status that says so.
STATUS = {"": 200, "limit": 429, "blocked": 429, "forbidden": 403, "store": 503, "cost": 400}
TITLES = {
    400: ("invalid_cost", "The cost that this request states is not a whole number."),
    403: ("forbidden", "This address may not call this."),
    429: ("rate_limited", "Too many requests"),
    503: ("unavailable", "The service cannot decide right now. Try again in a moment."),
}
PROBLEMS = {
    429: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    503: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
}
MEDIA = {
    "json": JSON,
    "problem": (b"content-type", b"application/problem+json"),
    "text": (b"content-type", b"text/plain; charset=utf-8"),
}


class VerdictNotes:
    """What there is to say about few verdicts."""

    __slots__ = ("blocked_for", "graced", "refuser", "shadow", "unenforced")

    def __init__(
        self,
        *,
        graced: tuple[str, ...] = (),
        shadow: tuple[str, ...] = (),
        unenforced: tuple[tuple[TierLimit, Decision], ...] = (),
        refuser: Rule | None = None,
        blocked_for: float = 0.0,
    ) -> None:
        self.graced = graced  # rules that would have refused, and had grace left
        self.shadow = shadow  # rules that would have refused, and are not enforced
        self.unenforced = unenforced  # what each rule that is not enforced would have said
        self.refuser = refuser  # the rule that refused, where no limit did
        self.blocked_for = blocked_for


NO_NOTES = VerdictNotes()


class HttpVerdict(Verdict):
    """The answer to a request: admitted only if every enforced rule that it meets admits it."""

    __slots__ = ("_body", "_fields", "_shown", "_wait", "answers", "notes", "request", "response", "why")
    # Made on the hot path, so set like any object; only both together make Python forget that it is frozen above.
    __setattr__ = object.__setattr__  # type: ignore[assignment]
    __delattr__ = object.__delattr__  # type: ignore[assignment]

    def __init__(
        self,
        request: Request,
        response: Response,
        answers: tuple[tuple[TierLimit, Decision], ...] = (),
        why: str = "",
        notes: VerdictNotes = NO_NOTES,
    ) -> None:
        self.request = request
        self.response = response
        self.answers = answers
        self.why = why
        self.allowed = not why
        self.notes = notes
        self._fields: list[Field] | None = None
        self._body: bytes | None = None
        self._shown: list[Limited] | None = None
        self._wait = -1

    def join(self, other: HttpVerdict) -> None:
        """Tell of the limits of another verdict on the same request as well: both admitted it."""
        self.answers = (*self.answers, *other.answers)
        self._fields = self._shown = None

    def yield_to(self, refusal: HttpVerdict) -> None:
        """Tell nothing of limits any more: ``refusal`` of the same request does, in the fields of its own answer."""
        told = {name for name, _ in refusal.headers}
        self._fields = [field for field in self.headers if field[0] not in told]

    @property
    def shown(self) -> list[Limited]:
        """Each limit with its own decision."""
        if self._shown is None:
            self._shown = found = []
            for entry, decision in self.answers:
                if len(entry.labels) == 1:
                    found.append((entry.labels[0], decision))
                else:
                    found.extend(zip(entry.labels, decision.parts(), strict=True))
        return self._shown

    @property
    def decisions(self) -> tuple[Decision, ...]:  # type: ignore[override]
        return tuple([decision for _, decision in self.shown])

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple([label.rule.name for label, _ in self.shown])

    @property
    def reason(self) -> str:  # type: ignore[override]
        """Why it was refused: limit, blocked, forbidden, store or cost; empty if it was not."""
        return self.why

    @property
    def rule(self) -> str | None:
        """The name of the rule that refused, or that is closest to it."""
        refuser = self.notes.refuser
        return refuser.name if refuser is not None else super().rule

    @property
    def status(self) -> int:
        return STATUS[self.why]

    @property
    def retry_after(self) -> float | None:
        """Seconds: the longest of the refused, exactly; None if it can never pass, or time does not help."""
        if not self.why:  # also where a rule had grace
            return 0.0
        if self.why == "limit":
            if len(self.answers) == 1:
                return self.answers[0][1].retry_after
            return super().retry_after
        if self.why == "blocked":
            return self.notes.blocked_for
        return 1.0 if self.why == "store" else None

    @property
    def wait(self) -> int:
        """Retry-After: whole seconds, at least 1 on a refusal, with the jitter; 0 where there is none to send."""
        if self._wait < 0:
            after = None if self.allowed else self.retry_after
            if after is not None and self.why == "limit":  # a lease may come back at any moment
                missing = [(label, one.retry_after or 0.0) for label, one in self.shown if not one.allowed]
                after = max(0.0 if label.leased else wait for label, wait in missing)
            self._wait = 0 if after is None else ceil(after) or 1
            if self._wait and self.response.jitter:
                from random import random

                self._wait += int(random() * (self.response.jitter / 1_000_000 + 1))
        return self._wait

    @property
    def headers(self) -> list[Field]:
        """To be added to the response, whatever it is; names in lower case."""
        if self._fields is None:
            self._fields = self.make_headers()
        return self._fields

    def make_headers(self) -> list[Field]:
        response = self.response
        fields: list[Field] = []
        if response.is_usual and self.answers:
            usual = self.usual_headers() if not self.why else self.usual_refusal()
            if usual is not None:
                return usual
        shown = [one for one in self.shown if not one[0].hidden]
        if shown:
            label, decision = shown[0] if len(shown) == 1 else binding(shown)
            wait = 0 if self.allowed or decision.allowed else self.wait
            left, reset = decision.remaining, decision.reset_after
            for dialect in response.dialects:
                fields += dialect(label, left, reset, wait, shown)
            if self.notes.graced or any(label.warns for label, _ in shown):
                fields += warning(shown, self.notes.graced)
        if not self.allowed:
            if self.wait:
                fields.append((b"retry-after", b"%d" % self.wait))
            fields.append(NO_STORE)
            if response.render is not None:
                media, self._body = response.render(self)
                fields.append((b"content-type", media.encode("latin-1")))
            elif response.body != "none":
                fields.append(MEDIA[response.body])
        if response.cors:
            fields += self.cors()
        return fields

    def usual_headers(self) -> list[Field] | None:
        """The hot path: the usual dialects, for limits that have nothing special about them."""
        policies = []
        least = 2.0
        for entry, decision in self.answers:
            label = entry.plain
            if label is None:
                return None
            policies.append(label.policy)
            left = decision.remaining
            if left * label.weight < least:
                least, bound, bound_left, bound_decision = left * label.weight, label, left, decision
        told = bound.told.get(bound_left) or bound.tell(bound_left)
        return [
            *told,
            (b"x-ratelimit-reset", b"%d" % ceil(time() + bound_decision.reset_after)),
            bound.policy_field if len(policies) == 1 else (b"ratelimit-policy", b", ".join(policies)),
        ]

    def usual_refusal(self) -> list[Field] | None:
        """The same for a refusal by one limit, and its body on the way: a 429 costs no more than an answer."""
        if len(self.answers) != 1 or not self.response.is_terse:
            return None
        entry, decision = self.answers[0]
        label = entry.plain
        after = decision.retry_after
        if label is None or label.rule.message is not None or after is None or self.why != "limit":
            return None
        self._wait = wait = ceil(after) or 1
        left, reset = decision.remaining, decision.reset_after
        reset_at = ceil(time() + (reset if reset > wait else wait))
        told = label.refused.get((wait, left, reset_at)) or label.refuse(wait, left, reset_at)
        self._body = told[1]
        return [*told[0]]

    def cors(self) -> list[Field]:
        """What lets a browser's script read a refusal, and the limits on any response."""
        origin = self.request.value(b"origin")
        if origin is None or not (origin in self.response.cors or "*" in self.response.cors):
            return []
        if not (origin.isascii() and origin.isprintable()):  # no origin at all, and not to be sent back
            return []
        fields = [(b"access-control-expose-headers", EXPOSED)]
        if not self.allowed:
            fields += [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
            if "*" not in self.response.cors:
                fields.append((b"access-control-allow-credentials", b"true"))
        return fields

    @property
    def refused(self) -> Limited | None:
        """The limit that refused, of those that may be shown: the one with the longest wait."""
        shown = [one for one in self.shown if not one[0].hidden and not one[1].allowed]
        return binding(shown) if shown else None

    @property
    def body(self) -> bytes:
        """Of a refusal, in the configured form.  Says what the caller may know and nothing else."""
        if self.why and self._body is None:
            if self.response.render is None:
                self._body = self.make_body()
            else:
                self._fields = self.make_headers()  # which renders the body on the way, for its media type
        return self._body or b""

    def make_body(self) -> bytes:
        form = self.response.body
        if form == "none":
            return b""
        refused = self.refused
        message = self.message_about(refused)
        if form == "text":
            return message.encode() + b"\n"
        if form == "problem":
            return self.problem(message)
        text = f'{{"error": "{TITLES[self.status][0]}", "message": {quote(message)}'
        if refused is not None:
            text += f', "limit": {refused[0].capacity}'
        if self.wait:
            text += f', "retry_after": {self.wait}'
        if refused is not None:
            resets = [one.reset_after for _, one in self.shown if not one.allowed]
            text += f', "reset_at": {ceil(time() + max(self.wait, *resets))}'
        return text.encode() + b"}"

    def problem(self, message: str) -> bytes:
        """RFC 9457, with the problem types of the RateLimit draft."""
        from json import dumps

        status = self.status
        found: dict[str, object] = {"type": PROBLEMS.get(status, "about:blank"), "title": TITLES[status][1]}
        found |= {"status": status, "detail": message}
        if status == 429:
            refused = [label.name for label, decision in self.shown if not (decision.allowed or label.hidden)]
            found["violated-policies"] = refused
        if self.wait:
            found["retry-after"] = self.wait
        return dumps(found).encode()

    @property
    def message(self) -> str:
        """What a refused client reads."""
        return self.message_about(self.refused)

    def message_about(self, refused: Limited | None) -> str:
        rule = refused[0].rule if refused is not None else self.notes.refuser
        status, wait = self.status, self.wait
        template = (rule.message if rule is not None else None) or (self.response.message if status == 429 else None)
        if template is not None:
            capacity = refused[0].capacity if refused is not None else 0
            return template.format(retry_after=wait, limit=capacity, rule=rule.name if rule is not None else "")
        if status != 429:
            return TITLES[status][1]
        if not wait:
            return "Too many requests: this one is larger than the limit allows at any time."
        return f"Too many requests. Try again in {wait} second{'s' if wait != 1 else ''}."
