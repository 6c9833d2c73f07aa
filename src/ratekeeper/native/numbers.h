/* The numbers that all rules share: whole microseconds, whole ticks, and one limit's terms.
 *
 * Law: no floats, no rounding.  An instant is below MOST_NOW microseconds and a limit keeps limit.py's bounds,
 * so a bucket's state, an instant below twice MOST_NOW and 26 bits of ticks, stays below 2^79 and nothing here can
 * overflow.
 * No Python.h: a plain C program can run every rule.
 */
#ifndef RATEKEEPER_NUMBERS_H
#define RATEKEEPER_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef int64_t i64;
typedef unsigned __int128 u128;
typedef __int128 i128;

#define MOST_NOW ((u64)1 << 52)     /* 142 years */
#define MOST_COST 999999999999999ULL /* limit.UNLIMITED */
#define MOST_COUNT 1000000000000ULL  /* limit.MOST */
#define MOST_DRAIN ((u64)1 << 26)    /* limit.MOST_DRAIN */
#define MOST_OWED (((u64)1 << 40) - 1) /* limit.MOST_OWED */
#define MOST_SLICES 100
#define NEVER INT64_MIN               /* a retry_after of None */

enum algorithm { FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW, TOKEN_BUCKET, LEAKY_BUCKET, GCRA, UNLIMITED };

/* Where the windows of FIXED_WINDOW start. */
enum starts { AT_MULTIPLES, BY_CALENDAR, BY_FIRST_USE };

typedef struct {
    enum algorithm algorithm;
    enum starts starts;
    bool wall;    /* decided by the time of day, not by the monotonic clock */
    bool leases;  /* concurrency: a log of when leases end, each with its id */
    u64 count;
    u64 micros;   /* the period */
    u64 window;   /* of a log: an entry counts until so long after its instant: the period; 0 for leases */
    u64 reach;    /* of a log: how far after now an instant may be: 0; the period for leases */
    u64 slices;
    u64 capacity;
    u64 unit;     /* ticks in one unit of cost */
    u64 drain;    /* ticks in a microsecond */
    u128 full;    /* ticks in a burst */
    u128 ceiling; /* ticks that a state owes at most, unless it is in debt */
    u64 owes;     /* units that a debit makes a key owe at most */
    const u64 *edges; /* of a calendar: where its windows begin; the Python limit owns them */
    u64 edge_count;
} Limit;

static inline u64 least(u64 a, u64 b) { return a < b ? a : b; }

/* Most values fit the machine's own division, which is several times faster. */
static inline u64 divided(u128 value, u64 by) {
    return value >> 64 ? (u64)(value / by) : (u64)value / by;
}

static inline u64 divided_up(u128 value, u64 by) { return divided(value + by - 1, by); }

/* Twin of limit.py's slack, in `full` and above: what a step back of the clock may add to a burst. */
static inline u128 ceiling_of(const Limit *limit) {
    u128 most = (u128)limit->micros * limit->drain;
    most = limit->full < most ? limit->full : most;
    u64 slack = most > limit->unit ? divided(most - limit->unit, limit->drain) : 0;
    return limit->full + (u128)slack * limit->drain;
}

#endif
