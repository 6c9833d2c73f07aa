/* Answers of a server as the protocol writes them (RESP2): where they end, and what they hold. */
#ifndef RATEKEEPER_RESP_H
#define RATEKEEPER_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MOST_NUMBER (1LL << 31) /* longer answers are none */

/* How far answers were understood that come in pieces: `left` of them, and of the present one so many elements. */
typedef struct {
    size_t at;
    uint64_t left, elements;
    bool is_broken;
} Frames;

/* One element: its type, or 0 for what holds nothing; of a list its length, and where the first element begins. */
typedef struct {
    char type;
    const char *bytes;
    size_t size;
} Element;

/* The number from `at` to the end of its line; -1 for none, or for the null. */
static int64_t read_number(const char *at, const char *end) {
    int64_t number = 0;
    if (at == end)
        return -1;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9' || number > MOST_NUMBER)
            return -1;
        number = number * 10 + (*at - '0');
    }
    return number > MOST_NUMBER ? -1 : number;
}

static bool is_null(const char *at, const char *end) { return end - at == 2 && at[0] == '-' && at[1] == '1'; }

/* Whether all answers are there; go on where the last look ended. */
static bool frames_are_whole(Frames *frames, const char *bytes, size_t size) {
    while (frames->left && !frames->is_broken) {
        if (frames->at >= size)
            return false;
        const char *at = bytes + frames->at, *line = memchr(at, '\n', size - frames->at);
        if (!line)
            return false;
        if (line - at < 2 || line[-1] != '\r') {
            frames->is_broken = true;
            break;
        }
        size_t after = (size_t)(line + 1 - bytes);
        int64_t number = 0;
        if (*at == '$' || *at == '*') {
            number = read_number(at + 1, line - 1);
            frames->is_broken = number < 0 && !is_null(at + 1, line - 1);
            if (number < 0)
                number = 0;
            else if (*at == '$')
                after += (size_t)number + 2;
            if (after > size)
                return false;
        } else {
            frames->is_broken = !strchr("+-:", *at);
        }
        frames->elements += *at == '*' ? (uint64_t)number : 0;
        frames->at = after;
        if (!--frames->elements) {
            frames->elements = 1;
            frames->left--;
        }
    }
    return !frames->is_broken;
}

/* The bytes of so many answers that are there. */
static size_t frames_size(const char *at, const char *end, uint64_t count) {
    Frames frames = {.left = count, .elements = 1};
    frames_are_whole(&frames, at, (size_t)(end - at));
    return frames.at;
}

/* The element at `at`, which is there. */
static Element read_element(const char *at, const char *end) {
    const char *line = memchr(at, '\n', (size_t)(end - at));
    Element part = {*at, at + 1, (size_t)(line - 1 - (at + 1))};
    if (*at == '$' || *at == '*') {
        int64_t number = read_number(at + 1, line - 1);
        part.bytes = line + 1;
        part.size = number < 0 ? 0 : (size_t)number;
        if (number < 0)
            part.type = 0;
    }
    return part;
}
#endif
