/* cycle_clock: the clock of private tables in a simulated machine, whose counter jumps, changes its rate and starts over.
 *
 * cycle_clock SEED STEPS EVENTS: events (suspensions, moves to another machine, steps of the time of day) happen if
 * EVENTS is 1.  It prints the worst errors, and how many readings came from the counter.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static long double monotonic, wall_ahead, counter, frequency, slew;
static uint64_t chance, reads;

static uint64_t draw(uint64_t below) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return chance % below;
}

static void pass(long double nanos) {
    monotonic += nanos * (1 + slew);
    counter += nanos * frequency;
}

/* Each look takes no time or some nanoseconds, and now and then something interrupts. */
static uint64_t look(long double what) {
    reads++;
    return (uint64_t)what;
}
static void work(void) { pass(!draw(500) ? (long double)draw(3000000) : draw(2) ? 0 : (long double)draw(50)); }
static uint64_t counter_of_test(void) { work(); uint64_t seen = look(counter); work(); return seen; }
static uint64_t clock_of_test(int wall) { work(); uint64_t seen = look(monotonic + (wall ? wall_ahead : 0)); work(); return seen; }
#define COUNTER_OF_TEST counter_of_test
#define CLOCK_OF_TEST clock_of_test
#include "../../src/ratekeeper/native/cycle_clock.h"

#define BEHIND 200 /* nanoseconds: the bound that docs/explain/native.md states */

static void fail(const char *what, uint64_t step, long double error) {
    printf("%s at step %" PRIu64 ": %.0Lf ns\n", what, step, error);
    exit(1);
}

int main(int count, char **arguments) {
    (void)count;
    chance = (uint64_t)atoll(arguments[1]) * 0x9E3779B97F4A7C15ULL + 1;
    uint64_t steps = (uint64_t)atoll(arguments[2]), latest = 0, counted = 0, anchored = 0;
    bool events = arguments[3][0] == '1';
    CycleClock clock = {.widest = WIDEST_UNKNOWN, .on = true};
    long double worst_ahead = 0, worst_behind = 0, settled = 0, stepped = 0;
    int measures = 9; /* since the counter changed */
    monotonic = 1e12L, wall_ahead = 1.7e18L, counter = 5e12L, frequency = 0.9L + (long double)draw(4000) / 1000;
    for (uint64_t step = 0; step < steps; step++) {
        uint64_t kind = draw(100000);
        pass(kind < 90000 ? (long double)draw(2000) : kind < 99990 ? (long double)draw(300000) : (long double)draw(3000000000));
        if (!draw(2000)) /* the rate of the clock is adjusted, as adjtimex does */
            slew = ((long double)draw(1001) - 500) / 1e6L;
        if (events && !draw(5000)) {
            switch (draw(4)) {
            case 0: /* suspended: the counter goes on, and the clock does not */
                counter += (long double)draw(1000000000000ULL);
                break;
            case 1: /* suspended: the counter starts over */
                counter = (long double)draw(1000000);
                break;
            case 2: /* moved: another counter, at the worst one that continues the last anchor */
                counter = draw(2) ? (long double)draw(1ULL << 50) : (long double)clock.anchors[0].cycles + (long double)draw(20000);
                frequency = 0.9L + (long double)draw(4000) / 1000; /* GHz */
                monotonic += (long double)draw(1000000000);
                break;
            default: /* the time of day is set */
                wall_ahead += (long double)draw(7200000000000ULL) - 3600e9L;
                stepped = monotonic + LIFE * 2;
                continue;
            }
            measures = 0; /* the first that ends may have begun before */
            settled = monotonic + LIFE * 2;
        }
        bool wall = draw(2);
        Anchor begun = clock.begun;
        uint64_t seen = reads;
        long double before = monotonic, off = wall ? wall_ahead : 0;
        long double nanos = (long double)private_nanos(&clock, wall);
        long double ahead = nanos - monotonic - off, behind = before + off - nanos;
        measures += begun.nanos != clock.begun.nanos;
        counted += reads - seen == 1;
        anchored += reads - seen != 1;
        if (!wall && nanos < (long double)latest)
            fail("went back", step, (long double)latest - nanos);
        latest = wall ? latest : (uint64_t)nanos;
        if (!wall && ahead > LIFE)
            fail("more than the life of an anchor ahead", step, ahead);
        if (measures < 2 || before < settled || (wall && before < stepped))
            continue;
        if (ahead > 0)
            fail("ahead", step, ahead);
        if (behind > BEHIND)
            fail("behind", step, behind);
        worst_ahead = ahead > worst_ahead ? ahead : worst_ahead;
        worst_behind = behind > worst_behind ? behind : worst_behind;
    }
    printf("%.0Lf ahead, %.0Lf behind, %" PRIu64 " counted, %" PRIu64 " anchored\n", worst_ahead, worst_behind, counted, anchored);
    return 0;
}
