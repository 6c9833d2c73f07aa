/* Replies of a server (native/resp.h): the same frames in any pieces, and no read outside of them. */
#include <stdio.h>
#include <stdlib.h>

#include "../../src/ratekeeper/native/resp.h"

#define EXPECT(fact) do { if (!(fact)) { fprintf(stderr, "expected " #fact "\n"); abort(); } } while (0)

static void walk(const char *bytes, size_t size) {
    Frames frames = {.left = UINT64_MAX};
    size_t at = 0;
    frames_are_whole(&frames, bytes, size);
    while (at < frames.start) { /* each element that is there */
        Element element = read_element(bytes + at, bytes + size);
        EXPECT(element.bytes <= bytes + size);
        if (element.type == '$') {
            EXPECT(element.bytes + element.size + 2 <= bytes + frames.start);
            at = (size_t)(element.bytes - bytes) + element.size + 2;
        } else {
            const char *line = memchr(bytes + at, '\n', size - at);
            at = (size_t)(line + 1 - bytes);
        }
    }
    EXPECT(at == frames.start);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2)
        return 0;
    uint32_t step = 1 + data[0] % 16;
    size -= 1;
    char *bytes = malloc(size); /* exactly as large, so that a read beyond it is seen */
    memcpy(bytes, data + 1, size);
    Frames whole = {.left = UINT64_MAX}, cut = {.left = UINT64_MAX};
    frames_are_whole(&whole, bytes, size);
    for (size_t seen = step < size ? step : size;; seen = seen + step < size ? seen + step : size) {
        char *part = malloc(seen);
        memcpy(part, bytes, seen);
        frames_are_whole(&cut, part, seen);
        free(part);
        if (seen == size)
            break;
    }
    EXPECT(whole.is_broken == cut.is_broken);
    if (!whole.is_broken)
        EXPECT(whole.at == cut.at && whole.start == cut.start && whole.elements == cut.elements && whole.depth == cut.depth);
    EXPECT(whole.start <= size && whole.depth <= MOST_DEPTH);
    walk(bytes, whole.start);
    EXPECT(frames_size(bytes, bytes + size, 1) <= size);
    free(bytes);
    return 0;
}
