"""Parts of contracts: what a store promises for plans holds for its tables and its prepared plans too."""

import asyncio


class Direct:
    """How a contract calls what a store handed out: a store for event loops must be called on its loop."""

    loop = None

    def call(self, function, *arguments):
        if self.loop is None:
            return function(*arguments)

        async def answer():
            result = function(*arguments)
            return await result if hasattr(result, "__await__") else result

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result()

    def answered(self, asked, *arguments):
        """``check_now``, and only where that cannot tell ``check``; in this process the two are one."""
        answer = self.call(asked.check_now, *arguments)
        assert answer is not None or self.store.blocking
        return self.call(asked.check, *arguments) if answer is None else answer


class ThroughPrepared(Direct):
    """Goes before a contract, whose ``ask`` and ``plan`` it takes over: plans are checked by prepared ones."""

    def plan(self, *checks, space="contract"):
        plan = super().plan(*checks, space=space)
        self.keys = getattr(self, "keys", {})  # as callers name them, by encoded key
        self.keys.update({check.key: key for check, (key, _, _) in zip(plan, checks, strict=True)})
        return plan

    def ask(self, operation, *arguments):
        if operation != "check":
            return super().ask(operation, *arguments)
        (plan,) = arguments
        rows = tuple((check.space, check.limit, check.cost, check.on_store_error) for check in plan)
        prepared = self.store.prepare(rows) if self.loop else super().ask("prepare", rows)
        allowed, decisions = self.answered(prepared, tuple(self.keys[check.key] for check in plan))
        assert allowed is all(decision.allowed for decision in decisions)
        return decisions


class ThroughTables(Direct):
    """Goes before a contract, whose ``check`` it takes over: single checks are those of a table."""

    def check(self, key, limit, cost=1, space="contract"):
        (check,) = self.plan((key, limit, cost), space=space)
        return self.answered(self.store.table(space, check.limit), key, cost)
