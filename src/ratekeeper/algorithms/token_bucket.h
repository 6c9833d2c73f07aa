/* Twin of token_bucket.py: same names, same order; the rest is gcra.h's. */
#ifndef RATEKEEPER_TOKEN_BUCKET_H
#define RATEKEEPER_TOKEN_BUCKET_H

#include "gcra.h"

static inline bool token_bucket_decide(u128 *state, u64 now, const Limit *limit, u64 cost) {
    u128 missing = gcra_ticks_ahead(*state, now, limit) + (u128)cost * limit->unit;
    if (missing > limit->full) /* fewer tokens than none */
        return gcra_beyond(state, now, limit, cost);
    *state = gcra_instant(missing, now, limit);
    return true;
}

#endif
