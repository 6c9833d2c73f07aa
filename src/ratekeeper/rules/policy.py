"""Policy: a set of rules that answers requests; ``decide.py`` has the order in which it decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.awaitable import awaited
from ratekeeper.errors import InvalidInput, InvalidRules, shown
from ratekeeper.event_loop import shielded
from ratekeeper.flow.drive import adrive
from ratekeeper.http.verdict import HttpVerdict
from ratekeeper.rules.decide import CompiledRules
from ratekeeper.rules.files import read
from ratekeeper.rules.parse import parse
from ratekeeper.rules.selection import NO_QUEUE, run, selection_for_hits
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.explain import Explanation
    from ratekeeper.rules.parse_values import Functions
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.selection import Selection
    from ratekeeper.rules.settings import Settings
    from ratekeeper.sinks.event import Sink
    from ratekeeper.stores.protocol import Store


class Policy:
    """A set of rules that answers requests; the same object serves threads and event loops.

    ``functions`` are those that a file names as ``function:NAME``.  ``store`` replaces the file's own.  ``sinks`` are
    called with an event for each verdict.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: str | Store | None = None,
        clock: Clock | None = None,
        sinks: tuple[Sink, ...] | list[Sink] = (),
        host: Policy | None = None,
    ) -> None:
        self.path: Path | None = None
        self._host = host  # the policy on whose stores these rules count
        self._functions: Functions = {}
        self._given_store = store if host is None else host.store
        self._given_clock = clock
        self.sinks: tuple[Sink, ...] = ()
        self._event_of: Any = None  # imported with the first sink
        for sink in sinks:
            self.listen(sink)
        self._watcher: Any = None
        self.is_default = False  # whether a limit on a route may replace all of it
        self._remaining: tuple[CompiledRules, Policy] | None = None
        self.store_url = settings.store
        self.store: Store = self._open(settings.store)
        self.opened_async_store: Store | None = None
        self.instance: Store = self._instance_beside(self.store) if host is None else host.instance
        self.clock = self.store.clock
        self._install(CompiledRules(settings, self.store, self.instance))

    def _install(self, compiled: CompiledRules) -> None:
        self.compiled = compiled
        # For event loops: the same, unless the store lives elsewhere; then compiled when a loop first asks, or before.
        self._async_compiled: CompiledRules | None = compiled if compiled.answers_at_once else None
        if compiled.for_loops is not None and compiled.for_loops.fleet is self.opened_async_store:
            self._async_compiled = compiled.for_loops
        self.asks_route = self.asks("route")  # whether the framework's template of the route must be found
        self.delays = compiled.delays  # whether an admitted request may have to wait for its turn
        self.settles = compiled.settles  # whether the response says if the request counts
        self.leases = compiled.leases  # whether an admitted request may hold leases, which end with its response
        self.limits_messages = compiled.limits_messages  # whether any rule counts the messages of WebSockets

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        functions: Functions | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        sinks: tuple[Sink, ...] | list[Sink] = (),
        watch: float | None = None,
    ) -> Policy:
        """Load the rules of a .toml, .yaml or .json file.  ``watch`` looks for changes every so many seconds."""
        path = Path(path)
        policy = cls(parse(read(path), path.name, functions, path.parent), store=store, clock=clock, sinks=sinks)
        policy.path = path
        policy._functions = functions or {}
        if watch is not None:
            policy.watch(watch)
        return policy

    @classmethod
    def parse(
        cls,
        rules: Mapping[str, Any],
        *,
        functions: Functions | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        sinks: tuple[Sink, ...] | list[Sink] = (),
    ) -> Policy:
        """Read the rules from a dictionary like a file's; ``by``, ``cost``, ``limit`` may be functions of a Request."""
        if not isinstance(rules, dict):
            raise InvalidRules(f"rules: expected a dictionary, got {shown(rules)}. To read a file, use Policy.load.")
        policy = cls(parse(rules, "rules", functions), store=store, clock=clock, sinks=sinks)
        policy._functions = functions or {}
        return policy

    def _open(self, url: str, *, asynchronous: bool = False) -> Store:
        if self._given_store is None or isinstance(self._given_store, str):
            return open_store(self._given_store or url, clock=self._given_clock, asynchronous=asynchronous)
        expect_store(self._given_store)
        return self._given_store

    def _instance_beside(self, store: Store) -> Store:
        """Where rules with ``scope = "instance"`` count: always in this process."""
        return store if not store.blocking else open_store("memory://", clock=self._given_clock)

    @property
    def async_store(self) -> Store:
        """The store for event loops: the same one, unless it lives elsewhere; then opened on first use."""
        if self.compiled.answers_at_once:
            return self.store
        if self._host is not None:
            return self._host.async_store
        if self.opened_async_store is None:
            self.opened_async_store = self._open(self.store_url, asynchronous=True)
        return self.opened_async_store

    def warm_up(self, *, for_loop: bool = False) -> None:
        """Start to connect to a store that lives elsewhere, so that the first request finds a connection.

        It never waits and never fails.  ``for_loop`` is for the running event loop, else for threads.
        """
        store: Any = self.async_store if for_loop else self.store
        start = getattr(store, "warm_up", None)
        if start is not None:
            start()

    def selection(self, request: Request) -> Selection:
        """The rules that ``request`` meets, on the store for event loops."""
        return (self._async_compiled or self._rules_for_loops()).selection(request)

    def selection_for_hits(self, request: Request, hits: int) -> Selection:
        """The rules that ``request`` meets, if it counts ``hits`` times; 0 only looks."""
        return selection_for_hits(self._async_compiled or self._rules_for_loops(), self.selection(request), hits)

    def _rules_for_loops(self) -> CompiledRules:
        compiled = self._async_compiled
        if compiled is None:
            compiled = self._async_compiled = self.compiled.on(self.async_store)
        return compiled

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in force, in the order of the file."""
        return self.compiled.settings.rules

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and probably not meant."""
        return self.compiled.settings.warnings

    def beside(self, settings: Settings) -> Policy:
        """Other rules on the stores of this policy, with its sinks."""
        return Policy(settings, sinks=self.sinks, host=self)

    def without_defaults(self) -> Policy:
        """The rules that hold where a limit on a route replaces the default ones."""
        remaining = self._remaining
        if remaining is None or remaining[0] is not self.compiled:
            settings = self.compiled.settings
            kept = [rule for rule in settings.rules if not (rule.is_default or self.is_default)]
            remaining = self._remaining = self.compiled, self.beside(replace(settings, rules=tuple(kept)))
        return remaining[1]

    def asks(self, source: str) -> bool:
        """Whether a rule may look at ``source``, such as ``route`` or ``app:user``, so that it must be found."""
        return source in self.compiled.sources or "function" in self.compiled.sources

    def check(self, request: Request) -> HttpVerdict:
        """Decide a request and take its cost; a refusal takes nothing.  This blocks if the store lives elsewhere."""
        selection = self.compiled.selection(request)
        if not self.sinks:
            return selection.check(request)
        return self._report(selection, self.clock.nanos(), selection.check(request))

    def answer(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        """``check`` for an event loop: the verdict at once, or an awaitable of it if the store must be asked."""
        selection = (self._async_compiled or self._rules_for_loops()).selection(request)
        return self._answer_by(selection, request) if self.sinks else selection.answer(request)

    @awaited
    async def acheck(self, request: Request) -> HttpVerdict:
        """``check`` for an event loop."""
        selection = (self._async_compiled or self._rules_for_loops()).selection(request)
        verdict = self._answer_by(selection, request) if self.sinks else selection.answer(request)
        return verdict if verdict.__class__ is HttpVerdict else await verdict  # type: ignore[misc]

    def check_message(self, request: Request) -> HttpVerdict:
        """Decide one message of a WebSocket whose handshake was ``request``."""
        selection = self.compiled.select(self.compiled.messages.find(request))
        return self._report(selection, self.clock.nanos(), selection.check(request))

    @awaited
    async def acheck_message(self, request: Request) -> HttpVerdict:
        """``check_message`` for an event loop."""
        compiled = self._rules_for_loops()
        selection = compiled.select(compiled.messages.find(request))
        verdict = self._answer_by(selection, request) if self.sinks else selection.answer(request)
        return verdict if verdict.__class__ is HttpVerdict else await verdict  # type: ignore[misc]

    def _answer_by(self, selection: Selection, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        """Decide, and report the verdict to the sinks."""
        began = self.clock.nanos()
        verdict = selection.answer(request)
        if verdict.__class__ is HttpVerdict:
            return self._report(selection, began, verdict)
        return self._report_later(selection, began, verdict)  # type: ignore[arg-type]

    def _report(self, selection: Selection, began: int, verdict: HttpVerdict) -> HttpVerdict:
        """Send an event of the verdict to each sink."""
        if self.sinks:
            event = self._event_of(self.compiled, selection, verdict, self.clock.nanos() - began)
            for sink in self.sinks:
                sink(event)
        return verdict

    async def _report_later(self, selection: Selection, began: int, verdict: Awaitable[HttpVerdict]) -> HttpVerdict:
        return self._report(selection, began, await verdict)

    def give_back(self, verdict: HttpVerdict) -> None:
        """Give back what an admitted request took: its client left before its turn came."""
        run(self.compiled.give_back(self.compiled.taken(verdict)), self.store)

    async def agive_back(self, verdict: HttpVerdict) -> None:
        """``give_back`` for an event loop."""
        await self._arun(self.compiled.give_back(self.compiled.taken(verdict)))

    def release(self, verdict: HttpVerdict) -> None:
        """End the leases of an admitted request: its response is done."""
        run(self.compiled.give_back(self.compiled.leases_of(verdict)), self.store)

    async def arelease(self, verdict: HttpVerdict) -> None:
        """``release`` for an event loop."""
        await self._arun(self.compiled.give_back(self.compiled.leases_of(verdict)))

    def settle(self, verdict: HttpVerdict, status: int, response: object = None) -> None:
        """Give back what an admitted request took from rules whose ``count_when`` does not hold for its response.

        ``response`` is what their functions are called with.  A second call does nothing.
        """
        run(self.compiled.settle(verdict, status, response), self.store)

    async def asettle(self, verdict: HttpVerdict, status: int, response: object = None) -> None:
        """``settle`` for an event loop."""
        await self._arun(self.compiled.settle(verdict, status, response))

    async def arenew(self, verdict: HttpVerdict) -> None:
        """Let the leases of an admitted request begin anew: its response takes long."""
        await self._arun(self.compiled.renew(verdict))

    async def _arun(self, flow: Flow[Any]) -> None:
        with shielded():
            await adrive(flow, self.async_store, self.clock, NO_QUEUE)

    def explain(self, request: Request) -> Explanation:
        """Say step by step which rules a request meets, by which keys, under which limits; takes nothing."""
        from ratekeeper.rules.explain import explain

        return explain(self, request)

    def listen(self, sink: Sink) -> None:
        """Call ``sink`` with an event for each verdict from now on."""
        if not callable(sink):
            raise InvalidInput(f"sinks: expected functions of an event, got {shown(sink)}.")
        from ratekeeper.sinks.event import event_of

        self._event_of = event_of
        self.sinks = (*self.sinks, sink)

    def replace(self, settings: Settings) -> None:
        """Put new rules in force, at once and whole.  A rule that keeps its name keeps its counters."""
        self.put_in_force(self.compile(settings))

    def compile(self, settings: Settings) -> CompiledRules:
        """Compile rules without putting them in force: that takes long for thousands, and any thread may do it."""
        store, instance = self.store, self.instance
        if settings.store != self.store_url and not self._given_store:
            store = self._open(settings.store)
            instance = self._instance_beside(store)
        compiled = CompiledRules(settings, store, instance)
        if store is self.store and self.opened_async_store is not None and not compiled.answers_at_once:
            compiled.for_loops = compiled.on(self.opened_async_store)  # or the first request would wait for it
        return compiled

    def put_in_force(self, compiled: CompiledRules) -> None:
        """Decide by these rules from now on."""
        self.store_url = compiled.settings.store
        if compiled.fleet is not self.store:
            self.opened_async_store = None
        self.store, self.instance, self.clock = compiled.fleet, compiled.instance, compiled.fleet.clock
        self._install(compiled)

    def read_again(self) -> Settings:
        """Read the file again, without putting its rules in force; InvalidRules if it is not valid."""
        if self.path is None:
            raise InvalidInput("reload: expected a policy that was loaded from a file. Use Policy.load.")
        return parse(read(self.path), self.path.name, self._functions, self.path.parent)

    def reload(self) -> None:
        """Read the file again.  If it is not valid, InvalidRules is raised and the old rules stay."""
        self.replace(self.read_again())

    def watch(self, every: float = 1.0, on_error: Callable[[Exception], object] | None = None) -> None:
        """Reload whenever the file changes, from a thread that looks every so many seconds."""
        from ratekeeper.rules.reload import Watcher

        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = Watcher(self, every, on_error)

    def close(self) -> None:
        """Stop watching, and close the store if this policy opened it."""
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        if self._given_store is None or isinstance(self._given_store, str):
            self.store.close()

    async def aclose(self) -> None:
        """``close`` for an event loop, and for the store that was opened for it."""
        opened, self.opened_async_store = self.opened_async_store, None
        if opened is not None and opened is not self._given_store:
            closing: Any = opened.close()  # type: ignore[func-returns-value]
            if hasattr(closing, "__await__"):
                await closing
        self.close()

    def __repr__(self) -> str:
        return f"Policy({len(self.rules)} rules{f', {self.path.name!r}' if self.path else ''})"
