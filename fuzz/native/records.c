/* Records of keys (native/record.h, algorithms): any state of any limit is packed and unpacked alike, and has answers. */
#include "../../tests/native/fuzz.c"

#define EXPECT(fact) do { if (!(fact)) { fprintf(stderr, "expected " #fact "\n"); abort(); } } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choose_by(data, size);
    Limit limit = random_limit(true);
    Shape *shape = shape_of(&limit, 1, below(2), true);
    u64 now = below(MOST_NOW), cost = number_below(MOST_COST);
    if (shape->packed && limit.algorithm != SLIDING_LOG) {
        u128 state = ((u128)below(UINT64_MAX) << 64 | below(UINT64_MAX)) & (((u128)1 << STATE_BITS) - 1);
        u64 unpacked[3];
        unpack(shape, state, unpacked);
        if (limit.algorithm == FIXED_WINDOW || limit.algorithm == SLIDING_WINDOW)
            EXPECT(pack(shape, unpacked) == state);
        part_debt(shape->part, unpacked, now, &limit);
        EXPECT(part_remaining(shape->part, unpacked, now, &limit, 0) <= limit.capacity);
        part_reset_after(shape->part, unpacked, now, &limit, 0);
        Evidence evidence = {0};
        decide_packed(shape, &limit, &state, now, cost, &evidence);
        EXPECT(!(state >> STATE_BITS));
    } else if (shape->shared) {
        u64 *record = calloc(shape->words, sizeof(u64));
        for (uint32_t index = 0; index < shape->words; index++)
            record[index] = below(4) ? below(70) << 32 | below(70) : below(UINT64_MAX);
        record_debt(shape, record, now, &limit);
        EXPECT(part_remaining(shape->part, record, now, &limit, 0) <= limit.capacity);
        part_reset_after(shape->part, record, now, &limit, 0);
        free(record);
    }
    free(shape);
    return 0;
}
