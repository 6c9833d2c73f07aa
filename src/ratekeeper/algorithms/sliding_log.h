/* Twin of sliding_log.py: same names, same order.
 *
 * The state is a ring of instants.  Its head, one word, says where the oldest lies and how many there are: whatever
 * is written becomes true by one store to the head, so a process that is killed in between leaves a valid log.
 */
#ifndef RATEKEEPER_SLIDING_LOG_H
#define RATEKEEPER_SLIDING_LOG_H

#include "../native/numbers.h"

typedef struct {
    u64 *head; /* start << 32 | length */
    u64 *ring;
    u64 room;  /* how many instants the ring holds: for `decide`, at least the limit's count */
} Log;

static inline u64 log_start(const Log *log) { return *log->head >> 32; }
static inline u64 log_length(const Log *log) { return *log->head & 0xFFFFFFFF; }

static inline u64 *log_at(const Log *log, u64 index) {
    u64 place = log_start(log) + index;
    return log->ring + (place < log->room ? place : place - log->room);
}

static inline void log_publish(const Log *log, u64 start, u64 length) {
    if (start >= log->room)
        start -= log->room;
    __atomic_store_n(log->head, start << 32 | length, __ATOMIC_RELEASE);
}

/* How many are not after `instant`.  The oldest are looked at first: mostly few have left, or none. */
static inline u64 bisect_right(const Log *log, i64 instant) {
    u64 low = 0, high = log_length(log);
    for (int look = 0; look < 2; look++, low++)
        if (low >= high || (i64)*log_at(log, low) > instant)
            return low;
    while (low < high) {
        u64 middle = (low + high) / 2;
        if ((i64)*log_at(log, middle) > instant)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static inline u64 sliding_log_used(const Log *log, u64 now, const Limit *limit) {
    return log_length(log) - bisect_right(log, (i64)now - (i64)limit->micros);
}

static inline void sliding_log_mend(const Log *log, u64 now) {
    u64 length = log_length(log);
    if (!length || *log_at(log, length - 1) <= now)
        return;
    for (u64 index = 0; index < length; index++) /* from the oldest: the log is in order after each step */
        if (*log_at(log, index) > now)
            *log_at(log, index) = now;
}

/* Enter `cost` units at `now`: the `gone`, which have left the window, free the places that are written to. */
static inline void sliding_log_enter(const Log *log, u64 now, u64 gone, u64 cost) {
    if (gone)
        log_publish(log, log_start(log) + gone, log_length(log) - gone);
    u64 length = log_length(log);
    for (u64 unit = 0; unit < cost; unit++)
        *log_at(log, length + unit) = now;
    log_publish(log, log_start(log), length + cost);
}

static inline void sliding_log_append(const Log *log, u64 now, const Limit *limit, u64 cost) {
    sliding_log_enter(log, now, bisect_right(log, (i64)now - (i64)limit->micros), cost);
}

static inline bool sliding_log_decide(const Log *log, u64 now, const Limit *limit, u64 cost) {
    sliding_log_mend(log, now); /* the clock stepped back: nothing was admitted after now */
    if (sliding_log_used(log, now, limit) + cost > limit->count)
        return false;
    sliding_log_append(log, now, limit, cost);
    return true;
}

/* The answers take `pending` units more, as if entered at now: a plan may name a key twice before it is decided. */

static inline u64 sliding_log_remaining(const Log *log, u64 now, const Limit *limit, u64 pending) {
    u64 used = sliding_log_used(log, now, limit) + pending;
    return used < limit->count ? limit->count - used : 0;
}

static inline i64 sliding_log_wait(const Log *log, u64 now, const Limit *limit, u64 cost, u64 used, u64 pending) {
    if (cost > limit->count)
        return NEVER;
    u64 length = log_length(log);
    if (used + pending + cost <= limit->count)
        return 0;
    u64 index = length - used + (used + pending + cost - limit->count) - 1;
    u64 instant = index < length ? least(*log_at(log, index), now) : now;
    return (i64)(instant + limit->micros - now);
}

static inline i64 sliding_log_retry_after(const Log *log, u64 now, const Limit *limit, u64 cost, u64 pending) {
    return sliding_log_wait(log, now, limit, cost, sliding_log_used(log, now, limit), pending);
}

static inline u64 sliding_log_reset_after(const Log *log, u64 now, const Limit *limit, u64 pending) {
    if (pending)
        return limit->micros;
    if (!sliding_log_used(log, now, limit))
        return 0;
    return least(*log_at(log, log_length(log) - 1), now) + limit->micros - now;
}

static inline void sliding_log_refund(const Log *log, u64 cost, i64 at) {
    u64 end = bisect_right(log, at), length = log_length(log);
    u64 kept = end > cost ? end - cost : 0;
    for (u64 index = end; index < length; index++)
        *log_at(log, kept + index - end) = *log_at(log, index);
    log_publish(log, log_start(log), kept + length - end);
}

#define sliding_log_debt sliding_log_used

#endif
