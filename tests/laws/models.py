"""The six algorithms once more, from their definitions and in exact rationals, sharing nothing with the rules.

What is used has the period as its denominator, so the numerators are whole numbers, and a walk is quick.

A model says of any instant how much is used and whether a cost fits; the answers follow by search, not by formula.
The clock may step: decision 3 says what counts while it is behind a key, and what a key is brought to if it is too far
behind.  ``decide`` and ``refund`` change a model; all else looks.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Model:
    def __init__(self, count: int, micros: int, burst: int, slices: int = 1) -> None:
        self.count, self.micros, self.slices = count, micros, slices
        self.capacity = burst
        self.full = burst * micros

    def used(self, now: int) -> int:
        """In 1/period of a unit: a rate of ``count`` per microsecond."""
        raise AssertionError

    def record(self, now: int, cost: int) -> None:
        raise AssertionError

    def is_too_far(self, now: int) -> bool:
        """Whether the clock is so far behind this key that it is brought to the present."""
        raise AssertionError

    def bring(self, now: int) -> None:
        """Bring it there: the worst that the present allows."""
        raise AssertionError

    def give_back(self, now: int, cost: int, at: int) -> None:
        raise AssertionError

    def seen(self, now: int) -> Model:
        """The model as a look at ``now`` finds it."""
        if not self.is_too_far(now):
            return self
        brought = copy.deepcopy(self)
        brought.bring(now)
        return brought

    def fits(self, now: int, cost: int) -> bool:
        model = self.seen(now)
        return model.used(now) + cost * self.micros <= self.full

    def decide(self, now: int, cost: int, taken: bool | None = None) -> bool:
        """Take ``cost`` if it fits, or if ``taken`` says so, as all of several limits must agree."""
        fits = self.fits(now, cost)
        taken = fits if taken is None else taken
        if (taken or not fits) and self.is_too_far(now):
            self.bring(now)
        if taken:
            self.record(now, cost)
        return fits

    def refund(self, now: int, cost: int, at: int) -> None:
        if self.is_too_far(now):
            self.bring(now)
        self.give_back(now, cost, at)

    def remaining(self, now: int) -> int:
        return max(0, (self.full - self.seen(now).used(now)) // self.micros)

    def retry_after(self, now: int, cost: int, guess: int | None = None) -> int | None:
        """The least wait, by bisection: without traffic, what fits once fits for ever."""
        if cost > self.capacity:
            return None
        model = self.seen(now)
        most = self.full - cost * self.micros
        return least(lambda wait: model.used(now + wait) <= most, self.micros, guess)

    def reset_after(self, now: int, guess: int | None = None) -> int:
        model = self.seen(now)
        return least(lambda wait: not model.used(now + wait), self.micros, guess)

    def delay(self, now: int, cost: int) -> int:
        """The time until the turn of a call of ``cost`` that is the last one admitted; 0 is one to come."""
        return 0


def least(holds, hint: int, guess: int | None = None) -> int:
    """The least wait that holds.  A guess is only tried: two questions instead of twenty if it is right."""
    if guess and holds(guess) and not holds(guess - 1):
        return guess
    if holds(0):
        return 0
    low, high = 0, hint
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Bucket(Model):
    @property
    def slack(self) -> int:
        """Microseconds by which the clock may be behind: all but one unit of a burst, or of a period if less."""
        return (min(self.capacity, self.count) - 1) * self.micros // self.count

    def is_too_far(self, now: int) -> bool:
        return self.used(now) > self.full + self.slack * self.count


class TokenBucket(Bucket):
    """Tokens and the instant they were counted; fewer than none where the clock stepped back."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.tokens, self.counted_at = self.full, 0

    def used(self, now: int) -> int:
        return self.full - min(self.full, self.tokens + self.count * (now - self.counted_at))

    def record(self, now: int, cost: int) -> None:
        self.tokens, self.counted_at = self.full - self.used(now) - cost * self.micros, now

    def bring(self, now: int) -> None:
        self.tokens, self.counted_at = -self.slack * self.count, now

    def give_back(self, now: int, cost: int, at: int) -> None:
        self.tokens, self.counted_at = min(self.full, self.full - self.used(now) + cost * self.micros), now
        if self.tokens == self.full:  # a key that owes nothing is as one never seen
            self.counted_at = 0


