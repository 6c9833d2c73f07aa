/* The key table: bounded, keyed by a secret hash, evicting the key that is closest to recovered.
 *
 * A hash picks one of many regions and, in it, two buckets of eight slots; a new key goes to the emptier one, into a
 * slot that is free or whose state has expired.  A private region grows while it is small; at its full size, the new
 * key replaces the key with the least debt among its sixteen slots.  Keys are not stored: a slot has 48 bits of the
 * key's hash (a wide slot 64), and other bits choose the region.
 *
 * The caller has locked the region: by the interpreter's lock, the region's own (free-threaded builds) or its guard
 * (shared).
 */
#ifndef RATEKEEPER_TABLE_H
#define RATEKEEPER_TABLE_H

#include <sched.h>
#include <sys/mman.h>

#include "guard.h"
#include "record.h"

#define BUCKET 8
#define MOST_REGIONS 65536
#define KEYS_PER_REGION 256
#define SLACK 2 /* slots for each key that a table of full size must hold */

typedef struct {
    void *memory;     /* packed: slots; wide: marks, then records */
    uint32_t buckets;
    uint32_t lock;    /* of free-threaded builds */
    Guard *guard;     /* of shared tables */
    uint32_t vain;    /* the thread that this process waited for in vain: the guard's owner, by a damaged lock word */
} Region;

/* The first blocks of logs are cut from large pieces, which saves the allocator's header on each. */
#define SLAB_BLOCKS 256

typedef struct piece {
    struct piece *next;
    u64 blocks[];
} Piece;

typedef struct {
    Piece *pieces;
    u64 *spare;     /* a list of free blocks, each pointing to the next */
    uint32_t used;  /* of the newest piece */
    uint32_t lock;
} Slab;

typedef struct {
    Shape *shape;
    u64 seed[2];
    u64 identity;       /* of a shared table, the same in all processes: the order in which guards are locked */
    char *name;         /* of its segment, for errors */
    uint32_t regions;
    uint32_t most_buckets;
    bool trusts_hash;   /* use the interpreter's hashes of texts */
    bool watched;       /* a table has a clock in Python, which may let other threads write: */
    u64 changes;        /* then writes are counted, so that the caller sees them */
    Region *region;
    Slab slab;
} KeyTable;

typedef struct {
    u64 print; /* the part of the key's hash that is stored in a slot; never 0 */
    Region *region;
    uint32_t first, second; /* buckets */
} Place;

static inline u64 print_of(const Shape *shape, u64 hash) {
    u64 print = shape->packed ? hash & PRINT_MASK : hash;
    return print ? print : 1;
}

/* Two different buckets: one alone may be full of keys at their limit, two hardly ever are. */
static inline Place place_in(Region *region, u64 print) {
    Place place = {print, region, 0, 0};
    u64 mixed = print * 0x9E3779B97F4A7C15ULL;
    place.first = (uint32_t)((print & 0xFFFFFFFF) * region->buckets >> 32);
    place.second = region->buckets > 1 ? (uint32_t)((mixed >> 32) * (region->buckets - 1) >> 32) : 0;
    place.second += place.second >= place.first && region->buckets > 1;
    return place;
}

static inline Region *region_of(const KeyTable *key_table, u64 hash) {
    return key_table->region + ((hash >> 48) * key_table->regions >> 16);
}

static inline Place place_of(const KeyTable *key_table, u64 hash) {
    return place_in(region_of(key_table, hash), print_of(key_table->shape, hash));
}

static inline Slot *slots_of(const Region *region) { return region->memory; }
static inline u64 *marks_of(const Region *region) { return region->memory; }

static inline u64 *record_at(const Shape *shape, const Region *region, size_t slot) {
    return (u64 *)region->memory + (size_t)region->buckets * BUCKET + slot * shape->words;
}

static inline size_t slot_bytes(const Shape *shape) {
    return shape->packed ? sizeof(Slot) : (1 + (size_t)shape->words) * sizeof(u64);
}

static inline void fetch_early(const Shape *shape, Place place) {
    const char *memory = place.region->memory;
    if (!memory)
        return;
    if (shape->packed) {
        for (int line = 0; line < 2; line++) {
            __builtin_prefetch(memory + place.first * BUCKET * sizeof(Slot) + line * 64, 1);
            __builtin_prefetch(memory + place.second * BUCKET * sizeof(Slot) + line * 64, 1);
        }
    } else {
        __builtin_prefetch(memory + place.first * BUCKET * sizeof(u64));
        __builtin_prefetch(memory + place.second * BUCKET * sizeof(u64));
    }
}

