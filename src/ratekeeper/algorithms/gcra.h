/* Twin of gcra.py: same names, same order. */
#ifndef RATEKEEPER_GCRA_H
#define RATEKEEPER_GCRA_H

#include "../native/numbers.h"

#define FRACTION 26 /* bits: a microsecond has MOST_DRAIN ticks at most */
#define GCRA_MARK ((u128)MOST_NOW << FRACTION)

/* The ticks from `now` to a state; 0 if it has passed. */
static inline u128 gcra_ticks_ahead(u128 state, u64 now, const Limit *limit) {
    u64 whole = (u64)(state >> FRACTION), rest = (u64)state & (MOST_DRAIN - 1);
    if (whole < now)
        return 0;
    return (u128)(whole - now) * limit->drain + (rest < limit->drain ? rest : limit->drain - 1);
}

/* The state that lies so many ticks after `now`. */
static inline u128 gcra_instant(u128 owed, u64 now, const Limit *limit) {
    if (limit->drain == 1)
        return (now + owed) << FRACTION;
    u64 micros = divided(owed, limit->drain);
    return (u128)(now + micros) << FRACTION | (u64)(owed - (u128)micros * limit->drain);
}

/* Decide where the cost did not fit: a refusal leaves the state as it is, unless it is above the ceiling. */
static inline bool gcra_beyond(u128 *state, u64 now, const Limit *limit, u64 cost) {
    if (*state < GCRA_MARK) {
        if (gcra_ticks_ahead(*state, now, limit) > limit->ceiling) /* the clock stepped back far, or the limit was changed */
            *state = gcra_instant(limit->ceiling, now, limit);
        return false;
    }
    u128 tat = gcra_ticks_ahead(*state - GCRA_MARK, now, limit) + (u128)cost * limit->unit; /* in debt, now or earlier */
    if (tat > limit->full)
        return false;
    *state = gcra_instant(tat, now, limit);
    return true;
}

static inline bool gcra_decide(u128 *state, u64 now, const Limit *limit, u64 cost) {
    u128 tat = gcra_ticks_ahead(*state, now, limit) + (u128)cost * limit->unit;
    if (tat > limit->full)
        return gcra_beyond(state, now, limit, cost);
    *state = gcra_instant(tat, now, limit);
    return true;
}

static inline u128 gcra_backlog(u128 state, u64 now, const Limit *limit) {
    if (state >= GCRA_MARK)
        return gcra_ticks_ahead(state - GCRA_MARK, now, limit);
    u128 owed = gcra_ticks_ahead(state, now, limit);
    return owed <= limit->ceiling ? owed : limit->ceiling;
}

static inline u128 gcra_owing(u128 owed, u64 now, const Limit *limit) {
    if (owed <= limit->ceiling)
        return owed ? gcra_instant(owed, now, limit) : 0;
    u128 state = gcra_instant(owed, now, limit), last = GCRA_MARK - MOST_DRAIN + limit->drain - 1;
    return GCRA_MARK + (state < last ? state : last);
}

static inline u64 gcra_remaining(u128 state, u64 now, const Limit *limit) {
    u128 owed = gcra_backlog(state, now, limit);
    return owed < limit->full ? divided(limit->full - owed, limit->unit) : 0;
}

static inline i64 gcra_retry_after(u128 state, u64 now, const Limit *limit, u64 cost) {
    if (cost > limit->capacity)
        return NEVER;
    u128 level = gcra_backlog(state, now, limit) + (u128)cost * limit->unit;
    return level > limit->full ? (i64)divided_up(level - limit->full, limit->drain) : 0;
}

static inline u64 gcra_reset_after(u128 state, u64 now, const Limit *limit) {
    return divided_up(gcra_backlog(state, now, limit), limit->drain);
}

static inline u128 gcra_refund(u128 state, u64 now, const Limit *limit, u64 cost) {
    u128 owed = gcra_backlog(state, now, limit);
    u128 back = (u128)cost * limit->unit;
    return gcra_owing(owed > back ? owed - back : 0, now, limit);
}

static inline u128 gcra_debit(u128 state, u64 now, const Limit *limit, u64 cost) {
    u128 owed = gcra_backlog(state, now, limit), most = (u128)limit->owes * limit->unit;
    u128 after = owed + (u128)cost * limit->unit;
    after = after < most ? after : most;
    return gcra_owing(after > owed ? after : owed, now, limit);
}

#define gcra_debt gcra_backlog

#endif
