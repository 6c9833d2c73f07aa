"""A whole service in a thread of the test, on free ports of the loopback."""

import asyncio
import gc
import http.client
import json
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from ratekeeper.service import retired_limits
from ratekeeper.service.options import Bounds, Options
from ratekeeper.service.worker import Worker
from ratekeeper.testing import frozen

ANY = "127.0.0.1:0"

# A service collects garbage among frozen objects too.  Here those are all of the suite, which takes 0.3 s each time.
OUR_GARBAGE = SimpleNamespace(
    collect=gc.collect, get_freeze_count=lambda: 0, freeze=int, unfreeze=int, set_threshold=lambda *_: None
)


class Running:
    """``call`` sends an HTTP request; ``worker`` is the worker itself."""

    def __init__(self, worker, loop):
        self.worker = worker
        self.loop = loop
        self.addresses = worker.addresses

    def call(self, method, path, body=None, headers=None):
        """Status, headers by lower-case name, body (parsed where it is JSON)."""
        connection = http.client.HTTPConnection(*self.addresses["http"], timeout=60)
        try:
            text = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, text, headers or {})
            answer = connection.getresponse()
            found = answer.read()
            fields = {name.lower(): value for name, value in answer.getheaders()}
            is_json = "json" in fields.get("content-type", "") and found
            return answer.status, fields, json.loads(found) if is_json else found
        finally:
            connection.close()

    def post(self, path, body, **headers):
        return self.call("POST", path, body, headers)

    def run(self, coroutine):
        """Run something on the service's own loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


@contextmanager
def running(tmp_path=None, rules=None, bounds=None, still=False, **options):
    """``still``: no time passes for its limits, however long a test takes; nor for any other in this process."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(retired_limits, "gc", OUR_GARBAGE))
        if still:
            stack.enter_context(frozen())
        yield stack.enter_context(started(tmp_path, rules, bounds, options))


@contextmanager
def started(tmp_path, rules, bounds, options):
    if rules is not None:
        path = tmp_path / "rules.toml"
        path.write_text(rules)
        options["rules"] = path
    options = Options(**{"http": ANY, "patience": 20.0, **options}, bounds=bounds or Bounds())
    loop = asyncio.new_event_loop()
    made, failed = [], []
    ready = threading.Event()

    async def main():
        try:
            worker = Worker(options, 0, b"secret")
            await worker.open()
            made.append(worker)
        except BaseException as error:
            failed.append(error)
        ready.set()
        if made:
            await made[0].ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert ready.wait(60)
    if failed:
        thread.join()
        loop.close()
        raise failed[0]
    found = Running(made[0], loop)
    try:
        yield found
    finally:
        if not made[0].ended.is_set():
            asyncio.run_coroutine_threadsafe(made[0].close(), loop).result(60)
        thread.join(60)
        loop.close()