/* Spin locks, of free-threaded builds only: held for one decision, some tens of nanoseconds. */
#ifdef RATEKEEPER_LOCKED
static inline void spin_lock(uint32_t *lock) {
    while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
        while (__atomic_load_n(lock, __ATOMIC_RELAXED))
            sched_yield();
}
static inline void spin_unlock(uint32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }
#else
static inline void spin_lock(uint32_t *lock) { (void)lock; }
static inline void spin_unlock(uint32_t *lock) { (void)lock; }
#endif

static inline void count_change(KeyTable *key_table) {
    if (key_table->watched)
        __atomic_add_fetch(&key_table->changes, 1, __ATOMIC_RELAXED);
}

static inline u64 changes_in(const KeyTable *key_table) { return __atomic_load_n(&key_table->changes, __ATOMIC_RELAXED); }

static inline Block *new_block(KeyTable *key_table, u64 room) {
    Block *block = NULL;
    u64 first = key_table->shape->first_ring, width = key_table->shape->part->leases ? 2 : 1, words = 2 + first * width;
    if (room != first) {
        block = malloc(sizeof(Block) + room * width * sizeof(u64));
    } else {
        Slab *slab = &key_table->slab;
        spin_lock(&slab->lock);
        if (slab->spare) {
            block = (Block *)slab->spare;
            slab->spare = (u64 *)(uintptr_t)slab->spare[0];
        } else {
            if (!slab->pieces || slab->used == SLAB_BLOCKS) {
                Piece *piece = malloc(sizeof(Piece) + SLAB_BLOCKS * words * sizeof(u64));
                if (piece) {
                    piece->next = slab->pieces;
                    slab->pieces = piece;
                    slab->used = 0;
                }
            }
            if (slab->pieces && slab->used < SLAB_BLOCKS)
                block = (Block *)(slab->pieces->blocks + words * slab->used++);
        }
        spin_unlock(&slab->lock);
    }
    if (block) {
        block->head = 0;
        block->room = room;
    }
    return block;
}

static inline void free_block(KeyTable *key_table, Block *block) {
    if (!block || block->room != key_table->shape->first_ring) {
        free(block);
        return;
    }
    spin_lock(&key_table->slab.lock);
    *(u64 *)block = (u64)(uintptr_t)key_table->slab.spare;
    key_table->slab.spare = (u64 *)block;
    spin_unlock(&key_table->slab.lock);
}

static inline Slot *find_packed(Place place) {
    Slot *slots = slots_of(place.region);
    if (!slots)
        return NULL;
    for (int side = 0; side < 2; side++) {
        Slot *slot = slots + (size_t)(side ? place.second : place.first) * BUCKET;
        for (int index = 0; index < BUCKET; index++)
            if (print_in(slot[index]) == place.print)
                return slot + index;
    }
    return NULL;
}

/* The number of the key's slot in its region, or -1. */
static inline i64 find(const Shape *shape, Place place) {
    if (!place.region->memory)
        return -1;
    if (shape->packed) {
        Slot *slot = find_packed(place);
        return slot ? slot - slots_of(place.region) : -1;
    }
    u64 *marks = marks_of(place.region);
    for (int side = 0; side < 2; side++) {
        size_t start = (size_t)(side ? place.second : place.first) * BUCKET;
        for (size_t index = start; index < start + BUCKET; index++)
            if (marks[index] == place.print)
                return (i64)index;
    }
    return -1;
}

static inline void read_record(const Shape *shape, const Region *region, size_t slot, u64 *words) {
    if (shape->packed) {
        unpack(shape, state_in(slots_of(region)[slot]), words);
        return;
    }
    const u64 *record = record_at(shape, region, slot);
    for (uint32_t index = 0; index < shape->parts; index++) { /* a ring is read in place */
        const Part *part = shape->part + index;
        copy_words(words + part->offset, record + part->offset, part->ring ? 1 : part->words);
    }
}

static inline void free_blocks(KeyTable *key_table, u64 *words) {
    const Shape *shape = key_table->shape;
    for (uint32_t index = 0; index < shape->parts; index++)
        if (shape->part[index].algorithm == SLIDING_LOG && !shape->part[index].ring)
            free_block(key_table, (Block *)(uintptr_t)words[shape->part[index].offset]);
}

static inline bool slot_taken(const Shape *shape, const Region *region, size_t slot) {
    return shape->packed ? print_in(slots_of(region)[slot]) != 0 : marks_of(region)[slot] != 0;
}

static inline u128 slot_debt(const Shape *shape, Region *region, size_t slot, u64 now, const Limit *limits) {
    u64 packed[3];
    if (!shape->packed)
        return record_debt(shape, record_at(shape, region, slot), now, limits);
    unpack(shape, state_in(slots_of(region)[slot]), packed);
    return part_debt(shape->part, packed, now, limits);
}

/* The slot for a new key: free or expired, in the emptier bucket; else the one with the least debt of sixteen.
 * `owed` is the debt of its key: if it is not 0, that key is evicted.
 */
