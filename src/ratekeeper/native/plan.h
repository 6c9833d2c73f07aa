/* Decide the checks of a plan as one, on private or shared tables: all or nothing.
 *
 * Lock, read every state, read the clock, decide on copies, write, unlock.  Nothing here calls back into the
 * interpreter, so no other Python code runs in between.
 */
#ifndef RATEKEEPER_PLAN_H
#define RATEKEEPER_PLAN_H

#include "shared.h"

#define MOST_PARTS 64

typedef struct {
    KeyTable *key_table;        /* NULL: unlimited, without states */
    const Limit *limits; /* one for each part */
    u64 hash;
    u64 cost;
    u64 lease;     /* of a concurrency limit: its id, or NOBODY */
    u64 lasts;     /* microseconds until it ends; 0: a period */
    u64 now;       /* the instant of its decision: on the clock that its limits follow */
    Place place;
    i64 slot;      /* -1: the key is not there */
    u64 *old;      /* the record as it is */
    u64 *new;      /* the record as it will be */
    u64 pending;   /* units that earlier checks of this plan add to the same logs */
    u64 fits;      /* a bit for each part */
    int evidence;  /* where that of its first part is */
    int twin;      /* an earlier check of the same key, or -1 */
    bool last;     /* no later check of the same key */
    bool debit;    /* take all of the cost, though less is left */
    bool allowed;
} Item;

/* From what an answer is worked out when it is read.  Logs and sliced windows answer at once: their states are too long
 * to be copied, and change.
 */
typedef struct {
    bool answered; /* `word` is remaining, retry_after and reset_after; else it is the state */
    bool allowed;
    u64 word[3];
} Evidence;

static inline const Shape *shape_in(const Item *item) { return item->key_table->shape; }

/* All processes lock guards in one order, so two plans never wait for each other. */
static inline bool comes_before(const Item *a, const Item *b) {
    if (a->key_table->identity != b->key_table->identity)
        return a->key_table->identity < b->key_table->identity;
    return (uintptr_t)a->place.region < (uintptr_t)b->place.region;
}

/* The interpreter's lock is enough for private tables. */
static inline bool is_locked(const Region *region) {
#ifdef RATEKEEPER_LOCKED
    return (void)region, true;
#else
    return region->guard;
#endif
}

#define BRIEFLY 1000 /* microseconds that a plan waits for a guard while it owns others */

static inline void unlock_all(Item **order, int regions) {
    while (regions-- > 0) {
        Region *region = order[regions]->place.region;
        if (region->guard)
            unlock_guard(region);
        else
            spin_unlock(&region->lock);
    }
}

/* Returns how many regions were locked: all of them, or none and an error, with the guard's item first in `order`.
 * `order` is scratch memory: a pointer for each item.
 */
