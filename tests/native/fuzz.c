/* fuzz SEED STEPS: random limits, keys, costs, clocks and table sizes, on a private and a shared table side by side.
 *
 * Where both are roomy they must answer alike; where they are tiny, slots are given and taken all the time, and the
 * shared one is damaged at random.  Meant to be built with sanitizers: they see what an answer does not show.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "../../src/ratekeeper/native/hot.h"
#include "../../src/ratekeeper/native/siphash.h"

static u64 chance;
static const uint8_t *choices; /* of a fuzzer: they come before those of chance */
static size_t choices_left;

/* Let a fuzzer choose; the same bytes are always the same choices. */
static inline void choose_by(const uint8_t *data, size_t size) {
    choices = data;
    choices_left = size;
    chance = size;
}

static u64 below(u64 bound) {
    if (choices_left) {
        u64 number = 0;
        for (u64 most = bound - 1; most && choices_left; most >>= 8, choices_left--)
            number = number << 8 | *choices++;
        return bound == UINT64_MAX ? number : number % bound;
    }
    chance = chance * 6364136223846793005ULL + 1442695040888963407ULL;
    return (u64)((u128)(chance >> 11) * bound >> 53);
}

/* Mostly small, at times as large as can be. */
static u64 number_below(u64 most) {
    u64 number = below(4) ? 1 + below(most < 20 ? most : 20) : 1 + below(most);
    return below(50) ? number : most;
}

static u64 common(u64 a, u64 b) { return b ? common(b, a % b) : a; }

static Limit random_limit(bool shared) {
    Limit limit = {.algorithm = (enum algorithm)below(6), .slices = 1, .unit = 1, .drain = 1};
    limit.micros = number_below(400ULL * 86400 * 1000000);
    limit.count = number_below(MOST_COUNT);
    if (limit.count > limit.micros * 1000)
        limit.count = limit.micros * 1000;
    if (limit.algorithm == SLIDING_LOG)
        limit.count = number_below(shared ? 40 : 3000);
    limit.capacity = limit.count;
    if (limit.algorithm == FIXED_WINDOW && below(2))
        limit.starts = BY_FIRST_USE;
    if (limit.algorithm == SLIDING_WINDOW && below(2))
        limit.slices = 1 + below(MOST_SLICES);
    if (limit.algorithm >= TOKEN_BUCKET) {
        u64 shared_part = common(limit.count, limit.micros);
        limit.unit = limit.micros / shared_part;
        limit.drain = limit.count / shared_part;
        limit.capacity = number_below(1000);
        if (limit.drain > MOST_DRAIN || (u128)limit.capacity * limit.unit / limit.drain > MOST_NOW / 4) {
            limit.unit = limit.drain = 1;
            limit.capacity = limit.count = 1 + below(1000);
        }
    }
    limit.full = (u128)limit.capacity * limit.unit;
    limit.window = limit.micros;
    limit.ceiling = ceiling_of(&limit);
    limit.owes = limit.algorithm >= TOKEN_BUCKET ? limit.capacity + below(1000) : limit.count + below(limit.count + 1);
    limit.owes = least(limit.owes, MOST_OWED);
    return limit;
}

typedef struct {
    KeyTable *key_table;
    void *memory;
    size_t bytes;
} Home;

