/* Twin of token_bucket.py: same names, same order; the rest is gcra.h's. */
#ifndef RATEKEEPER_TOKEN_BUCKET_H
#define RATEKEEPER_TOKEN_BUCKET_H

#include "gcra.h"

static inline bool token_bucket_decide(u128 *state, u64 instant, const Limit *limit, u64 cost) {
    u128 now = (u128)instant * limit->drain;
    u128 tokens = limit->full;
    if (*state > now) {
        u128 missing = *state - now;
        if (missing > tokens && missing > tokens + (u128)limit->micros * limit->drain) { /* as in gcra.h */
            missing = tokens;
            *state = now + limit->full;
        }
        if (missing > tokens) /* the clock stepped back */
            return false;
        tokens -= missing;
    }
    u128 price = (u128)cost * limit->unit;
    if (price > tokens)
        return false;
    *state = now + limit->full - (tokens - price);
    return true;
}

#endif
