/* main SECONDS SEED FILE...: runs a target without libFuzzer: each file, then random changes of them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_SEEDS 1000
#define LONGEST 4096
#define CRASH "crash-input"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint64_t random_below(uint64_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % bound;
}

/* Kept on the disk, so that it is there after a crash. */
static void run(FILE *kept, const uint8_t *data, size_t size) {
    rewind(kept);
    fwrite(&size, sizeof size, 1, kept);
    fwrite(data, 1, size, kept);
    fflush(kept);
    LLVMFuzzerTestOneInput(data, size);
}

int main(int count, char **arguments) {
    static uint8_t seeds[MOST_SEEDS][LONGEST], data[LONGEST];
    static size_t sizes[MOST_SEEDS];
    double seconds = atof(arguments[1]);
    int many = 0;
    unsigned long tried = 0;
    FILE *kept = fopen(CRASH, "w+b");
    state = strtoull(arguments[2], NULL, 10);
    for (int index = 3; index < count && many < MOST_SEEDS; index++) {
        FILE *file = fopen(arguments[index], "rb");
        sizes[many] = fread(seeds[many], 1, LONGEST, file);
        fclose(file);
        run(kept, seeds[many], sizes[many]);
        many++;
        tried++;
    }
    if (!many)
        many = 1;
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        int seed = (int)random_below((uint64_t)many);
        size_t size = sizes[seed];
        memcpy(data, seeds[seed], size);
        for (uint64_t changes = 1 + random_below(8); changes; changes--) {
            if (!size || !random_below(4)) {
                size = size + 8 < LONGEST ? size + 8 : size;
                for (size_t at = size < 8 ? 0 : size - 8; at < size; at++)
                    data[at] = (uint8_t)random_below(256);
            } else if (random_below(3)) {
                data[random_below(size)] = (uint8_t)random_below(256);
            } else {
                data[random_below(size)] ^= (uint8_t)(1 << random_below(8));
            }
        }
        run(kept, data, size);
        tried++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - began.tv_sec) < seconds);
    fclose(kept);
    remove(CRASH);
    printf("%lu\n", tried);
    return 0;
}
