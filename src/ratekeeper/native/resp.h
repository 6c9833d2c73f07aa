/* Replies of a server as the protocol writes them (RESP2): where they end, and what they hold. */
#ifndef RATEKEEPER_RESP_H
#define RATEKEEPER_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What a reply may be at most: reader.py has the same bounds.  A server that sends more is not believed. */
#define MOST_BYTES (64u << 20)
#define MOST_LINE 65536
#define MOST_ELEMENTS (1u << 20)
#define MOST_DEPTH 8

/* How far replies were parsed that come in pieces: `left` of them are missing. */
typedef struct {
    size_t at;         /* the next element begins here */
    size_t start;      /* the present reply begins here */
    uint64_t left;
    uint32_t elements; /* of the present reply, so far */
    uint32_t depth, missing[MOST_DEPTH]; /* the arrays that are open, and how many elements each still lacks */
    bool is_broken;
} Frames;

/* One element: its type, or 0 for what holds nothing; of a list its length, and where the first element begins. */
typedef struct {
    char type;
    const char *bytes;
    size_t size;
} Element;

/* The number from `at` to the end of its line, `most` at most; -1 for none, or for the null. */
static int64_t read_number(const char *at, const char *end, int64_t most) {
    int64_t number = 0;
    if (at == end || end - at > 8)
        return -1;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return -1;
        number = number * 10 + (*at - '0');
    }
    return number > most ? -1 : number;
}

static bool is_null(const char *at, const char *end) { return end - at == 2 && at[0] == '-' && at[1] == '1'; }

/* Whether a line is a whole number that fits into 64 bits for certain. */
static bool is_integer(const char *at, const char *end) {
    if (at < end && *at == '-')
        at++;
    if (at == end || end - at > 18)
        return false;
    for (; at < end; at++)
        if (*at < '0' || *at > '9')
            return false;
    return true;
}

/* One element is there: so are the arrays that it completes, and maybe the reply. */
static void complete_element(Frames *frames) {
    while (frames->depth && !--frames->missing[frames->depth - 1])
        frames->depth--;
    if (!frames->depth) {
        frames->left--;
        frames->start = frames->at;
        frames->elements = 0;
    }
}

/* Whether all replies are there; goes on where the last call ended. */
static bool frames_are_whole(Frames *frames, const char *bytes, size_t size) {
    while (frames->left && !frames->is_broken) {
        if (frames->at >= size)
            return false;
        const char *at = bytes + frames->at;
        size_t seen = size - frames->at;
        const char *line = memchr(at, '\n', seen < MOST_LINE ? seen : MOST_LINE);
        if (!line) {
            frames->is_broken = seen >= MOST_LINE;
            return false;
        }
        frames->is_broken = line - at < 2 || line[-1] != '\r' || ++frames->elements > MOST_ELEMENTS;
        if (frames->is_broken)
            break;
        size_t after = (size_t)(line + 1 - bytes);
        int64_t number = 0;
        if (*at == '$' || *at == '*') {
            number = read_number(at + 1, line - 1, *at == '$' ? MOST_BYTES : MOST_ELEMENTS);
            frames->is_broken = number < 0 && !is_null(at + 1, line - 1);
            if (*at == '$' && number >= 0)
                after += (size_t)number + 2;
        } else if (*at == ':') {
            frames->is_broken = !is_integer(at + 1, line - 1);
        } else {
            frames->is_broken = *at != '+' && *at != '-';
        }
        frames->is_broken = frames->is_broken || after - frames->start > MOST_BYTES;
        if (frames->is_broken)
            break;
        if (after > size) {
            frames->elements--; /* the same element is met again */
            return false;
        }
        if (*at == '$' && number >= 0 && (bytes[after - 2] != '\r' || bytes[after - 1] != '\n')) {
            frames->is_broken = true;
            break;
        }
        frames->at = after;
        if (*at == '*' && number > 0) {
            frames->is_broken = frames->depth == MOST_DEPTH;
            if (!frames->is_broken)
                frames->missing[frames->depth++] = (uint32_t)number;
        } else {
            complete_element(frames);
        }
    }
    return !frames->is_broken;
}

/* The bytes of so many replies that are there. */
static size_t frames_size(const char *at, const char *end, uint64_t count) {
    Frames frames = {.left = count};
    frames_are_whole(&frames, at, (size_t)(end - at));
    return frames.at;
}

/* The element at `at`, which is there. */
static Element read_element(const char *at, const char *end) {
    const char *line = memchr(at, '\n', (size_t)(end - at));
    Element part = {*at, at + 1, (size_t)(line - 1 - (at + 1))};
    if (*at == '$' || *at == '*') {
        int64_t number = read_number(at + 1, line - 1, MOST_BYTES);
        part.bytes = line + 1;
        part.size = number < 0 ? 0 : (size_t)number;
        if (number < 0)
            part.type = 0;
    }
    return part;
}
#endif
