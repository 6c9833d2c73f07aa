/* Twin of first_use_window.py: same names, same order.  The state's two numbers lie side by side: start, used. */
#ifndef RATEKEEPER_FIRST_USE_WINDOW_H
#define RATEKEEPER_FIRST_USE_WINDOW_H

#include "../native/numbers.h"

static inline bool first_use_window_decide(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    u64 start = state[0], used = state[1];
    if (!used || now >= start + limit->micros) {
        start = now;
        used = 0;
    } else if (start >= now + limit->micros) { /* the clock stepped back by a period or more: the window starts now */
        state[0] = start = now;
    }
    used += cost;
    if (used > limit->count)
        return false;
    state[0] = start;
    state[1] = used;
    return true;
}

static inline u64 first_use_window_count(const u64 state[2], u64 now, const Limit *limit) {
    return now < state[0] + limit->micros ? state[1] : 0;
}

static inline u64 first_use_window_until_end(const u64 state[2], u64 now, const Limit *limit) {
    return state[0] >= now + limit->micros ? limit->micros : state[0] + limit->micros - now;
}

static inline void first_use_window_refund(u64 state[2], u64 now, const Limit *limit, u64 cost, i64 at) {
    u64 used = first_use_window_count(state, now, limit), start = state[0];
    if (start >= now + limit->micros)
        start = now;
    if (!used || at < 0 || (u64)at < least(start, now) || (u64)at >= start + limit->micros)
        return;
    state[0] = used > cost ? start : 0;
    state[1] = used > cost ? used - cost : 0;
}

static inline void first_use_window_debit(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    u64 used = first_use_window_count(state, now, limit), after = least(used + cost, limit->owes);
    if (!used || state[0] >= now + limit->micros)
        state[0] = now;
    state[1] = after > used ? after : used;
}

#endif
