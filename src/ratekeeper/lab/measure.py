"""Figures about decided calls: how much, how fast, how fair, and how far from an exact sliding log.

All functions are pure and expect the calls in the order of time.  They run over millions of calls, so they visit each
call once and remember only the admitted ones.  ``native/figures.c`` has twins of most of them.
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
        who: Sequence[int]  # the number of the client
        costs: Sequence[int] | None  # None: each call costs 1


FLIPPED = bytes([1, 0]) + bytes(254)  # a table for bytes.translate that exchanges 0 and 1


class Accuracy(NamedTuple):
    """How decisions compare with those of an exact sliding log."""

    wrongly_admitted: int
    wrongly_refused: int
    worst_windows: list[int]  # for each limit: the most that one key was admitted within any one period
    longest_shut_out: int  # the longest time from a client's first refusal to its next admission


def accuracy(
    calls: CallColumns, allowed: bytearray, clients: int, shared: bool, limits: Sequence[tuple[int, int]], end: int
) -> Accuracy:
    """Compare decisions with those of an exact sliding log; ``limits`` are pairs of a count and a period.

    The log has seen what was really admitted.  So each decision is judged by itself, and a wrong one is not counted
    again in all the decisions that follow from it.  If ``shared``, all clients have one key.
    """
    if calls.costs is None and len(limits) == 1:
        unit_cost_accuracy = python_accuracy if core is None else native_accuracy
        return unit_cost_accuracy(calls, allowed, clients, shared, limits[0], end)
    times, who = calls.times, calls.who
    wrongly_admitted = wrongly_refused = 0
    histories: list[list[int]] = [[] for _ in range(1 if shared else clients)]
    worst = [0] * len(limits)
    for at, client, cost, admitted in zip(times, who, calls.costs or [1] * len(times), allowed, strict=True):
        history = histories[0 if shared else client]
        fits = True
        for count, period in limits:
            room = count - cost  # the most that may lie within the period before a call of this cost
            fits = fits and room >= 0 and (len(history) <= room or history[-1 - room] <= at - period)
        wrongly_admitted += bool(admitted and not fits)
        wrongly_refused += bool(fits and not admitted)
        if admitted:
            history.extend([at] * cost)
            for number, (_, period) in enumerate(limits):
                while len(history) > worst[number] and history[-1 - worst[number]] > at - period:
                    worst[number] += 1
    return Accuracy(wrongly_admitted, wrongly_refused, worst, longest_shut_out(times, who, allowed, end))


def python_accuracy(
    calls: CallColumns, allowed: bytearray, clients: int, shared: bool, limit: tuple[int, int], end: int
) -> Accuracy:
    """Compute the same for one limit and calls of cost 1, several times as fast.

    Among a client's calls at one instant the admitted ones come first, because only time frees capacity.
    """
    count, period = limit
    times, who = calls.times, calls.who
    by_client = histories_of(times, who, allowed, clients)
    all_clients = array("q", compress(times, allowed)) if shared else array("q")
    wrongly_admitted = worst = 0
    for history in [all_clients] if shared else by_client:
        # If the call `count` places earlier lies within the period, the log was full.
        wrong = sum(map(lt, map(sub, history[count:], history), repeat(period)))
        wrongly_admitted += wrong
        if wrong or worst < min(count, len(history)):
            worst = max(worst, most_within(history, None, period))
    wrongly_refused = longest = 0
    stretch_end = [0] * clients  # when each client's last stretch of refusals ends
    admitted_before = [0] * clients  # how many calls were admitted before that stretch
    refused = allowed.translate(FLIPPED)
    for at, client in zip(compress(times, refused), compress(who, refused), strict=True):
        history = by_client[client]
        if at >= stretch_end[client]:
            admitted_before[client] = place = bisect_right(history, at)
            stretch_end[client] = next_admission = history[place] if place < len(history) else end
            if next_admission - at > longest:
                longest = next_admission - at
        place = admitted_before[client]
        if shared:
            history = all_clients
            place = bisect_right(history, at)
        if place < count or history[place - count] <= at - period:
            wrongly_refused += 1
    return Accuracy(wrongly_admitted, wrongly_refused, [worst], longest)


def native_accuracy(
    calls: CallColumns, allowed: bytearray, clients: int, shared: bool, limit: tuple[int, int], end: int
) -> Accuracy:
    """Compute the same in C."""
    assert core is not None
    times, who, flags = column(calls.times), column(calls.who), bytes(allowed)
    wrongly_admitted, wrongly_refused, worst, shut_out = core.judge(times, who, flags, max(1, clients), *limit, end)
    if shared:
        wrongly_admitted, wrongly_refused, worst, _ = core.judge(times, None, flags, 1, *limit, end)
    return Accuracy(wrongly_admitted, wrongly_refused, [worst], shut_out)


def column(values: Sequence[int]) -> array[int]:
    """Convert values to the array that the C functions expect."""
    return values if isinstance(values, array) and values.typecode == "q" else array("q", values)


def select_sorted(numbers: Sequence[int], flags: bytearray) -> array[int]:
    """Return the flagged numbers, sorted."""
    if core is not None:
        return array("q", core.picked(column(numbers), bytes(flags)))
    return array("q", sorted(compress(numbers, flags)))


def longest_wait(times: Sequence[int], turns: Sequence[int]) -> int:
    """Return the longest time from a call to its turn."""
    if core is not None:
        longest: int = core.longest_wait(column(times), column(turns))
        return longest
    return max(map(sub, turns, times), default=0)


def count_by_client(who: Sequence[int], allowed: bytearray, clients: int) -> tuple[list[int], list[int]]:
    """Count how many calls of each client were admitted, and how many were refused."""
    if core is not None and clients:
        counts: tuple[list[int], list[int]] = core.count_each(column(who), bytes(allowed), clients)
        return counts
    counts = [0] * clients, [0] * clients
    for client, admitted in zip(who, allowed, strict=True):
        counts[not admitted][client] += 1
    return counts


def most_of_one_key(
    instants: Sequence[int], who: Sequence[int] | None, allowed: bytearray, clients: int, length: int
) -> int:
    """Return the most admitted calls of one client within any stretch of ``length``; without ``who``, of all clients.

    The instants of each client must be in order.
    """
    if core is not None:
        keys, count = (None, 1) if who is None else (column(who), max(1, clients))
        most: int = core.judge(column(instants), keys, bytes(allowed), count, 1, length, 1)[2]
        return most
    histories = histories_of(instants, [0] * len(instants) if who is None else who, allowed, clients)
    return max(most_within(history, None, length) for history in histories)


def histories_of(times: Sequence[int], who: Sequence[int], allowed: bytearray, clients: int) -> list[array[int]]:
    """Return when each client was admitted.  Arrays, because the items of lists are scattered over the memory."""
    histories = [array("q") for _ in range(clients)]
    append = [history.append for history in histories]
    for at, client in zip(compress(times, allowed), compress(who, allowed), strict=True):
        append[client](at)
    return histories


def most_within(times: Sequence[int], costs: Sequence[int] | None, length: int) -> int:
    """Return the most that came within any stretch of ``length``; ``times`` are in order."""
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
    """Return the longest time from a client's first refusal to its next admission, or to the end."""
    refused_since: dict[int, int] = {}
    longest = 0
    for at, client, admitted in zip(times, who, allowed, strict=True):
        if not admitted:
            if client not in refused_since:
                refused_since[client] = at
        elif client in refused_since:
            longest = max(longest, at - refused_since.pop(client))
    return max([longest, *(end - since for since in refused_since.values())])


def fairness(asked: Sequence[int], admitted: Sequence[int]) -> float:
    """Return Jain's index of what each client got, relative to its fair share; 1.0 is fair.

    The fair share is the max-min one: no client gets more than it asked for, and clients that ask for more share
    equally what the others leave.
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
    """Return the packed size of a state: eight bytes for each machine word."""
    if isinstance(state, tuple):
        return sum(map(state_bytes, state))
    return 8 * max(1, -(-int(state).bit_length() // 64))  # type: ignore[call-overload]


def count_in_bins(times: Sequence[int], costs: Sequence[int] | None, start: int, width: int, bins: int) -> list[int]:
    """Add up what came in each bin; ``times`` are in order, and the last bin has no end."""
    edges = [bisect_left(times, start + number * width) for number in range(1, bins)]
    places = [0, *edges, len(times)]
    if costs is None:
        return [after - before for before, after in pairwise(places)]
    return [sum(costs[before:after]) for before, after in pairwise(places)]