static inline size_t choose(const Shape *shape, Place place, u64 now, const Limit *limits, u128 *owed) {
    size_t free_slot[2], best = 0;
    int free_slots[2] = {0, 0};
    u128 least_debt = 0;
    bool any = false;
    for (int side = 0; side < 2; side++) {
        size_t start = (size_t)(side ? place.second : place.first) * BUCKET;
        for (size_t slot = start; slot < start + BUCKET; slot++) {
            u128 debt = slot_taken(shape, place.region, slot) ? slot_debt(shape, place.region, slot, now, limits) : 0;
            if (!debt) {
                if (!free_slots[side]++)
                    free_slot[side] = slot;
            } else if (!any || debt < least_debt) {
                any = true;
                least_debt = debt;
                best = slot;
            }
        }
    }
    *owed = free_slots[0] || free_slots[1] ? 0 : least_debt;
    if (*owed)
        return best;
    return free_slots[0] >= free_slots[1] ? free_slot[0] : free_slot[1];
}

static inline void *room_for(const Shape *shape, uint32_t buckets) {
    void *memory = NULL;
    size_t size = (size_t)buckets * BUCKET * slot_bytes(shape);
    if (posix_memalign(&memory, 64, size))
        return NULL;
    return memset(memory, 0, size);
}

static inline void move_slot(const Shape *shape, Region *from, size_t slot, Region *to, size_t target) {
    if (shape->packed) {
        slots_of(to)[target] = slots_of(from)[slot];
    } else {
        marks_of(to)[target] = marks_of(from)[slot];
        copy_words(record_at(shape, to, target), record_at(shape, from, slot), shape->words);
    }
}

static inline void drop_slot(KeyTable *key_table, Region *region, size_t slot) {
    u64 words[3];
    if (key_table->shape->packed) {
        unpack(key_table->shape, state_in(slots_of(region)[slot]), words);
        free_blocks(key_table, words);
    } else {
        free_blocks(key_table, record_at(key_table->shape, region, slot));
    }
}

/* Empty the slots of expired keys. */
static inline void sweep(KeyTable *key_table, Region *region, u64 now, const Limit *limits) {
    const Shape *shape = key_table->shape;
    for (size_t slot = 0; slot < (size_t)region->buckets * BUCKET; slot++)
        if (slot_taken(shape, region, slot) && !slot_debt(shape, region, slot, now, limits)) {
            drop_slot(key_table, region, slot);
            if (shape->packed)
                slots_of(region)[slot] = (Slot){0, 0};
            else
                marks_of(region)[slot] = 0;
        }
}

/* Copy all keys into `larger`; false if a key would be evicted, and a still larger region is possible. */
static inline bool move_all(KeyTable *key_table, Region *region, Region *larger, u64 now, const Limit *limits) {
    const Shape *shape = key_table->shape;
    bool last = larger->buckets == key_table->most_buckets;
    for (size_t slot = 0; slot < (size_t)region->buckets * BUCKET; slot++) {
        if (!slot_taken(shape, region, slot))
            continue;
        u64 print = shape->packed ? print_in(slots_of(region)[slot]) : marks_of(region)[slot];
        u128 owed;
        size_t target = choose(shape, place_in(larger, print), now, limits, &owed);
        if (owed && !last)
            return false;
        if (owed)
            drop_slot(key_table, larger, target);
        move_slot(shape, region, slot, larger, target);
    }
    return true;
}

/* Make a private region a quarter larger, or more if needed, and drop expired keys. */
static inline bool grow(KeyTable *key_table, Region *region, u64 now, const Limit *limits) {
    const Shape *shape = key_table->shape;
    Region larger = {region->memory, region->buckets, 0, NULL};
    sweep(key_table, region, now, limits);
    do {
        larger.buckets += larger.buckets / 4 + 1;
        if (larger.buckets > key_table->most_buckets)
            larger.buckets = key_table->most_buckets;
        if (larger.memory != region->memory)
            free(larger.memory);
        larger.memory = room_for(shape, larger.buckets);
        if (!larger.memory)
            return false;
    } while (!move_all(key_table, region, &larger, now, limits));
    free(region->memory);
    region->memory = larger.memory;
    region->buckets = larger.buckets;
    return true;
}

/* An empty slot of a private table for a new key; -1 if out of memory. */
static inline i64 make_room(KeyTable *key_table, Place place, u64 now, const Limit *limits) {
    const Shape *shape = key_table->shape;
    for (;;) {
        if (place.region->memory) {
            u128 owed;
            size_t slot = choose(shape, place, now, limits, &owed);
            if (!owed || place.region->buckets >= key_table->most_buckets) {
                if (slot_taken(shape, place.region, slot))
                    drop_slot(key_table, place.region, slot);
                return (i64)slot;
            }
        }
        if (!grow(key_table, place.region, now, limits))
            return -1;
        place = place_in(place.region, place.print);
    }
}

