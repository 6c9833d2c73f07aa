/* The record of a key in its slot: one part for each of its limits.
 *
 * A record unpacked is a row of words, part after part: a bucket's ticks (low, high), a window's index and count, a
 * sliding window's index and counters, and for a log either the address of its block (private) or its head and
 * ring (shared).  Most records of one part are packed into the 79 bits that a 16-byte slot has for them.
 */
#ifndef RATEKEEPER_RECORD_H
#define RATEKEEPER_RECORD_H

#include <stdlib.h>

#include "../algorithms/gcra.h"
#include "../algorithms/leaky_bucket.h"
#include "../algorithms/concurrency.h"
#include "../algorithms/sliding_log.h"
#include "../algorithms/sliding_window.h"
#include "../algorithms/token_bucket.h"
#include "windows.h"

#define STATE_BITS 79
#define COUNT_BITS 40 /* of MOST_COUNT */

typedef struct {
    enum algorithm algorithm;
    uint32_t offset; /* of its words in the record */
    uint32_t words;
    uint32_t ring;   /* capacity of a shared log; 0: the log is in a block of its own */
    bool leases;     /* the log has ids, in as many words after its ring */
} Part;

typedef struct {
    bool shared;
    bool packed;          /* one part, in a 16-byte slot */
    uint32_t digit;       /* bits of a counter in a packed window */
    uint32_t parts;
    uint32_t words;       /* of a whole record */
    uint32_t first_ring;  /* capacity of the first block of a log, as few keys ever need all */
    Part part[];
} Shape;

/* The block of a log: its capacity, where the instants start and how many there are, then the ring. */
typedef struct {
    u64 head;
    u64 room;
    u64 ring[];
} Block;

static inline uint32_t bits_of(u64 value) {
    return value ? 64 - (uint32_t)__builtin_clzll(value) : 0;
}

/* The bits of a counter if a packed slot can hold this limit's window; 0 if not. */
static inline uint32_t digit_bits(const Limit *limit) {
    uint32_t index = bits_of((MOST_NOW - 1) * limit->slices / limit->micros);
    if (limit->starts == BY_CALENDAR)
        return COUNT_BITS; /* there are fewer than 2^17 days */
    if (limit->starts == BY_FIRST_USE) {
        uint32_t left = STATE_BITS - bits_of(MOST_NOW - 1);
        return bits_of(least(2 * limit->count, MOST_OWED)) <= left ? left : 0;
    }
    if (limit->algorithm == FIXED_WINDOW) /* always fits, as its period bounds the count, and limit.py what it owes */
        return (uint32_t)least(STATE_BITS - index, COUNT_BITS);
    uint32_t digit = (uint32_t)least((STATE_BITS - index) / 2, COUNT_BITS);
    return limit->slices == 1 && bits_of(least(2 * limit->count, MOST_OWED)) <= digit ? digit : 0;
}

static inline uint32_t part_words(const Limit *limit, bool shared) {
    switch (limit->algorithm) {
    case SLIDING_LOG: return shared ? 1 + (uint32_t)limit->count * (limit->leases ? 2 : 1) : 1;
    case SLIDING_WINDOW: return 2 + (uint32_t)limit->slices;
    case UNLIMITED: return 0;
    default: return 2;
    }
}

/* `may_pack`: whether 16 bytes can be swapped atomically, which a shared table needs. */
static inline Shape *shape_of(const Limit *limits, uint32_t parts, bool shared, bool may_pack) {
    Shape *shape = calloc(1, sizeof(Shape) + parts * sizeof(Part));
    if (!shape)
        return NULL;
    shape->shared = shared;
    shape->parts = parts;
    for (uint32_t index = 0; index < parts; index++) {
        const Limit *limit = limits + index;
        Part *part = shape->part + index;
        part->algorithm = limit->algorithm;
        part->offset = shape->words;
        part->words = part_words(limit, shared);
        part->ring = shared && limit->algorithm == SLIDING_LOG ? (uint32_t)limit->count : 0;
        part->leases = limit->leases;
        shape->words += part->words;
    }
    for (uint32_t index = 0; index < parts; index++)
        if (limits[index].algorithm == SLIDING_LOG) /* few keys of a long log ever fill it */
            shape->first_ring = limits[index].count <= 8 ? (uint32_t)limits[index].count : 4;
    if (parts == 1 && may_pack) {
        bool window = limits->algorithm == FIXED_WINDOW || limits->algorithm == SLIDING_WINDOW;
        if (window)
            shape->digit = digit_bits(limits);
        shape->packed = window ? shape->digit > 0 : limits->algorithm != SLIDING_LOG || !shared;
    }
    return shape;
}