static Home home_of(const Limit *limits, uint32_t parts, u64 max_keys, bool shared) {
    u64 seed[2] = {below(UINT64_MAX), below(UINT64_MAX)};
    Shape *shape = shape_of(limits, parts, shared, !shared || below(2)); /* as on machines that cannot swap, too */
    Home home = {NULL, NULL, 0};
    if (!shared) {
        home.key_table = private_key_table(shape, max_keys, seed);
        return home;
    }
    home.bytes = shared_bytes(shape, regions_for(max_keys), buckets_for(max_keys));
    home.memory = mmap(NULL, home.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (home.memory == MAP_FAILED || !make_shared(shape, home.memory, regions_for(max_keys), buckets_for(max_keys)))
        abort();
    home.key_table = shared_key_table(shape, home.memory, regions_for(max_keys), buckets_for(max_keys), seed, below(99));
    return home;
}

static void leave(Home home) {
    drop_key_table(home.key_table);
    if (home.memory)
        munmap(home.memory, home.bytes);
}

#define MOST_ITEMS 4
static u64 words[2 * MOST_ITEMS][8 * 3010];

/* One act on one table; what it answered goes to `evidence`. */
static int act(Home home, const Limit *limits, int kind, const u64 *keys, const u64 *costs, int count, u64 now, i64 at,
               Evidence *evidence) {
    Item items[MOST_ITEMS], *order[MOST_ITEMS];
    int error;
    for (int index = 0; index < count; index++) {
        char text[32];
        int size = snprintf(text, sizeof text, "key %llu", (unsigned long long)keys[index]);
        items[index] = (Item){.key_table = home.key_table, .limits = limits, .cost = costs[index], .old = words[2 * index],
                              .new = words[2 * index + 1],
                              .hash = siphash(home.key_table->seed, 1, text, (size_t)size)};
    }
    const Shape *shape = home.key_table->shape;
    bool window = shape->packed || (shape->parts == 1 && limits->algorithm == SLIDING_WINDOW);
    if (kind == 0 && !shape->shared && shape->parts == 1 && window) {
        check_private(home.key_table, place_of(home.key_table, items[0].hash), limits, now, costs[0], evidence);
        return 1;
    }
    if (kind == 0 && shape->shared && shape->packed &&
        check_shared(home.key_table, place_of(home.key_table, items[0].hash), limits, false, &now, costs[0], evidence))
        return 1;
    if (kind == 0 && shape->shared && !shape->packed && shape->parts == 1 &&
        check_guarded(home.key_table, (Place[]){place_of(home.key_table, items[0].hash)}, limits, false, &now, costs[0], evidence))
        return 1;
    if (kind != 1)
        count = 1;
    int regions = lock_all(items, count, order, &error);
    for (int index = 0; index < count; index++)
        read_item(items, index);
    for (int index = 0; index < count; index++)
        items[index].now = now;
    if (kind <= 2)
        check_all(items, count, kind == 2, evidence);
    else
        change_item(items, (enum change)(kind - 3), at, evidence);
    unlock_all(order, regions);
    return count * (int)shape->parts;
}

static int same(const Limit *limit, const Evidence *a, const Evidence *b, u64 now, u64 cost) {
    if (a->allowed != b->allowed || a->answered != b->answered)
        return 0;
    Part part = {.algorithm = limit->algorithm};
    u64 one[3], other[3];
    memcpy(one, a->word, sizeof one);
    memcpy(other, b->word, sizeof other);
    if (a->answered)
        return !memcmp(one, other, sizeof one);
    (void)cost;
    return part_remaining(&part, one, now, limit, 0) == part_remaining(&part, other, now, limit, 0) &&
           part_reset_after(&part, one, now, limit, 0) == part_reset_after(&part, other, now, limit, 0);
}

/* Anything at all in a word of the shared memory, the mutexes left out: no place outside of it may be touched. */
static void damage(Home home) {
    const Shape *shape = home.key_table->shape;
    Region *region = home.key_table->region + below(home.key_table->regions);
    size_t words_there = (size_t)region->buckets * BUCKET * slot_bytes(shape) / sizeof(u64);
    u64 noise = below(2) ? below(UINT64_MAX) : below(70) << 32 | below(70);
    if (below(4)) {
        ((u64 *)region->memory)[below(words_there)] = noise;
    } else if (!shape->packed) {
        region->guard->noted = 1;
        region->guard->slot = noise;
        recover(shape, region);
    }
}

/* So many acts on tables with the same limits; false if the tables disagree. */
static inline bool act_at_random(int steps) {
    Limit limits[3];
    uint32_t parts = below(3) ? 1 : 1 + (uint32_t)below(3);
    for (uint32_t index = 0; index < parts; index++)
        limits[index] = random_limit(true);
    bool roomy = below(2);
    u64 max_keys = roomy ? 400 : 1 + below(30), many = roomy ? 20 : 200;
    Home homes[2] = {home_of(limits, parts, max_keys, false), home_of(limits, parts, max_keys, true)};
    u64 now = below(2) ? below(1000) : below(MOST_NOW / 2);
    for (int step = 0; step < steps; step++) {
        u64 width = limits->micros / 4 + 2;
        if (below(20))
            now = now + below(width) < MOST_NOW ? now + below(width) : now;
        else if (!roomy) /* what had expired may have been forgotten by one of them: only then may time go back */
            now -= below(now < width ? now + 1 : width);
        if (!roomy && !below(20))
            damage(homes[1]);
        int kind = (int)below(7), items = 1 + (int)below(MOST_ITEMS);
        u64 keys[MOST_ITEMS], costs[MOST_ITEMS];
        for (int index = 0; index < items; index++) {
            keys[index] = below(many);
            costs[index] = number_below(below(9) ? limits->capacity + 1 : MOST_COST);
        }
        Evidence evidence[2][3 * MOST_ITEMS];
        i64 at = below(3) ? (i64)now : (i64)below(now + 1) - 5;
        int found = act(homes[0], limits, kind, keys, costs, items, now, at, evidence[0]);
        act(homes[1], limits, kind, keys, costs, items, now, at, evidence[1]);
        for (int index = 0; roomy && index < found; index++)
            if (!same(limits + index % parts, evidence[0] + index, evidence[1] + index, now, costs[0])) {
                fprintf(stderr, "step %d: the two tables disagree\n", step);
                return false;
            }
    }
    leave(homes[0]);
    leave(homes[1]);
    return true;
}

#ifndef FUZZED
int main(int count, char **arguments) {
    chance = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
    long rounds = count > 2 ? atol(arguments[2]) : 200;
    for (long round = 0; round < rounds; round++) {
        u64 began = chance;
        if (!act_at_random(400)) {
            fprintf(stderr, "seed %llu\n", (unsigned long long)began);
            return 1;
        }
    }
    puts("ok");
    return 0;
}
#endif
