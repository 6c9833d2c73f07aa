/* One check of one limit on a packed slot, and nothing else: the path that nearly every decision takes. */
#ifndef RATEKEEPER_HOT_H
#define RATEKEEPER_HOT_H

#include "plan.h"

/* Decide on a packed state; `evidence` gets the state unpacked. */
static inline bool decide_packed(const Shape *shape, const Limit *limit, u128 *state, u64 now, u64 cost,
                                 Evidence *evidence) {
    u64 *words = evidence->word;
    switch (limit->algorithm) {
    case FIXED_WINDOW:
        unpack(shape, *state, words);
        evidence->allowed = fixed_window_decide(words, now, limit, cost);
        *state = pack(shape, words);
        break;
    case SLIDING_WINDOW:
        unpack(shape, *state, words);
        evidence->allowed = sliding_window_decide(words, now, limit, cost);
        *state = pack(shape, words);
        break;
    case TOKEN_BUCKET:
        evidence->allowed = token_bucket_decide(state, now, limit, cost);
        split(*state, words);
        break;
    case LEAKY_BUCKET:
        evidence->allowed = leaky_bucket_decide(state, now, limit, cost);
        split(*state, words);
        break;
    default:
        evidence->allowed = gcra_decide(state, now, limit, cost);
        split(*state, words);
    }
    return evidence->allowed;
}

/* The log of a private table: its slot holds the address of the block. */
static inline bool check_log(Shelf *shelf, Place place, const Limit *limit, u64 now, u64 cost, Evidence *evidence) {
    const Part *part = shelf->shape->part;
    Slot *slot = find_packed(place);
    u64 words[1] = {slot ? slot->low : 0};
    Log log = log_view(part, words);
    u64 used = sliding_log_used(&log, now, limit);
    evidence->told = true;
    evidence->allowed = used + cost <= limit->count;
    if (!evidence->allowed) {
        sliding_log_mend(&log, now);
        evidence->word[0] = used < limit->count ? limit->count - used : 0;
        evidence->word[1] = (u64)sliding_log_retry_after(&log, now, limit, cost, 0);
        evidence->word[2] = sliding_log_reset_after(&log, now, limit, 0);
        return true;
    }
    if (!reserve(shelf, words, now, limit, cost))
        return false;
    if (slot) {
        slot->low = words[0];
    } else {
        i64 made = make_room(shelf, place, now, limit);
        if (made < 0) {
            free_blocks(shelf, words);
            return false;
        }
        slots_of(place.region)[made] = slot_with(place.print, words[0]);
    }
    log = log_view(part, words);
    sliding_log_mend(&log, now);
    sliding_log_append(&log, now, limit, cost);
    evidence->word[0] = limit->count - used - cost;
    evidence->word[1] = 0;
    evidence->word[2] = limit->micros;
    return true;
}

/* False only without memory.  The region is held. */
static inline bool check_private(Shelf *shelf, Place place, const Limit *limit, u64 now, u64 cost, Evidence *evidence) {
    evidence->told = false;
    count_change(shelf);
    if (limit->algorithm == SLIDING_LOG)
        return check_log(shelf, place, limit, now, cost, evidence);
    Slot *slot = find_packed(place);
    u128 state = slot ? state_in(*slot) : 0;
    bool allowed = decide_packed(shelf->shape, limit, &state, now, cost, evidence);
    if (slot) {
        *slot = slot_with(place.print, state);
    } else if (allowed) {
        i64 made = make_room(shelf, place, now, limit);
        if (made < 0)
            return false;
        slots_of(place.region)[made] = slot_with(place.print, state);
    }
    return true;
}

typedef u64 Instant(void);

/* A known key of a shared table, without its guard.  False: not known, or busy; go the long way.
 *
 * The clock is read after the state, so no decision sees a state from its own future.  A refusal swaps the slot with
 * itself: that proves that what was read was not torn.
 */
static inline bool check_shared(Shelf *shelf, Place place, const Limit *limit, Instant *clock, u64 *now, u64 cost,
                                Evidence *evidence) {
    evidence->told = false;
    for (;;) {
        Slot *slot = find_packed(place);
        if (!slot)
            return false;
        Slot seen = read_slot(slot);
        if (print_in(seen) != place.print || is_busy(seen))
            return false;
        if (clock)
            *now = clock();
        u128 state = state_in(seen);
        decide_packed(shelf->shape, limit, &state, *now, cost, evidence);
        if (swap_slot(slot, seen, slot_with(place.print, state)))
            return true;
    }
}

#endif
