"""A part of contracts: whatever a plan is asked to take is taken by a prepared one."""

from ratekeeper.keys import encode


class ThroughPrepared:
    """Goes before a contract, whose ``ask`` and ``plan`` it takes over."""

    def setup_method(self):
        super().setup_method()
        self.plain = {}

    def plan(self, *checks, space="contract"):
        self.plain.update({encode(key): key for key, _, _ in checks})
        return super().plan(*checks, space=space)

    def ask(self, operation, *arguments):
        if operation != "check":
            return super().ask(operation, *arguments)
        (plan,) = arguments
        prepared = super().ask("prepare", tuple((check.space, check.limit, check.cost) for check in plan))
        allowed, decisions = prepared.check(tuple(self.plain[check.key] for check in plan))
        assert allowed is all(decision.allowed for decision in decisions)
        return decisions
