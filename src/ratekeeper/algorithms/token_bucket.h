/* Twin of token_bucket.py: same names, same order; the rest is gcra.h's. */
#ifndef RATEKEEPER_TOKEN_BUCKET_H
#define RATEKEEPER_TOKEN_BUCKET_H

#include "gcra.h"

static inline bool token_bucket_decide(u128 *state, u64 instant, const Limit *limit, u64 cost) {
    u128 now = (u128)instant * limit->drain;
    u128 tokens = limit->full;
    if (*state > now) {
        if (*state - now > tokens) { /* the clock stepped back, or the burst was lowered: an empty bucket is the worst */
            tokens = 0;
            *state = now + limit->full;
        } else {
            tokens -= *state - now;
        }
    }
    u128 price = (u128)cost * limit->unit;
    if (price > tokens)
        return false;
    *state = now + limit->full - (tokens - price);
    return true;
}

#endif