static inline void write_record(const Shape *shape, Region *region, size_t slot, u64 print, const u64 *words) {
    if (shape->packed) {
        slots_of(region)[slot] = slot_with(print, pack(shape, words));
    } else {
        marks_of(region)[slot] = print;
        copy_words(record_at(shape, region, slot), words, shape->words);
    }
}

/* Make room in the log of a private part for `cost` more units; false if out of memory. */
static inline bool reserve(KeyTable *key_table, u64 *words, u64 now, const Limit *limit, u64 cost) {
    Block *block = (Block *)(uintptr_t)words[0];
    u64 used = 0;
    if (block) {
        Log log = log_view(key_table->shape->part, words);
        used = sliding_log_used(&log, now, limit);
    }
    u64 needed = used + cost;
    if (block && needed <= block->room)
        return true;
    u64 room = block ? block->room + block->room / 2 : key_table->shape->first_ring;
    room = room < needed ? needed : room;
    if (block && needed <= limit->count && room > limit->count)
        room = limit->count;
    Block *larger = new_block(key_table, room);
    if (!larger)
        return false;
    larger->head = used;
    if (block) {
        Log log = log_view(key_table->shape->part, words);
        u64 gone = log_length(&log) - used;
        for (u64 index = 0; index < used; index++) {
            larger->ring[index] = *log_at(&log, gone + index);
            if (log.ids)
                larger->ring[room + index] = *id_at(&log, gone + index);
        }
        free_block(key_table, block);
    }
    words[0] = (u64)(uintptr_t)larger;
    return true;
}

static inline uint32_t regions_for(u64 max_keys) {
    u64 regions = (max_keys + KEYS_PER_REGION - 1) / KEYS_PER_REGION;
    return (uint32_t)(regions < MOST_REGIONS ? regions : MOST_REGIONS);
}

static inline uint32_t buckets_for(u64 max_keys) {
    u64 regions = regions_for(max_keys);
    u64 buckets = (SLACK * max_keys + regions * BUCKET - 1) / (regions * BUCKET);
    return (uint32_t)(buckets < 2 ? 2 : buckets);
}

static inline void forget_all(KeyTable *key_table) {
    for (uint32_t index = 0; index < key_table->regions; index++) /* all before the first is emptied: their logs share pieces */
        spin_lock(&key_table->region[index].lock);
    for (uint32_t index = 0; index < key_table->regions; index++) {
        Region *region = key_table->region + index;
        if (!region->memory)
            continue;
        for (size_t slot = 0; slot < (size_t)region->buckets * BUCKET; slot++)
            if (slot_taken(key_table->shape, region, slot))
                drop_slot(key_table, region, slot);
        free(region->memory);
        region->memory = NULL;
        region->buckets = 0;
    }
    spin_lock(&key_table->slab.lock);
    while (key_table->slab.pieces) {
        Piece *next = key_table->slab.pieces->next;
        free(key_table->slab.pieces);
        key_table->slab.pieces = next;
    }
    key_table->slab.spare = NULL;
    key_table->slab.used = 0;
    spin_unlock(&key_table->slab.lock);
    for (uint32_t index = 0; index < key_table->regions; index++)
        spin_unlock(&key_table->region[index].lock);
}

/* Empty regions cost no memory, as most tables stay far below their bound. */
#define FEW_REGIONS 128

static inline Region *new_regions(uint32_t count) {
    if (count <= FEW_REGIONS)
        return calloc(count, sizeof(Region));
    void *memory = mmap(NULL, count * sizeof(Region), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static inline void drop_regions(Region *region, uint32_t count) {
    if (count <= FEW_REGIONS)
        free(region);
    else if (region)
        munmap(region, count * sizeof(Region));
}

static inline void drop_key_table(KeyTable *key_table) {
    if (!key_table->shape->shared)
        forget_all(key_table);
    drop_regions(key_table->region, key_table->regions);
    free(key_table->shape);
    free(key_table->name);
    free(key_table);
}

static inline KeyTable *private_key_table(Shape *shape, u64 max_keys, const u64 seed[2]) {
    KeyTable *key_table = calloc(1, sizeof(KeyTable));
    Region *region = new_regions(regions_for(max_keys));
    if (!key_table || !region) {
        free(key_table);
        drop_regions(region, regions_for(max_keys));
        return NULL;
    }
    key_table->shape = shape;
    memcpy(key_table->seed, seed, sizeof(key_table->seed));
    key_table->regions = regions_for(max_keys);
    key_table->most_buckets = buckets_for(max_keys);
    key_table->region = region;
    return key_table;
}

#endif
