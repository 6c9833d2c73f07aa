/* SipHash-1-3 (Aumasson and Bernstein), keyed: without the seed nobody can make keys that collide.
 *
 * `domain` keeps text apart from encoded bytes, so that "a" and b"a" are different keys.
 */
#ifndef RATEKEEPER_SIPHASH_H
#define RATEKEEPER_SIPHASH_H

#include "numbers.h"

#define ROTATED(x, by) ((x) << (by) | (x) >> (64 - (by)))
#define SIP_ROUND                                                                   \
    do {                                                                            \
        v0 += v1; v1 = ROTATED(v1, 13); v1 ^= v0; v0 = ROTATED(v0, 32);             \
        v2 += v3; v3 = ROTATED(v3, 16); v3 ^= v2;                                   \
        v0 += v3; v3 = ROTATED(v3, 21); v3 ^= v0;                                   \
        v2 += v1; v1 = ROTATED(v1, 17); v1 ^= v2; v2 = ROTATED(v2, 32);             \
    } while (0)

static inline u64 little_endian(const unsigned char *bytes, size_t count) {
    u64 word = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&word, bytes, count);
#else
    for (size_t index = 0; index < count; index++)
        word |= (u64)bytes[index] << 8 * index;
#endif
    return word;
}

static inline u64 siphash(const u64 seed[2], u64 domain, const void *text, size_t size) {
    const unsigned char *bytes = text;
    u64 v0 = seed[0] ^ 0x736f6d6570736575ULL, v1 = seed[1] ^ 0x646f72616e646f6dULL;
    u64 v2 = seed[0] ^ 0x6c7967656e657261ULL, v3 = seed[1] ^ 0x7465646279746573ULL ^ domain;
    size_t whole = size & ~(size_t)7;
    for (size_t place = 0; place < whole; place += 8) {
        u64 word = little_endian(bytes + place, 8);
        v3 ^= word;
        SIP_ROUND;
        v0 ^= word;
    }
    u64 last = (u64)size << 56;
    const unsigned char *tail = bytes + whole;
    switch (size & 7) { /* a switch, as memcpy of unknown length would be a call */
    case 7: last |= (u64)tail[6] << 48; /* fall through */
    case 6: last |= (u64)tail[5] << 40; /* fall through */
    case 5: last |= (u64)tail[4] << 32; /* fall through */
    case 4: last |= little_endian(tail, 4); break;
    case 3: last |= (u64)tail[2] << 16; /* fall through */
    case 2: last |= (u64)tail[1] << 8; /* fall through */
    case 1: last |= tail[0]; break;
    default: break;
    }
    v3 ^= last;
    SIP_ROUND;
    v0 ^= last;
    v2 ^= 0xFF;
    SIP_ROUND;
    SIP_ROUND;
    SIP_ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

#undef SIP_ROUND
#undef ROTATED

#endif
