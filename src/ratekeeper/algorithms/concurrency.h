/* Twin of concurrency.py: a log of the instants at which leases end, with the id of each beside it.
 *
 * What reads the instants alone is the sliding log's.  Here is what looks at ids.  There are no notes of withdrawn leases:
 * a call in this process is never late.
 *
 * Leases are moved one by one, and the head is published so that a process killed in between leaves every lease of the
 * others in place: at worst one of them is there twice, until it ends or its id is given back.
 */
#ifndef RATEKEEPER_CONCURRENCY_H
#define RATEKEEPER_CONCURRENCY_H

#include "sliding_log.h"

#define NOBODY 0

/* How many places the lease has of those in force. */
static inline u64 concurrency_places(const Log *log, u64 now, u64 lease) {
    u64 places = 0, length = log_length(log);
    for (u64 index = bisect_right(log, (i64)now); lease != NOBODY && index < length; index++)
        places += *id_at(log, index) == lease;
    return places;
}

static inline void concurrency_copy(const Log *log, u64 to, u64 from) {
    *log_at(log, to) = *log_at(log, from);
    *id_at(log, to) = *id_at(log, from);
}

static inline void concurrency_remove(const Log *log, u64 index) {
    u64 length = log_length(log);
    for (; index + 1 < length; index++)
        concurrency_copy(log, index, index + 1);
    log_publish(log, log_start(log), length - 1);
}

/* Let the lease keep the last `kept` of its places. */
static inline void concurrency_give_back(const Log *log, u64 kept, u64 lease) {
    u64 mine = 0;
    for (u64 index = 0; index < log_length(log); index++)
        mine += *id_at(log, index) == lease;
    for (u64 index = 0; lease != NOBODY && mine > kept && index < log_length(log);) {
        if (*id_at(log, index) == lease) {
            concurrency_remove(log, index);
            mine--;
        } else {
            index++;
        }
    }
}

/* Write what was decided: `cost` places for the lease.  The ring has room for them beside the others. */
static inline void concurrency_hold(const Log *log, u64 now, const Limit *limit, u64 cost, u64 lease, u64 lasts) {
    u64 gone = bisect_right(log, (i64)now), until = now + least(lasts ? lasts : limit->micros, limit->micros);
    if (gone)
        log_publish(log, log_start(log) + gone, log_length(log) - gone);
    concurrency_give_back(log, 0, lease);
    u64 place = bisect_right(log, (i64)until);
    for (u64 unit = 0; unit < cost; unit++) {
        u64 length = log_length(log), index = length;
        if (place < length) { /* the last is twice there, before the others move up */
            concurrency_copy(log, length, length - 1);
            log_publish(log, log_start(log), length + 1);
            for (index = length - 1; index > place; index--)
                concurrency_copy(log, index, index - 1);
        }
        *log_at(log, index) = until;
        *id_at(log, index) = lease;
        if (place >= length)
            log_publish(log, log_start(log), length + 1);
    }
}

/* End `cost` leases that nobody can name, of those taken exactly `at` that instant. */
static inline void concurrency_refund(const Log *log, const Limit *limit, u64 cost, i64 at) {
    i64 until = at + (i64)limit->micros;
    for (u64 index = bisect_right(log, until - 1); cost && index < log_length(log) && (i64)*log_at(log, index) == until;) {
        if (*id_at(log, index) == NOBODY) {
            concurrency_remove(log, index);
            cost--;
        } else {
            index++;
        }
    }
}

#endif
