"""Policy: a loaded set of rules that answers requests; how it decides is in ``program.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidRules, shown
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.rules.decide import CompiledRules
from ratekeeper.rules.files import read
from ratekeeper.rules.parse import parse
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.parse import Functions
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.selection import Selection
    from ratekeeper.rules.settings import Settings
    from ratekeeper.sinks.event import Sink
    from ratekeeper.stores.protocol import Store


class Policy:
    """A set of rules that answers requests; the same object serves sync and async callers.

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
        self.host = host  # whose stores these rules count on
        self.functions: Functions = {}
        self.given_store = store if host is None else host.store
        self.given_clock = clock
        self.sinks: tuple[Sink, ...] = ()
        for sink in sinks:
            self.listen(sink)
        self.lines = WaitQueue()
        self.watcher: Any = None
        self.opened: Store | None = None  # for an event loop
        self.store_url = settings.store
        self.store: Store = self.open(settings.store)
        self.instance: Store = self.store if not self.store.blocking else open_store("memory://", clock=clock)
        if host is not None:
            self.instance = host.instance
        self.clock = self.store.clock
        self.install(CompiledRules(settings, self.store, self.instance))

    def install(self, program: CompiledRules) -> None:
        self.program = program
        self.blocking = program.fleet.blocking  # whether check may wait, so that an event loop must use acheck
        self.asks_route = self.asks("route")  # whether the framework's template of the route must be found out
        self.delays = program.delays  # whether an admitted request may have to wait for its turn
        self.leases = program.leases  # whether what was admitted holds places that end with the response
        self.limits_messages = program.limits_messages  # whether any rule counts the messages of WebSockets

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
        """The rules of a .toml, .yaml or .json file.  ``watch`` looks for changes every so many seconds."""
        path = Path(path)
        made = cls(parse(read(path), path.name, functions, path.parent), store=store, clock=clock, sinks=sinks)
        made.path = path
        made.functions = functions or {}
        if watch is not None:
            made.watch(watch)
        return made

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
        """The rules of a dictionary with the contents of a file; ``by`` and ``cost`` may be functions of a Request."""
        if not isinstance(rules, dict):
            raise InvalidRules(f"rules: expected a dictionary, got {shown(rules)}. To read a file, use Policy.load.")
        made = cls(parse(rules, "rules", functions), store=store, clock=clock, sinks=sinks)
        made.functions = functions or {}
        return made

    def open(self, url: str, *, asynchronous: bool = False) -> Store:
        if self.given_store is None or isinstance(self.given_store, str):
            return open_store(self.given_store or url, clock=self.given_clock, asynchronous=asynchronous)
        expect_store(self.given_store)
        return self.given_store

    @property
    def async_store(self) -> Store:
        """The store for an event loop: the same one, unless it is elsewhere; then opened when first asked for."""
        if not self.store.blocking:
            return self.store
        if self.host is not None:
            return self.host.async_store
        if self.opened is None:
            self.opened = self.open(self.store_url, asynchronous=True)
        return self.opened

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in force, in the order of the file."""
        return self.program.settings.rules

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and probably not meant."""
        return self.program.settings.warnings

    def beside(self, settings: Settings) -> Policy:
        """Other rules on the stores of this policy, told to its sinks."""
        return Policy(settings, sinks=self.sinks, host=self)

    def asks(self, source: str) -> bool:
        """Whether a rule may look at ``source``, such as ``route`` or ``app:user``, so that it must be found out."""
        return source in self.program.sources or "function" in self.program.sources

    def check(self, request: Request) -> HttpVerdict:
        """Decide a request and take what it costs; a refusal takes nothing."""
        program = self.program
        selection = program.selection(request)
        if selection.is_simple and not self.sinks:
            return program.quick(selection, request)
        return self.run(program, selection, request)

    async def acheck(self, request: Request) -> HttpVerdict:
        """``check`` for an event loop."""
        program = self.program
        selection = program.selection(request)
        if selection.is_simple and not self.sinks:
            return program.quick(selection, request)
        return await self.arun(program, selection, request)

    def check_message(self, request: Request) -> HttpVerdict:
        """Decide one message of a WebSocket whose handshake was ``request``."""
        program = self.program
        return self.run(program, program.select(program.messages.find(request)), request)

    async def acheck_message(self, request: Request) -> HttpVerdict:
        """``check_message`` for an event loop."""
        program = self.program
        return await self.arun(program, program.select(program.messages.find(request)), request)

    def run(self, program: CompiledRules, selection: Selection, request: Request) -> HttpVerdict:
        began = self.clock.nanos()
        if selection.is_simple:
            verdict = program.quick(selection, request)
        else:
            verdict = drive(program.decide(selection, request), program.fleet, self.clock, self.lines)
        self.tell(selection, verdict, began)
        return verdict

    async def arun(self, program: CompiledRules, selection: Selection, request: Request) -> HttpVerdict:
        began = self.clock.nanos()
        if selection.is_simple:
            verdict = program.quick(selection, request)
        else:
            verdict = await adrive(program.decide(selection, request), self.async_store, self.clock, self.lines)
        self.tell(selection, verdict, began)
        return verdict

    def tell(self, selection: Selection, verdict: HttpVerdict, began: int) -> None:
        if self.sinks:
            from ratekeeper.sinks.event import event_of

            event = event_of(self.program, selection, verdict, self.clock.nanos() - began)
            for sink in self.sinks:
                sink(event)

    def give_back(self, verdict: HttpVerdict) -> None:
        """Give back what an admitted request took: it left before its turn came."""
        drive(self.program.give_back(self.program.taken(verdict)), self.store, self.clock, self.lines)

    async def agive_back(self, verdict: HttpVerdict) -> None:
        """``give_back`` for an event loop."""
        program = self.program
        await adrive(program.give_back(program.taken(verdict)), self.async_store, self.clock, self.lines)

    def release(self, verdict: HttpVerdict) -> None:
        """End the leases of an admitted request: its response is done."""
        drive(self.program.give_back(self.program.held(verdict)), self.store, self.clock, self.lines)

    async def arelease(self, verdict: HttpVerdict) -> None:
        """``release`` for an event loop."""
        program = self.program
        await adrive(program.give_back(program.held(verdict)), self.async_store, self.clock, self.lines)

    async def arenew(self, verdict: HttpVerdict) -> None:
        """Let the leases of an admitted request begin anew: its response takes long."""
        await adrive(self.program.renew(verdict), self.async_store, self.clock, self.lines)

    def explain(self, request: Request) -> Explanation:
        """Say step by step which rules a request meets, by which keys, under which limits; takes nothing."""
        from ratekeeper.rules.explain import explain

        return explain(self, request)

    def listen(self, sink: Sink) -> None:
        """Call ``sink`` with an event for each verdict from now on."""
        if not callable(sink):
            raise InvalidInput(f"sinks: expected functions of an event, got {shown(sink)}.")
        self.sinks = (*self.sinks, sink)

    def replace(self, settings: Settings) -> None:
        """Put new rules in force, at once and whole; counters whose rules kept their names go on."""
        store, instance = self.store, self.instance
        if settings.store != self.store_url and not self.given_store:
            store = self.open(settings.store)
            instance = store if not store.blocking else open_store("memory://", clock=self.given_clock)
        program = CompiledRules(settings, store, instance)
        self.store_url = settings.store
        if store is not self.store:
            self.opened = None
        self.store, self.instance, self.clock = store, instance, store.clock
        self.install(program)

    def reload(self) -> None:
        """Read the file again.  Rules that cannot be taken raise InvalidRules, and the old ones stay."""
        if self.path is None:
            raise InvalidInput("reload: expected a policy that was loaded from a file. Use Policy.load.")
        self.replace(parse(read(self.path), self.path.name, self.functions, self.path.parent))

    def watch(self, every: float = 1.0, on_error: Callable[[Exception], object] | None = None) -> None:
        """Reload whenever the file changes, from a thread that looks every so many seconds."""
        from ratekeeper.rules.reload import Watcher

        if self.watcher is not None:
            self.watcher.stop()
        self.watcher = Watcher(self, every, on_error)

    def close(self) -> None:
        """Stop watching, and let go of the store if this policy opened it."""
        if self.watcher is not None:
            self.watcher.stop()
            self.watcher = None
        if self.given_store is None or isinstance(self.given_store, str):
            self.store.close()

    async def aclose(self) -> None:
        """``close`` for an event loop, with what was opened for it."""
        opened, self.opened = self.opened, None
        if opened is not None and opened is not self.given_store:
            outcome: Any = opened.close()  # type: ignore[func-returns-value]
            if hasattr(outcome, "__await__"):
                await outcome
        self.close()

    def __repr__(self) -> str:
        return f"Policy({len(self.rules)} rules{f', {self.path.name!r}' if self.path else ''})"


if TYPE_CHECKING:
    from ratekeeper.rules.explain import Explanation
    from ratekeeper.stores.protocol import Store
