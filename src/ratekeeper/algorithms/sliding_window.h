/* Twin of sliding_window.py: same names, same order.
 *
 * The state's digits lie side by side: the index of the newest slice, then slices + 1 counters, newest first.
 */
#ifndef RATEKEEPER_SLIDING_WINDOW_H
#define RATEKEEPER_SLIDING_WINDOW_H

#include "../native/numbers.h"

/* All that was counted, as if in one slice: where the clock stepped back by more than one period. */
static inline void sliding_window_gather(u64 *counters, const Limit *limit) {
    u64 sum = 0;
    for (u64 age = 0; age <= limit->slices; age++) {
        sum += counters[age];
        counters[age] = 0;
    }
    counters[0] = least(limit->count, sum);
}

static inline bool sliding_window_decide(u64 *state, u64 now, const Limit *limit, u64 cost) {
    u64 slices = limit->slices;
    u64 width = limit->micros;
    u64 position = now * slices;
    u64 newest = position / width;
    u64 *counters = state + 1;
    u64 passed = newest > state[0] ? newest - state[0] : 0;
    if (newest < state[0]) {
        if (state[0] - newest <= slices) { /* the clock is taken to be where that slice began */
            newest = state[0];
            position = newest * width;
        } else {
            sliding_window_gather(counters, limit);
            state[0] = newest;
        }
    }
    u64 sum = 0;
    for (u64 age = passed; age < slices; age++)
        sum += counters[age - passed];
    u64 oldest = passed <= slices ? least(counters[slices - passed], limit->owes) : 0; /* the limit may be lower now */
    if (cost > limit->count || sum > limit->count - cost)
        return false;
    u64 room = limit->count - cost - sum;
    if (oldest && (u128)oldest * ((newest + 1) * width - position) > (u128)room * width)
        return false;
    if (passed) {
        for (u64 age = slices + 1; age-- > 0;)
            counters[age] = age >= passed ? counters[age - passed] : 0;
        state[0] = newest;
    }
    counters[0] += cost;
    return true;
}

/* The index of the current slice, and into `counters` all from the newest to the oldest. */
static inline u64 sliding_window_unpack(const u64 *state, u64 now, const Limit *limit, u64 *counters) {
    u64 newest = now * limit->slices / limit->micros;
    u64 passed = newest > state[0] ? newest - state[0] : 0;
    for (u64 age = 0; age <= limit->slices; age++)
        counters[age] = age >= passed ? state[1 + age - passed] : 0;
    if (newest < state[0]) {
        if (state[0] - newest <= limit->slices)
            return state[0];
        sliding_window_gather(counters, limit);
    }
    return newest;
}

/* Where the clock is taken to be, in 1/slices of a microsecond: no earlier than where the current slice began. */
static inline u64 sliding_window_position(u64 newest, u64 now, const Limit *limit) {
    u64 began = newest * limit->micros;
    return began > now * limit->slices ? began : now * limit->slices;
}

static inline u128 sliding_window_weighed(const u64 *state, u64 now, const Limit *limit) {
    u64 counters[MOST_SLICES + 1], sum = 0;
    u64 newest = sliding_window_unpack(state, now, limit, counters);
    for (u64 age = 0; age < limit->slices; age++)
        sum += counters[age];
    u64 covered = (newest + 1) * limit->micros - sliding_window_position(newest, now, limit);
    return (u128)sum * limit->micros + (u128)least(counters[limit->slices], limit->owes) * covered;
}

static inline u64 sliding_window_remaining(const u64 *state, u64 now, const Limit *limit) {
    u64 used = divided_up(sliding_window_weighed(state, now, limit), limit->micros);
    return used < limit->count ? limit->count - used : 0;
}

static inline i64 sliding_window_retry_after(const u64 *state, u64 now, const Limit *limit, u64 cost) {
    if (cost > limit->count)
        return NEVER;
    u64 counters[MOST_SLICES + 1], slices = limit->slices;
    u64 newest = sliding_window_unpack(state, now, limit, counters);
    u64 position = sliding_window_position(newest, now, limit), start = position;
    for (;;) {
        u64 oldest = least(counters[slices], limit->owes), sum = 0;
        for (u64 age = 0; age < slices; age++)
            sum += counters[age];
        if (sum <= limit->count - cost) { /* the oldest may weigh room / oldest */
            u128 room = limit->count - cost - sum;
            i128 may = oldest ? (i128)(room * limit->micros / oldest) : (i128)limit->micros;
            i128 enough = (i128)(newest + 1) * limit->micros - may;
            u64 from = enough > (i128)start ? (u64)enough : start;
            return from > position ? (i64)(divided_up(from, slices) - now) : 0;
        }
        newest++;
        memmove(counters + 1, counters, slices * sizeof(u64));
        counters[0] = 0;
        start = newest * limit->micros;
    }
}

static inline u64 sliding_window_reset_after(const u64 *state, u64 now, const Limit *limit) {
    u64 counters[MOST_SLICES + 1];
    u64 newest = sliding_window_unpack(state, now, limit, counters);
    for (u64 age = 0; age <= limit->slices; age++)
        if (counters[age])
            return divided_up((u128)(newest + limit->slices + 1 - age) * limit->micros, limit->slices) - now;
    return 0;
}

static inline void sliding_window_refund(u64 *state, u64 now, const Limit *limit, u64 cost, i64 at) {
    u64 counters[MOST_SLICES + 1];
    u64 newest = sliding_window_unpack(state, now, limit, counters);
    u64 then = at < 0 ? 0 : (u64)at * limit->slices / limit->micros;
    /* What was taken at or after the present slice, though the clock stepped back, was counted in the newest. */
    u64 age = at < 0 ? limit->slices + 1 : then < now * limit->slices / limit->micros ? newest - then : 0;
    for (; age <= limit->slices; age++) {
        u64 back = least(cost, counters[age]);
        counters[age] -= back;
        cost -= back;
    }
    u64 left = 0;
    for (age = 0; age <= limit->slices; age++)
        left |= counters[age];
    state[0] = left ? newest : 0;
    memcpy(state + 1, counters, (limit->slices + 1) * sizeof(u64));
}

static inline void sliding_window_debit(u64 *state, u64 now, const Limit *limit, u64 cost) {
    u64 counters[MOST_SLICES + 1], left = 0;
    u64 used = divided_up(sliding_window_weighed(state, now, limit), limit->micros);
    u64 newest = sliding_window_unpack(state, now, limit, counters);
    counters[0] += least(cost, limit->owes > used ? limit->owes - used : 0);
    for (u64 age = 0; age <= limit->slices; age++)
        left |= counters[age];
    state[0] = left ? newest : 0;
    memcpy(state + 1, counters, (limit->slices + 1) * sizeof(u64));
}

#define sliding_window_debt sliding_window_weighed

#endif
