/* Twin of concurrency.py: all but refund is the sliding log's. */
#ifndef RATEKEEPER_CONCURRENCY_H
#define RATEKEEPER_CONCURRENCY_H

#include "sliding_log.h"

static inline void concurrency_refund(const Log *log, u64 cost, i64 at) {
    u64 taken_then = bisect_right(log, at) - bisect_right(log, at - 1);
    sliding_log_refund(log, least(cost, taken_then), at);
}

#endif
