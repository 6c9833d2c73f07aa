/* Twin of concurrency.py: all but refund is the sliding log's, which enters leases where they belong. */
#ifndef RATEKEEPER_CONCURRENCY_H
#define RATEKEEPER_CONCURRENCY_H

#include "sliding_log.h"

static inline void concurrency_refund(const Log *log, u64 cost, i64 at) {
    u64 end = bisect_right(log, at);
    log_remove(log, end, least(cost, end - bisect_right(log, at - 1)));
}

#endif
