/* The three windows that start again, by one name: aligned to multiples of the period, to a calendar, to the first use.
 *
 * Their states have the same two words, so a record and a slot need not know which of them it holds.
 */
#ifndef RATEKEEPER_WINDOWS_H
#define RATEKEEPER_WINDOWS_H

#include "../algorithms/calendar_window.h"
#include "../algorithms/first_use_window.h"
#include "../algorithms/fixed_window.h"

static inline bool window_decide(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    if (__builtin_expect(limit->starts == AT_MULTIPLES, 1))
        return fixed_window_decide(state, now, limit, cost);
    return limit->starts == BY_CALENDAR ? calendar_window_decide(state, now, limit, cost)
                                        : first_use_window_decide(state, now, limit, cost);
}

static inline u64 window_count(const u64 state[2], u64 now, const Limit *limit) {
    return limit->starts == AT_MULTIPLES  ? fixed_window_count(state, now, limit)
           : limit->starts == BY_CALENDAR ? calendar_window_count(state, now, limit)
                                          : first_use_window_count(state, now, limit);
}

static inline u64 window_until_end(const u64 state[2], u64 now, const Limit *limit) {
    return limit->starts == AT_MULTIPLES  ? fixed_window_until_end(state, now, limit)
           : limit->starts == BY_CALENDAR ? calendar_window_until_end(state, now, limit)
                                          : first_use_window_until_end(state, now, limit);
}

static inline u64 window_remaining(const u64 state[2], u64 now, const Limit *limit) {
    u64 used = window_count(state, now, limit);
    return used < limit->count ? limit->count - used : 0;
}

static inline i64 window_retry_after(const u64 state[2], u64 now, const Limit *limit, u64 cost) {
    if (cost > limit->count)
        return NEVER;
    return window_count(state, now, limit) + cost > limit->count ? (i64)window_until_end(state, now, limit) : 0;
}

static inline u64 window_reset_after(const u64 state[2], u64 now, const Limit *limit) {
    return window_count(state, now, limit) ? window_until_end(state, now, limit) : 0;
}

static inline void window_refund(u64 state[2], u64 now, const Limit *limit, u64 cost, i64 at) {
    if (limit->starts == AT_MULTIPLES)
        fixed_window_refund(state, now, limit, cost, at);
    else if (limit->starts == BY_CALENDAR)
        calendar_window_refund(state, now, limit, cost, at);
    else
        first_use_window_refund(state, now, limit, cost, at);
}

static inline void window_debit(u64 state[2], u64 now, const Limit *limit, u64 cost) {
    if (limit->starts == AT_MULTIPLES)
        fixed_window_debit(state, now, limit, cost);
    else if (limit->starts == BY_CALENDAR)
        calendar_window_debit(state, now, limit, cost);
    else
        first_use_window_debit(state, now, limit, cost);
}

#define window_debt window_count

#endif
