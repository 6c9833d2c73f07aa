"""What became of calls, in figures: how much, how fast, how fair, and how far from an exact sliding log.

All functions are pure and take the calls in the order of time.  They run once for each of millions of calls, so
they look at each call once, and remember no more than what was admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def against_log(
    times: Sequence[int],
    who: Sequence[int],
    costs: Sequence[int] | None,
    allowed: Sequence[int],
    clients: int,
    count: int,
    period: int,
) -> tuple[bytearray, int]:
    """What an exact sliding log would have said to each call, and the most that one client got into any period.

    The log is asked with the same past: it knows what was really admitted.  So each decision is judged by itself,
    and one mistake is not counted again in all that follow from it.
    """
    fits = bytearray(len(times))
    histories: list[list[int]] = [[] for _ in range(clients)]
    worst = 0
    if costs is not None:
        for index, (at, client, cost, passed) in enumerate(zip(times, who, costs, allowed, strict=True)):
            history = histories[client]
            room = count - cost  # so much may lie within the period before a call of this cost
            if room >= 0 and (len(history) <= room or history[-1 - room] <= at - period):
                fits[index] = 1
            if passed:
                history.extend([at] * cost)
                while len(history) > worst and history[-1 - worst] > at - period:
                    worst += 1
        return fits, worst
    index = 0
    for at, client, passed in zip(times, who, allowed, strict=True):
        history = histories[client]
        since = at - period
        if len(history) < count or history[-count] <= since:
            fits[index] = 1
        index += 1  # noqa: SIM113 - half the price of enumerate, which makes a number and a tuple
        if passed:
            history.append(at)
            if len(history) > worst and history[-1 - worst] > since:
                worst += 1
    return fits, worst


def most_within(times: Sequence[int], costs: Sequence[int] | None, length: int) -> int:
    """The most that came within any stretch of that length; ``times`` in order."""
    if costs is not None:
        times = [at for at, cost in zip(times, costs, strict=True) for _ in range(cost)]
    worst = 0
    for index, at in enumerate(times):
        if times[index - worst] > at - length:  # worst is at most index, so this never wraps around
            worst += 1
    return worst


def longest_shut_out(times: Sequence[int], who: Sequence[int], allowed: Sequence[int], end: int) -> int:
    """The longest time that a client asked in vain: from a first refusal to the next admission, or to the end."""
    since: dict[int, int] = {}
    longest = 0
    for at, client, passed in zip(times, who, allowed, strict=True):
        if not passed:
            if client not in since:
                since[client] = at
        elif since and client in since:
            longest = max(longest, at - since.pop(client))
    return max([longest, *(end - began for began in since.values())])


def fairness(asked: Sequence[int], admitted: Sequence[int]) -> float:
    """How evenly what was admitted is spread: Jain's index of what each got over its fair share; 1.0 is fair.

    The fair share is the max-min one: nobody gets more than it asked for, and who asks for much gets no more than
    what is left when all others had the same.
    """
    shares = fair_shares(asked, sum(admitted))
    ratios = [got / share for got, share in zip(admitted, shares, strict=True) if share]
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares else 1.0


def fair_shares(asked: Sequence[int], total: int) -> list[float]:
    shares = [0.0] * len(asked)
    left, clients = float(total), len(asked)
    for client in sorted(range(len(asked)), key=asked.__getitem__):
        shares[client] = min(asked[client], left / clients)
        left -= shares[client]
        clients -= 1
    return shares


def state_bytes(state: object) -> int:
    """What a state takes packed: eight bytes for each machine word of it."""
    if isinstance(state, tuple):
        return sum(map(state_bytes, state))
    return 8 * max(1, -(-int(state).bit_length() // 64))  # type: ignore[call-overload]


def binned(times: Sequence[int], costs: Sequence[int] | None, start: int, width: int, bins: int) -> list[int]:
    """How much came in each bin; what comes after the last counts there."""
    counts = [0] * bins
    last = bins - 1
    if costs is None:
        from collections import Counter

        for place, count in Counter([(at - start) // width for at in times]).items():
            counts[min(place, last)] += count
        return counts
    for at, cost in zip(times, costs, strict=True):
        counts[min((at - start) // width, last)] += cost
    return counts
