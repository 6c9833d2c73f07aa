/* Twin of leaky_bucket.py: same names, same order; the rest is gcra.h's. */
#ifndef RATEKEEPER_LEAKY_BUCKET_H
#define RATEKEEPER_LEAKY_BUCKET_H

#include "gcra.h"

static inline bool leaky_bucket_decide(u128 *state, u64 instant, const Limit *limit, u64 cost) {
    u128 now = (u128)instant * limit->drain;
    u128 queued = (u128)cost * limit->unit;
    if (*state > now)
        queued += *state - now;
    if (queued > limit->full)
        return gcra_beyond(state, now, limit, cost);
    *state = now + queued;
    return true;
}

static inline u64 leaky_bucket_delay(u128 state, u64 now, const Limit *limit, u64 cost) {
    u128 owed = gcra_backlog(state, now, limit);
    u128 own = (u128)cost * limit->unit;
    return owed > own ? divided_up(owed - own, limit->drain) : 0;
}

#endif
