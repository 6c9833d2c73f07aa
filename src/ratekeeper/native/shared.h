/* States in memory that processes share.  guard.h says why a killed process does no harm. */
#ifndef RATEKEEPER_SHARED_H
#define RATEKEEPER_SHARED_H

#include "table.h"

#define LINE 64
#define IN_WHOLE_LINES(bytes) (((bytes) + LINE - 1) / LINE * LINE)

/* The words of a record outside its rings: those that an interrupted write could leave half done. */
static inline uint32_t plain_words(const Shape *shape) {
    uint32_t words = 0;
    for (uint32_t index = 0; index < shape->parts; index++)
        words += shape->part[index].ring ? 0 : shape->part[index].words;
    return words;
}

static inline size_t guard_bytes(const Shape *shape) {
    return IN_WHOLE_LINES(sizeof(Guard) + (shape->packed ? 0 : plain_words(shape) * sizeof(u64)));
}

static inline size_t region_bytes(const Shape *shape, uint32_t buckets) {
    return guard_bytes(shape) + IN_WHOLE_LINES((size_t)buckets * BUCKET * slot_bytes(shape));
}

static inline size_t shared_bytes(const Shape *shape, uint32_t regions, uint32_t buckets) {
    return region_bytes(shape, buckets) * regions;
}

/* Make the guards of a new table, before other processes see it; its memory is all zeros. */
static inline bool make_shared(const Shape *shape, void *memory, uint32_t regions, uint32_t buckets) {
    for (uint32_t index = 0; index < regions; index++)
        if (!make_guard((Guard *)((char *)memory + index * region_bytes(shape, buckets))))
            return false;
    return true;
}

/* The first region whose guard is damaged, or -1. */
static inline i64 damaged_region(const KeyTable *key_table) {
    for (uint32_t index = 0; index < key_table->regions; index++)
        if (!is_sound(key_table->region[index].guard))
            return index;
    return -1;
}

static inline KeyTable *shared_key_table(Shape *shape, void *memory, uint32_t regions, uint32_t buckets, const u64 seed[2],
                                  u64 identity) {
    KeyTable *key_table = calloc(1, sizeof(KeyTable));
    Region *region = new_regions(regions);
    if (!key_table || !region) {
        free(key_table);
        drop_regions(region, regions);
        return NULL;
    }
    for (uint32_t index = 0; index < regions; index++) {
        char *start = (char *)memory + index * region_bytes(shape, buckets);
        region[index] = (Region){start + guard_bytes(shape), buckets, 0, (Guard *)start};
    }
    key_table->shape = shape;
    memcpy(key_table->seed, seed, sizeof(key_table->seed));
    key_table->identity = identity;
    key_table->regions = regions;
    key_table->most_buckets = buckets;
    key_table->region = region;
    return key_table;
}

/* The compiler must not move a write across this one: a killed process leaves its writes in their order. */
static inline void in_order(void) { __atomic_signal_fence(__ATOMIC_SEQ_CST); __atomic_thread_fence(__ATOMIC_RELEASE); }

static inline void copy_plain(const Shape *shape, u64 *to, const u64 *record, bool back) {
    for (uint32_t index = 0; index < shape->parts; index++) {
        const Part *part = shape->part + index;
        if (part->ring)
            continue;
        if (back)
            copy_words((u64 *)record + part->offset, to, part->words);
        else
            copy_words(to, record + part->offset, part->words);
        to += part->words;
    }
}

/* The owner of the guard died: restore the record that it was writing, and remove its marks. */
static inline void recover(const Shape *shape, Region *region) {
    Guard *guard = region->guard;
    if (guard->noted && guard->slot < (u64)region->buckets * BUCKET) {
        copy_plain(shape, guard->before, record_at(shape, region, guard->slot), true);
        in_order();
    }
    guard->noted = 0;
    if (shape->packed)
        for (size_t index = 0; index < (size_t)region->buckets * BUCKET; index++) {
            Slot *slot = slots_of(region) + index, seen = read_slot(slot);
            while (is_busy(seen) && !swap_slot(slot, seen, (Slot){seen.high & ~BUSY, seen.low}))
                seen = read_slot(slot);
        }
}

