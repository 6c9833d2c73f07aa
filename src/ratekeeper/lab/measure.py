"""What became of calls, in figures: how much, how fast, how fair, and how far from an exact sliding log.

All functions are pure and take the calls in the order of time.  They run once for each of millions of calls, so
they look at each call once, and remember no more than what was admitted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress, pairwise, repeat
from operator import lt, sub
from typing import TYPE_CHECKING, NamedTuple

from ratekeeper.native import core

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class CallColumns(Protocol):
        times: Sequence[int]
        who: Sequence[int]
        costs: Sequence[int] | None


OTHERWISE = bytes([1, 0]) + bytes(254)  # 0 and 1 exchanged


class Judged(NamedTuple):
    """What an exact sliding log says to what was decided."""

    wrongly_admitted: int
    wrongly_refused: int
    worst: list[int]  # of each limit: the most that one key got into any stretch of its period
    shut_out: int  # the longest time that a client asked in vain: from a first refusal to its next admission


def judge(
    calls: CallColumns, allowed: bytearray, clients: int, shared: bool, limits: Sequence[tuple[int, int]], end: int
) -> Judged:
    """Compare decisions with those of an exact sliding log; ``limits`` are pairs of a count and a period.

    The log is asked with the same past: it knows what was really admitted.  So each decision is judged by itself,
    and one mistake is not counted again in all that follow from it.  If ``shared``, all clients have one key.
    """
    if calls.costs is None and len(limits) == 1:
        judge_quickly = judge_units if core is None else judge_natively
        return judge_quickly(calls, allowed, clients, shared, limits[0], end)
    times, who = calls.times, calls.who
    wrongly_admitted = wrongly_refused = 0
    histories: list[list[int]] = [[] for _ in range(1 if shared else clients)]
    worst = [0] * len(limits)
    for at, client, cost, passed in zip(times, who, calls.costs or [1] * len(times), allowed, strict=True):
        history = histories[0 if shared else client]
        fits = True
        for count, period in limits:
            room = count - cost  # so much may lie within the period before a call of this cost
            fits = fits and room >= 0 and (len(history) <= room or history[-1 - room] <= at - period)
        wrongly_admitted += bool(passed and not fits)
        wrongly_refused += bool(fits and not passed)
        if passed:
            history.extend([at] * cost)
            for number, (_, period) in enumerate(limits):
                while len(history) > worst[number] and history[-1 - worst[number]] > at - period:
                    worst[number] += 1
    return Judged(wrongly_admitted, wrongly_refused, worst, longest_shut_out(times, who, allowed, end))


def judge_units(
    calls: CallColumns, allowed: bytearray, clients: int, shared: bool, limit: tuple[int, int], end: int
) -> Judged:
    """The same for one limit and calls that cost 1 each, several times as fast: nearly all of it in C.

    Of calls of a client at one instant the admitted ones come first, as time alone frees anything.
    """
    count, period = limit
    times, who = calls.times, calls.who
    own = histories_of(times, who, allowed, clients)
    everybody = array("q", compress(times, allowed)) if shared else array("q")
    wrongly_admitted = worst = 0
    for history in [everybody] if shared else own:
        # The call that came `count` before lies within the period: a log would be full.
        wrong = sum(map(lt, map(sub, history[count:], history), repeat(period)))
        wrongly_admitted += wrong
        if wrong or worst < min(count, len(history)):
            worst = max(worst, most_within(history, None, period))
    wrongly_refused = longest = 0
    until = [0] * clients  # the end of each client's last stretch of refusals, and
    known = [0] * clients  # how much was admitted to it before
    refused = allowed.translate(OTHERWISE)
    for at, client in zip(compress(times, refused), compress(who, refused), strict=True):
        history = own[client]
        if at >= until[client]:
            known[client] = place = bisect_right(history, at)
            until[client] = following = history[place] if place < len(history) else end
            if following - at > longest:
                longest = following - at
        place = known[client]
        if shared:
            history = everybody
            place = bisect_right(history, at)
        if place < count or history[place - count] <= at - period:
            wrongly_refused += 1
    return Judged(wrongly_admitted, wrongly_refused, [worst], longest)


def judge_natively(
    calls: CallColumns, allowed: bytearray, clients: int, shared: bool, limit: tuple[int, int], end: int
) -> Judged:
    """The same by the core."""
    assert core is not None
    times, who, flags = column(calls.times), column(calls.who), bytes(allowed)
    wrongly_admitted, wrongly_refused, worst, shut_out = core.judge(times, who, flags, max(1, clients), *limit, end)
    if shared:
        wrongly_admitted, wrongly_refused, worst, _ = core.judge(times, None, flags, 1, *limit, end)
    return Judged(wrongly_admitted, wrongly_refused, [worst], shut_out)


def column(values: Sequence[int]) -> array[int]:
    """The values as the core wants them."""
    return values if isinstance(values, array) and values.typecode == "q" else array("q", values)


def picked(numbers: Sequence[int], flags: bytearray) -> array[int]:
    """The numbers that are flagged, the least first."""
    if core is not None:
        return array("q", core.picked(column(numbers), bytes(flags)))
    return array("q", sorted(compress(numbers, flags)))


def longest_wait(times: Sequence[int], turns: Sequence[int]) -> int:
    """The longest way from a time to its turn."""
    if core is not None:
        longest: int = core.longest_wait(column(times), column(turns))
        return longest
    return max(map(sub, turns, times), default=0)


def counts_of(who: Sequence[int], allowed: bytearray, clients: int) -> tuple[list[int], list[int]]:
    """How many calls of each client were admitted, and how many refused."""
    if core is not None and clients:
        found: tuple[list[int], list[int]] = core.count_each(column(who), bytes(allowed), clients)
        return found
    each = [0] * clients, [0] * clients
    for client, passed in zip(who, allowed, strict=True):
        each[not passed][client] += 1
    return each


def worst_of_keys(
    instants: Sequence[int], who: Sequence[int] | None, allowed: bytearray, clients: int, length: int
) -> int:
    """The most that any one client, or all together, had within any stretch of that length; in order for each."""
    if core is not None:
        whose, keys = (None, 1) if who is None else (column(who), max(1, clients))
        most: int = core.judge(column(instants), whose, bytes(allowed), keys, 1, length, 1)[2]
        return most
    histories = histories_of(instants, [0] * len(instants) if who is None else who, allowed, clients)
    return max(most_within(history, None, length) for history in histories)


def histories_of(times: Sequence[int], who: Sequence[int], allowed: bytearray, clients: int) -> list[array[int]]:
    """When each client was admitted; in arrays, as a list would be spread over all of the memory."""
    histories = [array("q") for _ in range(clients)]
    enter = [history.append for history in histories]
    for at, client in zip(compress(times, allowed), compress(who, allowed), strict=True):
        enter[client](at)
    return histories


def most_within(times: Sequence[int], costs: Sequence[int] | None, length: int) -> int:
    """The most that came within any stretch of that length; ``times`` in order."""
    if costs is not None:
        times = [at for at, cost in zip(times, costs, strict=True) for _ in range(cost)]
    if core is not None:
        most: int = core.most_within(column(times), length)
        return most
    worst = 0
    earlier = iter(times)
    first = next(earlier, 0)
    for at in times:  # a window that never shrinks: with each call it grows by one, or slides by one
        if first > at - length:
            worst += 1
        else:
            first = next(earlier)
    return worst


def longest_shut_out(times: Sequence[int], who: Sequence[int], allowed: Sequence[int], end: int) -> int:
    """The longest time that a client asked in vain: from a first refusal to the next admission, or to the end."""
    since: dict[int, int] = {}
    longest = 0
    for at, client, passed in zip(times, who, allowed, strict=True):
        if not passed:
            if client not in since:
                since[client] = at
        elif client in since:
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
    """How much came in each bin; ``times`` in order, and what comes after the last bin counts there."""
    edges = [bisect_left(times, start + number * width) for number in range(1, bins)]
    places = [0, *edges, len(times)]
    if costs is None:
        return [after - before for before, after in pairwise(places)]
    return [sum(costs[before:after]) for before, after in pairwise(places)]