static inline int lock_all(Item *items, int count, Item **order, int *error) {
    int regions = 0;
    *error = 0;
    for (int index = 0; index < count; index++) {
        Item *item = items + index;
        if (!item->key_table)
            continue;
        item->place.region = region_of(item->key_table, item->hash);
        if (!is_locked(item->place.region))
            continue;
        int at = regions;
        bool known = false;
        for (int other = 0; other < regions && !known; other++)
            known = order[other]->place.region == item->place.region;
        if (known)
            continue;
        for (; at > 0 && comes_before(item, order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = item;
        regions++;
    }
    for (int index = 0; index < regions; index++) {
        Region *region = order[index]->place.region;
        if (!region->guard) {
            spin_lock(&region->lock);
            continue;
        }
        Item *owner = order[index];
        *error = lock_guard_within(shape_in(owner), region, index ? BRIEFLY : GUARD_MICROS);
        if (!*error)
            continue;
        unlock_all(order, index);
        if (*error == ETIMEDOUT && index) { /* a long wait, without the others: else it would spread to them */
            *error = lock_guard(shape_in(owner), region);
            if (!*error) {
                unlock_guard(region);
                index = -1; /* all again, in their order */
                continue;
            }
        }
        order[0] = owner; /* whose guard it is */
        return 0;
    }
    return regions;
}

static inline void read_item(Item *items, int index) {
    Item *item = items + index;
    item->twin = -1;
    item->last = true;
    item->slot = -1;
    item->pending = 0;
    item->debit = false;
    if (!item->key_table)
        return;
    const Shape *shape = shape_in(item);
    item->place = place_of(item->key_table, item->hash);
    for (int other = index - 1; other >= 0 && item->twin < 0; other--)
        if (items[other].key_table == item->key_table && items[other].hash == item->hash)
            item->twin = other;
    if (item->twin >= 0) {
        items[item->twin].last = false;
        item->slot = items[item->twin].slot;
        return;
    }
    item->slot = find(shape, item->place);
    if (item->slot < 0) {
        memset(item->old, 0, shape->words * sizeof(u64));
    } else if (shape->packed && item->place.region->guard) {
        unpack(shape, state_in(make_busy(slots_of(item->place.region) + item->slot)), item->old);
    } else {
        read_record(shape, item->place.region, (size_t)item->slot, item->old);
    }
}

static inline Log item_log(const Item *item, const Part *part, u64 *words) {
    if (!part->ring)
        return log_view(part, words + part->offset);
    if (item->slot < 0)
        return (Log){(u64 *)&NOTHING_LOGGED, NULL, 0, NULL};
    return log_view(part, record_at(shape_in(item), item->place.region, (size_t)item->slot) + part->offset);
}

static inline bool decide_part(const Item *item, const Part *part, const Limit *limit, u64 *words, u64 now) {
    u128 state;
    bool fits;
    switch (limit->algorithm) { /* not the part's: the three buckets may share a table */
    case FIXED_WINDOW: return window_decide(words, now, limit, item->cost);
    case SLIDING_WINDOW: return sliding_window_decide(words, now, limit, item->cost);
    case SLIDING_LOG: {
        Log log = item_log(item, part, words - part->offset);
        u64 others = sliding_log_used(&log, now, limit);
        if (limit->leases)
            others -= concurrency_places(&log, now, item->lease);
        return others + item->pending + item->cost <= limit->count;
    }
    case UNLIMITED: return true;
    default:
        state = joined(words);
        fits = limit->algorithm == GCRA           ? gcra_decide(&state, now, limit, item->cost)
               : limit->algorithm == TOKEN_BUCKET ? token_bucket_decide(&state, now, limit, item->cost)
                                                  : leaky_bucket_decide(&state, now, limit, item->cost);
        split(state, words);
        return fits;
    }
}

/* Twin of several.py's decide: if one part does not fit, the parts that do stay as they were. */
static inline void decide_item(Item *items, int index, u64 now) {
    Item *item = items + index;
    item->allowed = true;
    if (!item->key_table)
        return;
    const Shape *shape = shape_in(item);
    if (item->twin >= 0) {
        Item *twin = items + item->twin;
        copy_words(item->old, twin->new, shape->words);
        item->pending = twin->pending + (twin->allowed ? twin->cost : 0);
    }
    copy_words(item->new, item->old, shape->words);
    item->fits = 0;
    for (uint32_t each = 0; each < shape->parts; each++) {
        const Part *part = shape->part + each;
        if (decide_part(item, part, item->limits + each, item->new + part->offset, now))
            item->fits |= (u64)1 << each;
        else
            item->allowed = false;
    }
    if (!item->allowed)
        for (uint32_t each = 0; each < shape->parts; each++) {
            const Part *part = shape->part + each;
            if (item->fits >> each & 1 && !part->ring)
                copy_words(item->new + part->offset, item->old + part->offset, part->words);
        }
}

/* A window of several slices has too many counters to copy, so its answers are worked out now. */
static inline void window_evidence(const u64 *words, u64 now, const Limit *limit, u64 cost, Evidence *evidence) {
    evidence->answered = limit->slices > 1;
    if (!evidence->answered) {
        copy_words(evidence->word, words, 3);
        return;
    }
    evidence->word[0] = sliding_window_remaining(words, now, limit);
    evidence->word[1] = evidence->allowed ? 0 : (u64)sliding_window_retry_after(words, now, limit, cost);
    evidence->word[2] = sliding_window_reset_after(words, now, limit);
}

static inline void keep_evidence(const Item *item, uint32_t each, u64 *record, u64 now, u64 cost, u64 pending,
                                bool allowed, Evidence *evidence) {
    const Part *part = shape_in(item)->part + each;
    const Limit *limit = item->limits + each;
    u64 *words = record + part->offset;
    *evidence = (Evidence){false, allowed, {0, 0, 0}};
    if (part->algorithm == SLIDING_LOG) {
        Log log = item_log(item, part, record);
        evidence->answered = true;
        evidence->word[0] = sliding_log_remaining(&log, now, limit, pending);
        evidence->word[1] = (u64)(allowed ? 0 : sliding_log_retry_after(&log, now, limit, cost, pending));
        evidence->word[2] = sliding_log_reset_after(&log, now, limit, pending);
    } else if (part->algorithm == SLIDING_WINDOW) {
        window_evidence(words, now, limit, cost, evidence);
    } else {
        copy_words(evidence->word, words, part->words);
    }
}

/* Microseconds until a refused part would fit; NEVER if time does not help. */
static inline i64 retry_from(const Evidence *evidence, const Limit *limit, u64 now, u64 cost) {
    if (evidence->allowed)
        return 0;
    if (evidence->answered)
        return (i64)evidence->word[1];
    switch (limit->algorithm) {
    case FIXED_WINDOW: return window_retry_after(evidence->word, now, limit, cost);
    case SLIDING_WINDOW: return sliding_window_retry_after(evidence->word, now, limit, cost);
    default: return gcra_retry_after(joined(evidence->word), now, limit, cost);
    }
}

/* Add `cost` units to the logs of an item; a part that was refused is only repaired. */
static inline void write_logs(Item *item, u64 now, u64 cost) {
    const Shape *shape = shape_in(item);
    for (uint32_t each = 0; each < shape->parts; each++) {
        const Part *part = shape->part + each;
        if (part->algorithm != SLIDING_LOG || (!cost && item->fits >> each & 1))
            continue;
        Log log = item_log(item, part, item->new);
        if (!cost && !log_length(&log))
            continue;
        const Limit *limit = item->limits + each;
        sliding_log_mend(&log, now, limit);
        if (item->debit)
            sliding_log_debit(&log, now, limit, cost);
        else if (cost && limit->leases)
            concurrency_hold(&log, now, limit, cost, item->lease, item->lasts);
        else if (cost)
            sliding_log_append(&log, now, limit, cost);
    }
}

/* Write the address of a block that moved at once: a slot must never point to freed memory. */
static inline bool reserve_logs(Item *item, u64 now) {
    const Shape *shape = shape_in(item);
    for (uint32_t each = 0; each < shape->parts; each++) {
        const Part *part = shape->part + each;
        if (part->algorithm != SLIDING_LOG || part->ring)
            continue;
        u64 *words = item->new + part->offset;
        u64 units = item->pending + item->cost;
        if (item->debit) { /* what no longer fits displaces the oldest */
            Log log = item_log(item, part, item->new);
            u64 used = sliding_log_used(&log, now, item->limits + each), count = item->limits[each].count;
            units = least(sliding_log_debit_units(&log, now, item->limits + each, item->cost), used < count ? count - used : 0);
        }
        if (!reserve(item->key_table, words, now, item->limits + each, units)) {
            if (item->slot < 0)
                free_blocks(item->key_table, item->new);
            return false;
        }
        if (item->slot >= 0 && shape->packed)
            slots_of(item->place.region)[item->slot] = slot_with(item->place.print, words[0]);
        else if (item->slot >= 0)
            record_at(shape, item->place.region, (size_t)item->slot)[part->offset] = words[0];
    }
    return true;
}

/* Whether the record changed outside of its logs. */
static inline bool differs(const Item *item) {
    const Shape *shape = shape_in(item);
    for (uint32_t each = 0; each < shape->parts; each++) {
        const Part *part = shape->part + each;
        if (part->algorithm != SLIDING_LOG &&
            memcmp(item->new + part->offset, item->old + part->offset, part->words * sizeof(u64)))
            return true;
    }
    return false;
}

/* Write the decision about one key; its logs take `cost` units.  False only if out of memory. */
static inline bool write_item(Item *item, u64 now, u64 cost) {
    const Shape *shape = shape_in(item);
    Region *region = item->place.region;
    count_change(item->key_table);
    if (!shape->shared) {
        if (item->slot < 0) {
            item->slot = make_room(item->key_table, place_in(region, item->place.print), now, item->limits);
            if (item->slot < 0)
                return false;
        }
        write_logs(item, now, cost);
        write_record(shape, region, (size_t)item->slot, item->place.print, item->new);
        return true;
    }
    if (item->slot >= 0) {
        put_shared(shape, region, (size_t)item->slot, item->place.print, item->new);
        write_logs(item, now, cost);
        return true;
    }
    item->slot = (i64)enter_shared(shape, item->place, item->new, now, item->limits);
    write_logs(item, now, cost);
    if (!shape->packed) {
        in_order();
        marks_of(region)[item->slot] = item->place.print;
    }
    return true;
}

/* Remove the busy mark of a slot that stays as it was. */
static inline void leave_item(Item *item) {
    if (item->key_table && item->twin < 0 && item->slot >= 0 && shape_in(item)->packed && item->place.region->guard) {
        Slot *slot = slots_of(item->place.region) + item->slot, seen = read_slot(slot);
        if (is_busy(seen))
            make_idle(slot, (Slot){seen.high & ~BUSY, seen.low});
    }
}

static inline void leave_all(Item *items, int count) {
    for (int index = 0; index < count; index++)
        leave_item(items + index);
}

/* Decide items that were read.  `evidence` has a place for each part of each item.  False only if out of memory. */
static inline bool check_all(Item *items, int count, bool peek, Evidence *evidence) {
    bool all = true, done = true;
    for (int index = 0; index < count; index++) {
        decide_item(items, index, items[index].now);
        all = all && items[index].allowed;
    }
    bool takes = all && !peek;
    Evidence *first = evidence;
    for (int index = 0; index < count; index++) {
        Item *item = items + index;
        item->evidence = (int)(evidence - first);
        if (!item->key_table)
            continue;
        u64 pending = item->pending + (takes ? item->cost : 0);
        u64 cost = takes || !item->allowed ? item->cost : 0;
        u64 *record = takes ? item->new : item->old;
        for (uint32_t each = 0; each < shape_in(item)->parts; each++) {
            bool allowed = item->allowed || (item->fits >> each & 1);
            keep_evidence(item, each, record, item->now, cost, pending, allowed, evidence++);
        }
    }
    for (int index = 0; takes && index < count; index++)
        if (items[index].key_table && items[index].last)
            done = done && reserve_logs(items + index, items[index].now);
    if (takes && done) {
        for (int fresh = 0; fresh < 2; fresh++) /* new keys last: in a full table they may evict one of the others */
            for (int index = 0; index < count; index++) {
                Item *item = items + index;
                if (item->key_table && item->last && (item->slot < 0) == fresh)
                    done = write_item(item, item->now, item->pending + item->cost) && done;
            }
    } else if (!peek && done) { /* a refusal writes only repairs: of a state from the future, or above a lowered limit */
        for (int index = 0; index < count; index++) {
            Item *item = items + index;
            if (!item->key_table || item->allowed || item->twin >= 0 || item->slot < 0)
                continue;
            if (differs(item))
                done = write_item(item, item->now, 0) && done;
            else
                write_logs(item, item->now, 0);
        }
    }
    for (int index = 0; takes && done && index < count; index++) {
        Item *item = items + index;
        if (item->key_table && item->lease != NOBODY) /* known now: the lease may have had places before */
            keep_evidence(item, 0, item->new, item->now, item->cost, 0, true, first + item->evidence);
    }
    leave_all(items, count);
    return done;
}

enum change { TAKE, DEBIT, REFUND, RESET, RENEW, GIVE_BACK };

static inline void refund_part(const Item *item, const Part *part, const Limit *limit, u64 *words, u64 now, i64 at) {
    switch (part->algorithm) {
    case FIXED_WINDOW: window_refund(words, now, limit, item->cost, at); break;
    case SLIDING_WINDOW: sliding_window_refund(words, now, limit, item->cost, at); break;
    case SLIDING_LOG: {
        Log log = item_log(item, part, words - part->offset);
        if (log_length(&log) && limit->leases)
            concurrency_refund(&log, limit, item->cost, at);
        else if (log_length(&log))
            sliding_log_refund(&log, now, item->cost, at);
        break;
    }
    case UNLIMITED: break;
    default: split(gcra_refund(joined(words), now, limit, item->cost), words);
    }
}

static inline void debit_part(const Item *item, const Part *part, const Limit *limit, u64 *words, u64 now) {
    switch (part->algorithm) {
    case FIXED_WINDOW: window_debit(words, now, limit, item->cost); break;
    case SLIDING_WINDOW: sliding_window_debit(words, now, limit, item->cost); break;
    case SLIDING_LOG: /* written at the end */
    case UNLIMITED: break;
    default: split(gcra_debit(joined(words), now, limit, item->cost), words);
    }
}

/* Take, refund or reset the state of one item that was read.  False only if out of memory. */
static inline bool change_item(Item *item, enum change change, i64 at, Evidence *evidence) {
    u64 now = item->now;
    const Shape *shape = shape_in(item);
    bool done = true;
    u64 taken = 0;
    copy_words(item->new, item->old, shape->words);
    if (change == DEBIT && item->limits->leases)
        change = TAKE;
    if (change == DEBIT) {
        item->debit = true;
        taken = item->cost;
        for (uint32_t each = 0; each < shape->parts; each++)
            debit_part(item, shape->part + each, item->limits + each, item->new + shape->part[each].offset, now);
    } else if (change == TAKE) {
        u64 there = item->cost;
        item->lease = NOBODY;
        item->lasts = 0;
        for (uint32_t each = 0; each < shape->parts; each++) {
            const Part *part = shape->part + each;
            if (part->algorithm == SLIDING_LOG) {
                Log log = item_log(item, part, item->old);
                there = least(there, sliding_log_remaining(&log, now, item->limits + each, 0));
            } else {
                there = least(there, part_remaining(part, item->old + part->offset, now, item->limits + each, 0));
            }
        }
        item->cost = taken = there;
        if (there)
            decide_item(item, 0, now);
    } else if (change == RENEW) {
        decide_item(item, 0, now);
        Log log = item_log(item, shape->part, item->new);
        if (item->allowed)
            taken = item->cost;
        else if (log_length(&log))
            sliding_log_mend(&log, now, item->limits);
    } else if (change == GIVE_BACK) {
        Log log = item_log(item, shape->part, item->new);
        if (log_length(&log))
            concurrency_give_back(&log, item->cost, item->lease);
    } else {
        for (uint32_t each = 0; each < shape->parts; each++) {
            const Part *part = shape->part + each;
            u64 *words = item->new + part->offset;
            if (change == REFUND) {
                refund_part(item, part, item->limits + each, words, now, at);
            } else if (part->algorithm != SLIDING_LOG) {
                memset(words, 0, part->words * sizeof(u64));
            } else {
                Log log = item_log(item, part, item->new);
                if (log_length(&log))
                    log_publish(&log, 0, 0);
            }
        }
    }
    if (change != RENEW)
        item->allowed = true;
    for (uint32_t each = 0; each < shape->parts; each++) {
        u64 pending = taken;
        if (item->debit && shape->part[each].algorithm == SLIDING_LOG) {
            Log log = item_log(item, shape->part + each, item->new);
            pending = sliding_log_debit_units(&log, now, item->limits + each, item->cost);
        }
        keep_evidence(item, each, item->new, now, change == RENEW ? item->cost : 0, pending, item->allowed, evidence + each);
    }
    item->fits = ~(u64)0;
    if (taken)
        done = reserve_logs(item, now);
    if (done && (taken || differs(item)))
        done = write_item(item, now, taken);
    if (done && change == RENEW && taken) /* the lease may have had places before */
        keep_evidence(item, 0, item->new, now, item->cost, 0, true, evidence);
    leave_item(item);
    return done;
}

#endif