/* Waits up to `micros` for an owner.  Returns 0, or an error: ETIMEDOUT if the guard stays owned, another if damaged. */
static inline int lock_guard_within(const Shape *shape, Region *region, u64 micros) {
    if (!has_right_kind(region->guard))
        return ENOTRECOVERABLE;
    int error = pthread_mutex_trylock(&region->guard->mutex);
    if (error == EBUSY)
        error = wait_for_guard(region->guard, &region->vain, micros);
    else if (region->vain)
        __atomic_store_n(&region->vain, 0, __ATOMIC_RELAXED);
    if (error == OWNER_DIED) {
        recover(shape, region);
        error = make_consistent(region->guard);
    }
    return error;
}

static inline int lock_guard(const Shape *shape, Region *region) { return lock_guard_within(shape, region, GUARD_MICROS); }

static inline void unlock_guard(Region *region) {
    if (has_right_kind(region->guard))
        pthread_mutex_unlock(&region->guard->mutex);
    else
        forget_owned();
}

/* Mark a slot busy and return its value; then only the caller, who owns the guard, changes it. */
static inline Slot make_busy(Slot *slot) {
    Slot seen = read_slot(slot);
    while (!swap_slot(slot, seen, (Slot){seen.high | BUSY, seen.low}))
        seen = read_slot(slot);
    return (Slot){seen.high & ~BUSY, seen.low};
}

static inline void make_idle(Slot *slot, Slot new) {
    Slot seen = read_slot(slot);
    while (!swap_slot(slot, seen, new))
        seen = read_slot(slot);
}

static inline void put_shared(const Shape *shape, Region *region, size_t slot, u64 print, const u64 *words) {
    if (shape->packed) {
        make_idle(slots_of(region) + slot, slot_with(print, pack(shape, words)));
        return;
    }
    Guard *guard = region->guard;
    u64 *record = record_at(shape, region, slot);
    uint32_t changed = 0, word = 0;
    for (uint32_t index = 0; index < shape->parts; index++) {
        const Part *part = shape->part + index;
        for (uint32_t at = part->offset; !part->ring && at < part->offset + part->words; at++)
            if (words[at] != record[at]) {
                changed++;
                word = at;
            }
    }
    if (changed <= 1) { /* one write: complete or absent, whenever its process dies */
        if (changed)
            __atomic_store_n(record + word, words[word], __ATOMIC_RELAXED);
        return;
    }
    copy_plain(shape, guard->before, record, false);
    guard->slot = slot;
    in_order();
    guard->noted = 1;
    in_order();
    for (uint32_t index = 0; index < shape->parts; index++) {
        const Part *part = shape->part + index;
        if (!part->ring)
            copy_words(record + part->offset, words + part->offset, part->words);
    }
    in_order();
    guard->noted = 0;
}

/* Add a new key.  The slot is emptied before it is the new key's: it is never half of each. */
static inline size_t enter_shared(const Shape *shape, Place place, const u64 *words, u64 now, const Limit *limits) {
    for (;;) {
        u128 owed;
        size_t slot = choose(shape, place, now, limits, &owed);
        if (shape->packed) {
            Slot *there = slots_of(place.region) + slot, seen = read_slot(there);
            u64 plain[3];
            unpack(shape, state_in(seen), plain);
            if ((!print_in(seen) || part_debt(shape->part, plain, now, limits) <= owed) &&
                swap_slot(there, seen, slot_with(place.print, pack(shape, words))))
                return slot;
            continue; /* the slot changed meanwhile: choose again */
        }
        marks_of(place.region)[slot] = 0;
        in_order();
        u64 *record = record_at(shape, place.region, slot);
        for (uint32_t index = 0; index < shape->parts; index++) {
            const Part *part = shape->part + index;
            if (part->ring)
                record[part->offset] = 0;
            else
                copy_words(record + part->offset, words + part->offset, part->words);
        }
        in_order();
        return slot; /* the caller writes the mark once the logs are filled */
    }
}

#endif
