/* The clock of tables in this process: the processor's counter of cycles between two looks at the system's clock.
 *
 * Reading the system's clock takes half of a decision.  A look at it is an *anchor*: the counter and the time that
 * belong together.  For LIFE after it, the time is that of the anchor plus what the counter says has passed since.
 *
 * - Never ahead: the counter is read after the clock, and counted a 512th too slow, which is more than the clock's
 *   rate may be adjusted by.  So a new anchor never steps back.  The monotonic clock is held to that in any case.
 * - Less than 0.2 microseconds behind: WIDEST for the look, which is not used if it took longer, 50 ns for the rate.
 * - Whatever happens to the counter (a suspended machine, a move to another), an anchor is not used for longer than
 *   LIFE, and its time is at most LIFE ahead.  At each anchor the rate is checked; if it is not what it was, the system's
 *   clock is read until two measurements agree again.
 *
 * Shared tables do not use it: their processes have one clock, the system's.  docs/decisions/0026-cycle-clock.md
 */
#ifndef RATEKEEPER_CYCLE_CLOCK_H
#define RATEKEEPER_CYCLE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define LIFE 16000             /* nanoseconds */
#define WIDEST 150             /* nanoseconds, of a look at the clock between two looks at the counter */
#define ROUNDING 4             /* nanoseconds: a cycle and a nanosecond have fractions that are not seen */
#define WIDEST_UNKNOWN 500     /* the same in cycles, as long as their rate is not known */
#define SHORTEST_MEASURE 4000000    /* nanoseconds, of the rate */
#define LONGEST_MEASURE 1000000000

typedef struct {
    uint64_t cycles, nanos;
} Anchor;

typedef struct {
    uint64_t rate;     /* nanoseconds a cycle, times 2^32, less a 512th */
    uint64_t life;     /* of an anchor, in cycles; 0: the counter is not used now */
    uint64_t latest;   /* the monotonic nanoseconds given last: none later is less */
    Anchor anchors[2]; /* of the monotonic clock, and of the time of day */
    Anchor begun;      /* of the measurement that is under way */
    uint64_t measured; /* by the last one: nanoseconds a cycle, times 2^32; 0: there was none */
    uint64_t widest;   /* in cycles */
    bool on;           /* the counter may be used */
} CycleClock;

static inline uint64_t system_nanos(bool wall) {
#ifdef CLOCK_OF_TEST
    return CLOCK_OF_TEST(wall);
#else
    struct timespec now;
    clock_gettime(wall ? CLOCK_REALTIME : CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
#endif
}

/* One interpreter lock guards the clock, so a build without it has none. */
#if defined(COUNTER_OF_TEST)
#define HAS_COUNTER 1
#define cycle_counter() COUNTER_OF_TEST()
#define ordered_counter() COUNTER_OF_TEST()
#elif defined(__x86_64__) && defined(__linux__) && !defined(RATEKEEPER_LOCKED)
#define HAS_COUNTER 1
#define cycle_counter() __builtin_ia32_rdtsc()
/* Not before what comes before it, and not after what comes after it. */
static inline uint64_t ordered_counter(void) {
    __builtin_ia32_lfence();
    uint64_t cycles = __builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    return cycles;
}
#else
#define HAS_COUNTER 0
#endif

#if HAS_COUNTER

#define TOO_OLD ((uint64_t)1 << 63) /* cycles, of an anchor that is not used */

/* Forget the rate and the anchors: a counter that started over could come to them again. */
static inline void stop_counting(CycleClock *clock, uint64_t cycles) {
    clock->rate = clock->life = 0;
    clock->anchors[0].cycles = clock->anchors[1].cycles = cycles + TOO_OLD;
}

/* A look at the monotonic clock: measure how long a cycle takes, and compare with the last measurement. */
static void measure_rate(CycleClock *clock, uint64_t cycles, uint64_t nanos) {
    uint64_t passed = nanos - clock->begun.nanos, counted = cycles - clock->begun.cycles;
    if (clock->begun.nanos && passed < SHORTEST_MEASURE && counted < (uint64_t)1 << 32)
        return;
    Anchor begun = clock->begun;
    clock->begun = (Anchor){cycles, nanos};
    /* After a pause anything may have happened; and a counter never stands still. */
    if (!begun.nanos || passed < SHORTEST_MEASURE || passed > LONGEST_MEASURE || counted >> 40 || !counted) {
        stop_counting(clock, cycles);
        return;
    }
    uint64_t before = clock->measured, measured = (passed << 32) / counted;
    uint64_t apart = measured > before ? measured - before : before - measured;
    clock->measured = measured;
    if (apart > measured >> 11) {
        stop_counting(clock, cycles);
        clock->widest = WIDEST_UNKNOWN;
        return;
    }
    clock->rate = measured - (measured >> 9);
    clock->life = ((uint64_t)LIFE << 32) / measured;
    clock->widest = ((uint64_t)WIDEST << 32) / measured;
}

/* Look at the system's clock, and let it be an anchor if nothing interrupted the look. */
static __attribute__((noinline)) uint64_t anchored_nanos(CycleClock *clock, bool wall) {
    if (!clock->on)
        return system_nanos(wall);
    uint64_t before = ordered_counter(), nanos = system_nanos(wall), cycles = ordered_counter();
    bool whole = cycles - before <= clock->widest;
    if (!wall) {
        if (whole)
            measure_rate(clock, cycles, nanos);
    } else if (!clock->life || cycles - clock->begun.cycles > 256 * clock->life) { /* four milliseconds */
        uint64_t then = ordered_counter(), monotonic = system_nanos(false), after = ordered_counter();
        if (after - then <= clock->widest)
            measure_rate(clock, after, monotonic);
    }
    nanos -= ROUNDING;
    clock->anchors[wall] = (Anchor){whole ? cycles : cycles + TOO_OLD, nanos};
    return nanos;
}

#endif

/* Nanoseconds of the monotonic clock, or of the time of day since 1970. */
static inline uint64_t private_nanos(CycleClock *clock, bool wall) {
#if HAS_COUNTER
    const Anchor *anchor = &clock->anchors[wall];
    uint64_t cycles = cycle_counter() - anchor->cycles, nanos;
    if (__builtin_expect(cycles < clock->life, 1))
        nanos = anchor->nanos + (cycles * clock->rate >> 32);
    else
        nanos = anchored_nanos(clock, wall);
    if (!wall) {
        if (nanos < clock->latest)
            nanos = clock->latest;
        clock->latest = nanos;
    }
    return nanos;
#else
    (void)clock;
    return system_nanos(wall);
#endif
}

#endif