/* Nearly all records have two or three words: calling memcpy would take longer than copying them. */
static inline void copy_words(u64 *to, const u64 *from, uint32_t count) {
    if (count == 2 || count == 3) {
        u64 first = from[0], second = from[1];
        if (count == 3)
            to[2] = from[2];
        to[0] = first;
        to[1] = second;
    } else {
        memcpy(to, from, count * sizeof(u64));
    }
}

static inline u128 joined(const u64 words[2]) { return (u128)words[1] << 64 | words[0]; }

static inline void split(u128 state, u64 words[2]) {
    words[0] = (u64)state;
    words[1] = (u64)(state >> 64);
}

static inline void unpack(const Shape *shape, u128 state, u64 *words) {
    uint32_t digit = shape->digit;
    switch (shape->part->algorithm) {
    case FIXED_WINDOW:
        words[0] = (u64)(state >> digit);
        words[1] = (u64)state & (((u64)1 << digit) - 1);
        break;
    case SLIDING_WINDOW:
        words[0] = (u64)(state >> 2 * digit);
        words[1] = (u64)state & (((u64)1 << digit) - 1);
        words[2] = (u64)(state >> digit) & (((u64)1 << digit) - 1);
        break;
    case SLIDING_LOG:
        words[0] = (u64)state;
        break;
    default:
        split(state, words);
    }
}

static inline u128 pack(const Shape *shape, const u64 *words) {
    uint32_t digit = shape->digit;
    switch (shape->part->algorithm) {
    case FIXED_WINDOW: return (u128)words[0] << digit | words[1];
    case SLIDING_WINDOW: return ((u128)words[0] << digit | words[2]) << digit | words[1];
    case SLIDING_LOG: return words[0];
    default: return joined(words);
    }
}

/* An empty log of a private table has no block; this view of it is never written. */
static const u64 NOTHING_LOGGED = 0;

static inline Log log_view(const Part *part, u64 *words) {
    if (part->ring) {
        if (*words >> 32 >= part->ring || (uint32_t)*words > part->ring)
            *words = 0; /* the file was damaged: never read or write outside of the ring */
        return (Log){words, words + 1, part->ring, part->leases ? words + 1 + part->ring : NULL};
    }
    Block *block = (Block *)(uintptr_t)words[0];
    if (!block)
        return (Log){(u64 *)&NOTHING_LOGGED, NULL, 0, NULL};
    return (Log){&block->head, block->ring, block->room, part->leases ? block->ring + block->room : NULL};
}

static inline u128 part_debt(const Part *part, u64 *words, u64 now, const Limit *limit) {
    switch (part->algorithm) {
    case FIXED_WINDOW: return window_debt(words, now, limit);
    case SLIDING_WINDOW: return sliding_window_debt(words, now, limit);
    case SLIDING_LOG: {
        Log log = log_view(part, words);
        return sliding_log_debt(&log, now, limit);
    }
    case UNLIMITED: return 0;
    default: return gcra_debt(joined(words), now, limit);
    }
}

static inline u64 part_remaining(const Part *part, u64 *words, u64 now, const Limit *limit, u64 pending) {
    switch (part->algorithm) {
    case FIXED_WINDOW: return window_remaining(words, now, limit);
    case SLIDING_WINDOW: return sliding_window_remaining(words, now, limit);
    case SLIDING_LOG: {
        Log log = log_view(part, words);
        return sliding_log_remaining(&log, now, limit, pending);
    }
    case UNLIMITED: return limit->capacity;
    default: return gcra_remaining(joined(words), now, limit);
    }
}

static inline u64 part_reset_after(const Part *part, u64 *words, u64 now, const Limit *limit, u64 pending) {
    switch (part->algorithm) {
    case FIXED_WINDOW: return window_reset_after(words, now, limit);
    case SLIDING_WINDOW: return sliding_window_reset_after(words, now, limit);
    case SLIDING_LOG: {
        Log log = log_view(part, words);
        return sliding_log_reset_after(&log, now, limit, pending);
    }
    case UNLIMITED: return 0;
    default: return gcra_reset_after(joined(words), now, limit);
    }
}

/* Twin of several.py's debt, where limits differ in units: how long the used part takes to recover. */
static inline u128 record_debt(const Shape *shape, u64 *words, u64 now, const Limit *limits) {
    if (shape->parts == 1)
        return part_debt(shape->part, words, now, limits);
    u128 most = 0;
    for (uint32_t index = 0; index < shape->parts; index++) {
        const Part *part = shape->part + index;
        const Limit *limit = limits + index;
        u64 used = limit->capacity - part_remaining(part, words + part->offset, now, limit, 0);
        u128 owed = (((u128)used * limit->micros << 20) + limit->count - 1) / limit->count;
        most = owed > most ? owed : most;
    }
    return most;
}

#endif
