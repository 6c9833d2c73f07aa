/* Twin of leaky_bucket.py: same names, same order; the rest is gcra.h's. */
#ifndef RATEKEEPER_LEAKY_BUCKET_H
#define RATEKEEPER_LEAKY_BUCKET_H

#include "gcra.h"

static inline bool leaky_bucket_decide(u128 *state, u64 now, const Limit *limit, u64 cost) {
    u128 queued = gcra_ticks_ahead(*state, now, limit) + (u128)cost * limit->unit;
    if (queued > limit->full)
        return gcra_beyond(state, now, limit, cost);
    *state = gcra_instant(queued, now, limit);
    return true;
}

static inline u64 leaky_bucket_delay(u128 state, u64 now, const Limit *limit, u64 cost) {
    u128 owed = gcra_backlog(state, now, limit);
    u128 own = (u128)cost * limit->unit;
    return owed > own ? divided_up(owed - own, limit->drain) : 0;
}

#endif
