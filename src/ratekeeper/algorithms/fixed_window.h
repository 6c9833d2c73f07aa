/* Twin of fixed_window.py: same names, same order.  The state's two numbers lie side by side: window, used. */
#ifndef RATEKEEPER_FIXED_WINDOW_H
#define RATEKEEPER_FIXED_WINDOW_H

#include "../native/numbers.h"

static inline bool fixed_window_decide(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    u64 window = now / limit->micros;
    u64 used = 0;
    if (state[0] >= window) {
        used = state[1];
        if (state[0] == window + 1) /* the clock stepped back over the edge: the later window stays the current one */
            window++;
        state[0] = window; /* further back than one period: what was used counts in the present window */
    }
    used += cost;
    if (used > limit->count)
        return false;
    state[0] = window;
    state[1] = used;
    return true;
}

static inline u64 fixed_window_count(const u64 state[2], u64 now, const Limit *limit) {
    return state[0] >= now / limit->micros ? state[1] : 0;
}

/* Microseconds until the current window ends: the stored one, if it is the next on the clock. */
static inline u64 fixed_window_until_end(const u64 state[2], u64 now, const Limit *limit) {
    u64 left = limit->micros - now % limit->micros;
    return state[0] == now / limit->micros + 1 ? left + limit->micros : left;
}

static inline void fixed_window_refund(u64 state[2], u64 now, const Limit *limit, u64 cost, i64 at) {
    u64 present = now / limit->micros, used = fixed_window_count(state, now, limit);
    u64 window = state[0] == present + 1 ? present + 1 : present;
    if (!used || at < 0 || (u64)at / limit->micros < present || (u64)at / limit->micros > window)
        return;
    state[0] = used > cost ? window : 0;
    state[1] = used > cost ? used - cost : 0;
}

static inline void fixed_window_debit(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    u64 present = now / limit->micros, used = fixed_window_count(state, now, limit), after = used + cost;
    after = least(after, limit->owes);
    state[0] = state[0] == present + 1 ? present + 1 : present;
    state[1] = after > used ? after : used;
}

#endif
