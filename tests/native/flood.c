/* flood: half of a table's keys are at their limit; ten times as many new keys reset none of them. */
#include <stdio.h>
#include <stdlib.h>

#include "../../src/ratekeeper/native/hot.h"
#include "../../src/ratekeeper/native/siphash.h"

#define MAX_KEYS 100000
#define VICTIMS (MAX_KEYS / 2)
#define FLOOD (10 * MAX_KEYS)

static KeyTable *key_table;

static bool check(const Limit *limit, u64 key, u64 now, u64 cost) {
    Evidence evidence;
    u64 hash = siphash(key_table->seed, 1, &key, sizeof key);
    return check_private(key_table, place_of(key_table, hash), limit, now, cost, &evidence) && evidence.allowed;
}

int main(int count, char **arguments) {
    u64 unit = 17280000000ULL, now = 1000000, reset = 0;
    Limit limit = {.algorithm = GCRA, .count = 5, .capacity = 5, .micros = 5 * unit, .slices = 1, .unit = unit, .drain = 1,
                   .full = 5 * (u128)unit};
    limit.window = limit.micros;
    limit.ceiling = ceiling_of(&limit);
    u64 rounds = count > 1 ? strtoull(arguments[1], NULL, 10) : 12;
    for (u64 round = 0; round < rounds; round++) {
        u64 seed[2] = {round, 2};
        key_table = private_key_table(shape_of(&limit, 1, false, true), MAX_KEYS, seed);
        for (u64 key = 0; key < VICTIMS; key++)
            check(&limit, key, now, 5);
        for (u64 key = 0; key < FLOOD; key++)
            check(&limit, VICTIMS + key, ++now, 1);
        for (u64 key = 0; key < VICTIMS; key++)
            reset += check(&limit, key, now, 1);
        drop_key_table(key_table);
    }
    printf("reset: %llu\n", (unsigned long long)reset);
    return reset > 0;
}
