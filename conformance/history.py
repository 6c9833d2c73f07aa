"""What can be said about a recorded history without a model of the limiter that made it."""

from __future__ import annotations

from conformance.limits import Call, Limit


def worst_interval(calls: list[Call], limit: Limit) -> tuple[float, list[Call]]:
    """The interval in which most was admitted, by the ratio of admitted cost to the bound, and its calls.

    The target decided each call between ``sent`` and ``received``.  An interval is taken from the first call's
    ``sent`` to the last call's ``received``, which is no shorter than the true one: a slow machine never looks guilty.
    """
    admitted = sorted((call for call in calls if call.answer.allowed), key=lambda call: call.sent)
    worst: tuple[float, list[Call]] = (0.0, [])
    for first in range(len(admitted)):
        begin, total, end = admitted[first].sent, 0, 0
        for last in range(first, len(admitted)):
            total += admitted[last].cost
            end = max(end, admitted[last].received)
            ratio = total / limit.most_in(max(0, end - begin))
            if ratio > worst[0]:
                worst = ratio, admitted[first : last + 1]
    return worst
