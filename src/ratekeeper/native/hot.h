/* One check of one limit on one key: the path that nearly every decision takes. */
#ifndef RATEKEEPER_HOT_H
#define RATEKEEPER_HOT_H

#include <time.h>

#include "plan.h"

/* Microseconds: of the time of day since 1970, or of the machine's monotonic clock, which never steps. */
static inline u64 machine_clock(bool wall) {
    struct timespec now;
    clock_gettime(wall ? CLOCK_REALTIME : CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

/* Decide on a packed state; `evidence` gets the state unpacked. */
static inline bool decide_packed(const Shape *shape, const Limit *limit, u128 *state, u64 now, u64 cost,
                                 Evidence *evidence) {
    u64 *words = evidence->word;
    switch (limit->algorithm) {
    case FIXED_WINDOW:
        unpack(shape, *state, words);
        evidence->allowed = window_decide(words, now, limit, cost);
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

/* The log of a private table: its slot holds the address of a block.  What was found once is not searched for again. */
static inline bool check_log(KeyTable *key_table, Place place, const Limit *limit, u64 now, u64 cost, Evidence *evidence) {
    const Part *part = key_table->shape->part;
    Slot *slot = find_packed(place);
    u64 words[1] = {slot ? slot->low : 0};
    Log log = log_view(part, words);
    u64 length = log_length(&log), gone = sliding_log_gone(&log, now, limit), used = length - gone;
    evidence->answered = true;
    evidence->allowed = used + cost <= limit->count;
    sliding_log_mend(&log, now, limit);
    if (!evidence->allowed) {
        evidence->word[0] = used < limit->count ? limit->count - used : 0;
        evidence->word[1] = (u64)sliding_log_wait(&log, now, limit, cost, used, 0);
        evidence->word[2] = used ? *log_at(&log, length - 1) + limit->window - now : 0;
        return true;
    }
    if (used + cost > log.room) {
        if (!reserve(key_table, words, now, limit, cost))
            return false;
        gone = 0; /* the larger block has only instants that still count */
        if (slot) {
            slot->low = words[0];
        } else {
            i64 made = make_room(key_table, place, now, limit);
            if (made < 0) {
                free_blocks(key_table, words);
                return false;
            }
            slots_of(place.region)[made] = slot_with(place.print, words[0]);
        }
        log = log_view(part, words);
    }
    evidence->word[0] = limit->count - used - cost;
    evidence->word[1] = 0;
    evidence->word[2] = sliding_log_enter(&log, now, limit, gone, cost) + limit->window - now;
    return true;
}

/* A window that needs a wide slot is decided in place.  False only if out of memory. */
static inline bool check_wide(KeyTable *key_table, Place place, const Limit *limit, u64 now, u64 cost, Evidence *evidence) {
    const Shape *shape = key_table->shape;
    u64 fresh[2 + MOST_SLICES], *record = fresh;
    i64 slot = find(shape, place);
    count_change(key_table);
    if (slot >= 0)
        record = record_at(shape, place.region, (size_t)slot);
    else
        memset(fresh, 0, shape->words * sizeof(u64));
    if (limit->algorithm == SLIDING_WINDOW) {
        evidence->allowed = sliding_window_decide(record, now, limit, cost);
        window_evidence(record, now, limit, cost, evidence);
    } else {
        evidence->allowed = window_decide(record, now, limit, cost);
        copy_words(evidence->word, record, 2);
    }
    if (slot < 0 && evidence->allowed) {
        slot = make_room(key_table, place, now, limit);
        if (slot < 0)
            return false;
        write_record(shape, place.region, (size_t)slot, place.print, fresh);
    }
    return true;
}

/* The caller has locked the region.  False only if out of memory. */
static inline bool check_private(KeyTable *key_table, Place place, const Limit *limit, u64 now, u64 cost, Evidence *evidence) {
    evidence->answered = false;
    count_change(key_table);
    if (limit->algorithm == SLIDING_LOG)
        return check_log(key_table, place, limit, now, cost, evidence);
    if (!key_table->shape->packed)
        return check_wide(key_table, place, limit, now, cost, evidence);
    Slot *slot = find_packed(place);
    u128 state = slot ? state_in(*slot) : 0;
    bool allowed = decide_packed(key_table->shape, limit, &state, now, cost, evidence);
    if (slot) {
        *slot = slot_with(place.print, state);
    } else if (allowed) {
        i64 made = make_room(key_table, place, now, limit);
        if (made < 0)
            return false;
        slots_of(place.region)[made] = slot_with(place.print, state);
    }
    return true;
}

/* A key of a shared table, without its guard.  False: the key is new, or busy; take the slow path.
 *
 * The clock is read after the state, so no decision sees a state from its own future.  A refusal swaps the slot with
 * itself, which proves that both halves of what was read belong together.
 */
static inline bool check_shared(KeyTable *key_table, Place place, const Limit *limit, bool by_machine, u64 *now, u64 cost,
                                Evidence *evidence) {
    evidence->answered = false;
    for (;;) {
        Slot *slot = find_packed(place);
        if (!slot)
            return false;
        Slot seen = read_slot(slot);
        if (print_in(seen) != place.print || is_busy(seen))
            return false;
        if (by_machine)
            *now = machine_clock(limit->wall);
        u128 state = state_in(seen);
        decide_packed(key_table->shape, limit, &state, *now, cost, evidence);
        if (swap_slot(slot, seen, slot_with(place.print, state)))
            return true;
    }
}

/* Decide a limit whose state is packed elsewhere, but wide on a machine without such swaps. */
static __attribute__((noinline)) void decide_guarded(KeyTable *key_table, const Place *place, size_t slot, const Limit *limit,
                                                     u64 now, u64 cost, u64 *words, Evidence *evidence) {
    const Shape *shape = key_table->shape;
    Item item = {.key_table = key_table, .limits = limit, .cost = cost, .place = *place, .slot = (i64)slot};
    bool allowed = decide_part(&item, shape->part, limit, words, now);
    put_shared(shape, place->region, slot, place->print, words);
    keep_evidence(&item, 0, words, now, cost, 0, allowed, evidence);
}

/* A key of a shared table with wide slots and one limit, under its guard.  False: take the slow path. */
static inline bool check_guarded(KeyTable *key_table, const Place *place, const Limit *limit, bool by_machine, u64 *now, u64 cost,
                                 Evidence *evidence) {
    const Shape *shape = key_table->shape;
    Region *region = place->region;
    if (lock_guard(shape, region))
        return false;
    i64 slot = find(shape, *place);
    if (slot >= 0) {
        u64 words[2 + MOST_SLICES], *record = record_at(shape, region, (size_t)slot);
        if (by_machine)
            *now = machine_clock(limit->wall);
        if (shape->part->ring) {
            Log log = log_view(shape->part, record);
            u64 length = log_length(&log), gone = sliding_log_gone(&log, *now, limit);
            u64 used = length - gone;
            bool allowed = used + cost <= limit->count;
            sliding_log_mend(&log, *now, limit);
            *evidence = (Evidence){true, allowed, {0, 0, 0}};
            evidence->word[0] = used + (allowed ? cost : 0) < limit->count ? limit->count - used - (allowed ? cost : 0) : 0;
            if (allowed) {
                evidence->word[2] = sliding_log_enter(&log, *now, limit, gone, cost) + limit->window - *now;
            } else {
                evidence->word[1] = (u64)sliding_log_wait(&log, *now, limit, cost, used, 0);
                evidence->word[2] = used ? *log_at(&log, length - 1) + limit->window - *now : 0;
            }
        } else if (limit->algorithm == SLIDING_WINDOW) {
            copy_words(words, record, shape->words);
            evidence->allowed = sliding_window_decide(words, *now, limit, cost);
            put_shared(shape, region, (size_t)slot, place->print, words);
            window_evidence(words, *now, limit, cost, evidence);
        } else {
            copy_words(words, record, shape->words);
            decide_guarded(key_table, place, (size_t)slot, limit, *now, cost, words, evidence);
        }
    }
    unlock_guard(region);
    return slot >= 0;
}

#endif
