/* threads: what a free-threaded build does, without Python: the region's lock held around each decision. */
#define RATEKEEPER_LOCKED 1
#include <stdio.h>
#include <time.h>

#include "../../src/ratekeeper/native/hot.h"

#define THREADS 8
#define KEYS 50
#define COUNT 60
#define CALLS 4000

static KeyTable *key_table;
static Limit limit;
static u64 admitted[THREADS];

static u64 instant(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

static void *run(void *argument) {
    u64 self = (u64)(uintptr_t)argument;
    for (u64 call = 0; call < CALLS; call++) {
        u64 hash = ((call * 7 + self) % KEYS + 1) * 0x9E3779B97F4A7C15ULL;
        Region *region = region_of(key_table, hash);
        Evidence evidence;
        spin_lock(&region->lock);
        u64 now = instant();
        check_private(key_table, place_of(key_table, hash), &limit, now, 1, &evidence);
        spin_unlock(&region->lock);
        admitted[self] += evidence.allowed;
    }
    return NULL;
}

int main(void) {
    enum algorithm all[] = {FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW, TOKEN_BUCKET, LEAKY_BUCKET, GCRA};
    u64 seed[2] = {1, 2}, period = 300ULL * 86400 * 1000000;
    for (int index = 0; index < 6; index++) {
        limit = (Limit){.algorithm = all[index], .count = COUNT, .capacity = COUNT, .micros = period, .window = period, .slices = 1,
                        .unit = period / COUNT, .drain = 1, .full = (u128)COUNT * (period / COUNT)};
        limit.window = limit.micros;
        limit.ceiling = ceiling_of(&limit);
        key_table = private_key_table(shape_of(&limit, 1, false, true), 300, seed);
        pthread_t threads[THREADS];
        for (u64 each = 0; each < THREADS; each++) {
            admitted[each] = 0;
            pthread_create(threads + each, NULL, run, (void *)(uintptr_t)each);
        }
        u64 sum = 0;
        for (int each = 0; each < THREADS; each++) {
            pthread_join(threads[each], NULL);
            sum += admitted[each];
        }
        drop_key_table(key_table);
        if (sum != KEYS * COUNT) {
            fprintf(stderr, "algorithm %d: admitted %llu, not %d\n", index, (unsigned long long)sum, KEYS * COUNT);
            return 1;
        }
    }
    puts("ok");
    return 0;
}
