"""A provider of an API that is a function, reached through httpx, on a fake clock."""

import httpx

from ratekeeper.outbound import Retry
from ratekeeper.outbound.httpx import PacedTransport

URL = "https://api.example.com/v1/things"
STEADY = Retry(first=0.0)  # no jitter: exact times


class Server:
    """Sends the given answers, (status, headers) each, then 200; records the time and path of every request."""

    def __init__(self, clock, *answers):
        self.clock = clock
        self.answers = list(answers)
        self.came = []

    def __call__(self, request):
        self.came.append((round(self.clock.now, 6), request.url.path))
        answer = self.answers.pop(0) if self.answers else (200, {})
        if isinstance(answer, Exception):
            raise answer
        status, headers = answer
        return httpx.Response(status, headers=headers, text="x")

    @property
    def times(self):
        return [when for when, _ in self.came]


def client(server, clock, **options):
    options.setdefault("retry", STEADY)
    return httpx.Client(transport=PacedTransport(httpx.MockTransport(server), clock=clock, **options))
