/* Twin of calendar_window.py: same names, same order.  The state's two numbers lie side by side: window, used. */
#ifndef RATEKEEPER_CALENDAR_WINDOW_H
#define RATEKEEPER_CALENDAR_WINDOW_H

#include "../native/numbers.h"

/* Twin of Calendar.index: guessed from the mean length of a window, then corrected by a step or two. */
static inline u64 calendar_index(u64 now, const Limit *limit) {
    u64 last = limit->edge_count - 3, guess = (u64)((u128)now * (limit->edge_count - 1) / limit->edges[limit->edge_count - 1]);
    guess = least(guess, last);
    while (guess < last && limit->edges[guess + 1] <= now)
        guess++;
    while (guess && limit->edges[guess] > now)
        guess--;
    return guess;
}

static inline bool calendar_window_decide(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    u64 window = calendar_index(now, limit);
    u64 used = 0;
    if (state[0] >= window) {
        used = state[1];
        if (state[0] == window + 1) /* the clock stepped back over the edge: the later window stays the current one */
            window++;
        state[0] = window; /* further back than one window: what was used counts in the present one */
    }
    used += cost;
    if (used > limit->count)
        return false;
    state[0] = window;
    state[1] = used;
    return true;
}

static inline u64 calendar_window_count(const u64 state[2], u64 now, const Limit *limit) {
    return state[0] >= calendar_index(now, limit) ? state[1] : 0;
}

static inline u64 calendar_window_until_end(const u64 state[2], u64 now, const Limit *limit) {
    u64 window = calendar_index(now, limit), end = window + (state[0] == window + 1 ? 2 : 1);
    return limit->edges[least(end, limit->edge_count - 1)] - now;
}

static inline void calendar_window_refund(u64 state[2], u64 now, const Limit *limit, u64 cost, i64 at) {
    u64 present = calendar_index(now, limit), used = calendar_window_count(state, now, limit);
    u64 window = state[0] == present + 1 ? present + 1 : present;
    u64 taken = at < 0 ? 0 : calendar_index((u64)at, limit);
    if (!used || at < 0 || taken < present || taken > window)
        return;
    state[0] = used > cost ? window : 0;
    state[1] = used > cost ? used - cost : 0;
}

static inline void calendar_window_debit(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    u64 present = calendar_index(now, limit), used = calendar_window_count(state, now, limit);
    u64 after = least(used + cost, limit->owes);
    state[0] = state[0] == present + 1 ? present + 1 : present;
    state[1] = after > used ? after : used;
}

#endif
