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
    u64 *ids;  /* of leases, see concurrency.h: one for each instant; else NULL */
} Log;

static inline u64 log_start(const Log *log) { return *log->head >> 32; }
static inline u64 log_length(const Log *log) { return *log->head & 0xFFFFFFFF; }

static inline u64 *log_at(const Log *log, u64 index) {
    u64 place = log_start(log) + index;
    return log->ring + (place < log->room ? place : place - log->room);
}

static inline u64 *id_at(const Log *log, u64 index) { return log->ids + (log_at(log, index) - log->ring); }

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

static inline u64 log_newest(const Log *log) {
    u64 length = log_length(log);
    return length ? *log_at(log, length - 1) : 0;
}

/* Where the clock is taken to be: where the newest came, if the clock stepped back by less than one period.  Not for
 * leases, whose instants are their ends. */
static inline u64 sliding_log_time(const Log *log, u64 now, const Limit *limit) {
    u64 newest = log_newest(log);
    return !limit->leases && newest > now && newest < now + limit->micros ? newest : now;
}

/* How many have left the window. */
static inline u64 sliding_log_gone(const Log *log, u64 now, const Limit *limit) {
    return bisect_right(log, (i64)sliding_log_time(log, now, limit) - (i64)limit->window);
}

static inline u64 sliding_log_used(const Log *log, u64 now, const Limit *limit) {
    return log_length(log) - sliding_log_gone(log, now, limit);
}

/* By one period or more: nothing was admitted after now, and no lease ends later than one that is taken now. */
static inline void sliding_log_mend(const Log *log, u64 now, const Limit *limit) {
    u64 length = log_length(log), latest = now + limit->reach;
    if (log_newest(log) <= latest || (!limit->leases && log_newest(log) < now + limit->micros))
        return;
    for (u64 index = 0; index < length; index++) /* from the oldest: the log is in order after each step */
        if (*log_at(log, index) > latest)
            *log_at(log, index) = latest;
}

/* Enter `cost` units at `now`: the `gone`, which have left the window, free the places that are written to.  Returns
 * their instant: where the clock stepped back, they come with the newest. */
static inline u64 sliding_log_enter(const Log *log, u64 now, const Limit *limit, u64 gone, u64 cost) {
    u64 newest = log_newest(log), instant = now + limit->reach;
    if (gone)
        log_publish(log, log_start(log) + gone, log_length(log) - gone);
    u64 length = log_length(log);
    if (!limit->leases && newest > instant)
        instant = newest;
    for (u64 unit = 0; unit < cost; unit++) {
        *log_at(log, length + unit) = instant;
        if (log->ids)
            *id_at(log, length + unit) = 0;
    }
    log_publish(log, log_start(log), length + cost);
    return instant;
}

static inline u64 sliding_log_append(const Log *log, u64 now, const Limit *limit, u64 cost) {
    return sliding_log_enter(log, now, limit, sliding_log_gone(log, now, limit), cost);
}

static inline bool sliding_log_decide(const Log *log, u64 now, const Limit *limit, u64 cost) {
    sliding_log_mend(log, now, limit);
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
    u64 index = length - used + (used + pending + cost - limit->count) - 1, newest = log_newest(log);
    u64 latest = now + limit->reach; /* of what is entered now, and of what mending leaves */
    bool is_near = !limit->leases && newest > now && newest < now + limit->micros;
    u64 instant = is_near ? newest : latest;
    if (index < length)
        instant = is_near ? *log_at(log, index) : least(*log_at(log, index), latest);
    return (i64)(instant + limit->window - now);
}

static inline i64 sliding_log_retry_after(const Log *log, u64 now, const Limit *limit, u64 cost, u64 pending) {
    return sliding_log_wait(log, now, limit, cost, sliding_log_used(log, now, limit), pending);
}

static inline u64 sliding_log_reset_after(const Log *log, u64 now, const Limit *limit, u64 pending) {
    if (!pending && !sliding_log_used(log, now, limit))
        return 0;
    u64 newest = sliding_log_time(log, now, limit) + limit->reach;
    u64 end = (pending ? newest : least(newest, log_newest(log))) + limit->window;
    return end > now ? end - now : 0; /* never negative, even of a state that was damaged */
}

/* How many units a debit enters. */
static inline u64 sliding_log_debit_units(const Log *log, u64 now, const Limit *limit, u64 cost) {
    u64 used = sliding_log_used(log, now, limit);
    return least(least(cost, limit->count), limit->owes > used ? limit->owes - used : 0);
}

/* A full log forgets its oldest: the newest `count` decide when the next one fits.  To be called on a mended log. */
static inline void sliding_log_debit(const Log *log, u64 now, const Limit *limit, u64 cost) {
    u64 used = sliding_log_used(log, now, limit), entered = sliding_log_debit_units(log, now, limit, cost);
    u64 kept = used > limit->count ? used : limit->count, gone = sliding_log_gone(log, now, limit);
    if (entered)
        sliding_log_enter(log, now, limit, gone + (used + entered > kept ? used + entered - kept : 0), entered);
}

static inline void log_remove(const Log *log, u64 end, u64 cost) {
    u64 kept = end > cost ? end - cost : 0, length = log_length(log);
    for (u64 index = end; index < length; index++)
        *log_at(log, kept + index - end) = *log_at(log, index);
    log_publish(log, log_start(log), kept + length - end);
}

static inline void sliding_log_refund(const Log *log, u64 now, u64 cost, i64 at) {
    /* What was taken at or after now, though the clock stepped back, was entered as the newest. */
    log_remove(log, at >= (i64)now ? log_length(log) : bisect_right(log, at), cost);
}

#define sliding_log_debt sliding_log_used

#endif
