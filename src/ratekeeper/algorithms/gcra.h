/* Twin of gcra.py: same names, same order. */
#ifndef RATEKEEPER_GCRA_H
#define RATEKEEPER_GCRA_H

#include "../native/numbers.h"

static inline u128 gcra_mark(const Limit *limit) { return (u128)MOST_NOW * limit->drain; }

/* Decide where the cost did not fit: a refusal leaves the state as it is, unless it is above the ceiling. */
static inline bool gcra_beyond(u128 *state, u128 now, const Limit *limit, u64 cost) {
    if (*state <= now + limit->ceiling)
        return false;
    u128 mark = gcra_mark(limit);
    if (*state < mark) { /* the clock stepped back far, or the burst was lowered */
        *state = now + limit->ceiling;
        return false;
    }
    u128 tat = (*state - mark > now ? *state - mark : now) + (u128)cost * limit->unit; /* in debt, now or earlier */
    if (tat > now + limit->full)
        return false;
    *state = tat;
    return true;
}

static inline bool gcra_decide(u128 *state, u64 instant, const Limit *limit, u64 cost) {
    u128 now = (u128)instant * limit->drain;
    u128 tat = (*state > now ? *state : now) + (u128)cost * limit->unit;
    if (tat > now + limit->full)
        return gcra_beyond(state, now, limit, cost);
    *state = tat;
    return true;
}

static inline u128 gcra_backlog(u128 state, u64 instant, const Limit *limit) {
    u128 now = (u128)instant * limit->drain;
    if (state <= now)
        return 0;
    if (state - now <= limit->ceiling)
        return state - now;
    u128 mark = gcra_mark(limit);
    if (state < mark)
        return limit->ceiling;
    return state - mark > now ? state - mark - now : 0;
}

static inline u128 gcra_owing(u128 owed, u64 instant, const Limit *limit) {
    u128 now = (u128)instant * limit->drain, mark = gcra_mark(limit);
    if (owed <= limit->ceiling)
        return owed ? now + owed : 0;
    return mark + (now + owed < mark ? now + owed : mark - 1);
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