class LeakyBucket(Bucket):
    """Units in a queue with the instant each one leaves, in 1/count of a microsecond."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.departures: list[tuple[int, int]] = []  # begins to leave, is gone

    def used(self, now: int) -> int:
        now *= self.count
        waiting = [pair for pair in self.departures if pair[1] > now]
        total = sum([gone - max(begin, now) for begin, gone in waiting])
        if waiting and waiting[0][0] > now:  # the clock stepped back: nothing leaves until the first one's turn
            total += waiting[0][0] - now
        return total

    def record(self, now: int, cost: int) -> None:
        now *= self.count
        self.departures = [pair for pair in self.departures if pair[1] > now]
        begin = max([now, *(gone for _, gone in self.departures)])
        self.departures.append((begin, begin + cost * self.micros))

    def bring(self, now: int) -> None:
        now *= self.count
        self.departures = [(now, now + self.full + self.slack * self.count)]

    def give_back(self, now: int, cost: int, at: int) -> None:
        left, now = self.used(now) - cost * self.micros, now * self.count
        self.departures = [(now, now + left)] if left > 0 else []

    def delay(self, now: int, cost: int) -> int:
        last = max([gone for _, gone in self.seen(now).departures], default=0) - cost * self.micros
        return max(0, -(-(last - now * self.count) // self.count))


class FixedWindow(Model):
    """What was used in the newest window: no window comes after a later one."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.newest, self.count_in_it = 0, 0

    def used(self, now: int) -> int:
        return self.count_in_it * self.micros if now // self.micros <= self.newest else 0

    def record(self, now: int, cost: int) -> None:
        self.count_in_it = self.used(now) // self.micros + cost
        self.newest = max(self.newest, now // self.micros)

    def is_too_far(self, now: int) -> bool:
        return self.newest - now // self.micros > 1

    def bring(self, now: int) -> None:
        self.newest = now // self.micros

    def refund(self, now: int, cost: int, at: int) -> None:
        """Give back only what was taken in the present window, or in the newest: what is too far stays."""
        model = self.seen(now)
        if model.used(now) and now // self.micros <= at // self.micros <= max(now // self.micros, model.newest):
            self.newest, self.count_in_it = model.newest, max(0, model.count_in_it - cost)
            if not self.count_in_it:
                self.newest = 0


class CalendarWindow(FixedWindow):
    """The same for windows that the calendar of a zone divides time into, by its own arithmetic."""

    def __init__(self, count: int, micros: int, burst: int, slices: int, unit: str, timezone: str) -> None:
        super().__init__(count, micros, burst, slices)
        self.zone, self.unit = ZoneInfo(timezone), unit

    def window_of(self, now: int) -> int:
        day = (EPOCH + timedelta(microseconds=now)).astimezone(self.zone).date()
        if self.unit == "month":
            return day.year * 12 + day.month
        number = day.toordinal()
        return {"day": number, "week": (number - 1) // 7, "year": day.year}[self.unit]

    def used(self, now: int) -> int:
        return self.count_in_it * self.micros if self.window_of(now) <= self.newest else 0

    def record(self, now: int, cost: int) -> None:
        self.count_in_it = self.used(now) // self.micros + cost
        self.newest = max(self.newest, self.window_of(now))

    def is_too_far(self, now: int) -> bool:
        return self.newest - self.window_of(now) > 1

    def bring(self, now: int) -> None:
        self.newest = self.window_of(now)

    def refund(self, now: int, cost: int, at: int) -> None:
        model = self.seen(now)
        present = self.window_of(now)
        if model.used(now) and present <= self.window_of(at) <= max(present, model.newest):
            self.newest, self.count_in_it = model.newest, max(0, model.count_in_it - cost)
            if not self.count_in_it:
                self.newest = 0


class FirstUseWindow(Model):
    """When the window started, and what was used in it."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.started, self.count_in_it = 0, 0

    def used(self, now: int) -> int:
        return self.count_in_it * self.micros if now - self.started < self.micros else 0

    def record(self, now: int, cost: int) -> None:
        if not self.used(now):
            self.started, self.count_in_it = now, 0
        self.count_in_it += cost

    def is_too_far(self, now: int) -> bool:
        return self.started - now >= self.micros

    def bring(self, now: int) -> None:
        self.started = now

    def refund(self, now: int, cost: int, at: int) -> None:
        model = self.seen(now)
        if model.used(now) and min(now, model.started) <= at < model.started + self.micros:
            self.started, self.count_in_it = model.started, max(0, model.count_in_it - cost)
            if not self.count_in_it:
                self.started = 0


class SlidingLog(Model):
    """Every unit with its instant: none comes before one that is in the log."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.log: list[list[int]] = []  # instant, units

    def latest(self, now: int) -> int:
        return max(now, self.log[-1][0]) if self.log else now

    def used(self, now: int) -> int:
        since = self.latest(now) - self.micros
        return sum([units for at, units in self.log if at > since]) * self.micros

    def record(self, now: int, cost: int) -> None:
        now = self.latest(now)
        self.log = [entry for entry in self.log if entry[0] > now - self.micros]
        self.log.append([now, cost])

    def is_too_far(self, now: int) -> bool:
        return bool(self.log) and self.log[-1][0] >= now + self.micros

    def bring(self, now: int) -> None:
        self.log = [[min(at, now), units] for at, units in self.log]

    def refund(self, now: int, cost: int, at: int) -> None:
        """The newest first; what was taken at or after now, though the clock stepped back, came with the newest."""
        for entry in reversed(self.log):
            if at >= now or entry[0] <= at:
                back = min(cost, entry[1])
                entry[1] -= back
                cost -= back
        self.log = [entry for entry in self.log if entry[1]]


class SlidingWindow(Model):
    """Counts by slice; each weighs the share of its slice that lies in the window of one period that ends now."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.newest = 0
        self.slots: dict[int, int] = {}

    def slice_of(self, now: int) -> int:
        return now * self.slices // self.micros

    def used(self, now: int) -> int:
        # Positions in 1/slices of a microsecond, in which a slice is as wide as the period.  The clock is taken to be
        # no earlier than where the newest slice begins.
        width = self.micros
        since = max(now * self.slices, self.newest * width) - self.slices * width
        total = 0
        for index, count in self.slots.items():
            start = index * width
            total += count * max(0, start + width - max(start, since))
        return total

    def move_on(self, now: int) -> None:
        self.newest = max(self.newest, self.slice_of(now))
        self.slots = {index: count for index, count in self.slots.items() if index >= self.newest - self.slices}

    def record(self, now: int, cost: int) -> None:
        self.move_on(now)
        self.slots[self.newest] = self.slots.get(self.newest, 0) + cost

    def is_too_far(self, now: int) -> bool:
        return self.newest - self.slice_of(now) > self.slices

    def bring(self, now: int) -> None:
        self.newest = self.slice_of(now)
        self.slots = {self.newest: min(self.count, sum(self.slots.values()))}

    def give_back(self, now: int, cost: int, at: int) -> None:
        """From the slice of ``at``, then from older ones; what was taken in the present was counted in the newest."""
        self.move_on(now)
        first = self.newest if self.slice_of(at) >= self.slice_of(now) else self.slice_of(at)
        for index in sorted(self.slots, reverse=True):
            if index <= first:
                back = min(cost, self.slots[index])
                self.slots[index] -= back
                cost -= back
        if not any(self.slots.values()):
            self.newest, self.slots = 0, {}


class Several:
    """Several limits that are decided together, all or nothing."""

    def __init__(self, models: list[Model]) -> None:
        self.models = models
        self.capacity = min(model.capacity for model in models)

    def fits(self, now: int, cost: int) -> bool:
        return all(model.fits(now, cost) for model in self.models)

    def decide(self, now: int, cost: int) -> bool:
        taken = self.fits(now, cost)
        for model in self.models:
            model.decide(now, cost, taken)
        return taken

    def refund(self, now: int, cost: int, at: int) -> None:
        for model in self.models:
            model.refund(now, cost, at)

    def remaining(self, now: int) -> int:
        return min(model.remaining(now) for model in self.models)

    def retry_after(self, now: int, cost: int, guess: int | None = None) -> int | None:
        waits = [model.retry_after(now, cost, guess) for model in self.models]
        return None if None in waits else max(waits)

    def reset_after(self, now: int, guess: int | None = None) -> int:
        return max(model.reset_after(now, guess) for model in self.models)

    def delay(self, now: int, cost: int) -> int:
        return max(model.delay(now, cost) for model in self.models)


MODELS = {
    "fixed_window": FixedWindow,
    "sliding_log": SlidingLog,
    "sliding_window": SlidingWindow,
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyBucket,
    "gcra": TokenBucket,
    "first_use_window": FirstUseWindow,
}


def model_of_part(limit) -> Model:
    numbers = limit.count, limit.micros, limit.burst, limit.slices
    if limit.algorithm == "calendar_window":
        return CalendarWindow(*numbers, limit.calendar.unit, limit.calendar.timezone)
    return MODELS[limit.algorithm](*numbers)


def model_of(limit) -> Model | Several:
    models = [model_of_part(part) for part in limit.parts]
    return models[0] if len(models) == 1 else Several(models)
