/* Twin of gcra.py: same names, same order. */
#ifndef RATEKEEPER_GCRA_H
#define RATEKEEPER_GCRA_H

#include "../native/numbers.h"

/* A refusal leaves the state as it is, unless the clock stepped back far or the burst was lowered. */
static inline bool gcra_refuse(u128 *state, u128 now, const Limit *limit) {
    if (*state > now + limit->ceiling)
        *state = now + limit->ceiling;
    return false;
}

static inline bool gcra_decide(u128 *state, u64 instant, const Limit *limit, u64 cost) {
    u128 now = (u128)instant * limit->drain;
    u128 tat = (*state > now ? *state : now) + (u128)cost * limit->unit;
    if (tat > now + limit->full)
        return gcra_refuse(state, now, limit);
    *state = tat;
    return true;
}

static inline u128 gcra_backlog(u128 state, u64 instant, const Limit *limit) {
    u128 now = (u128)instant * limit->drain;
    if (state <= now)
        return 0;
    return state - now < limit->ceiling ? state - now : limit->ceiling;
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
    return owed > back ? (u128)now * limit->drain + owed - back : 0;
}

#define gcra_debt gcra_backlog

#endif
