/* Whether the processor's counter can be trusted, and how far it is from the system's clock. */
#include "core.h"

#if HAS_COUNTER
#include <cpuid.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#endif

CycleClock cycle_clock;

/* Why the counter is not used; NULL if it is. */
static const char *distrust(void) {
#if HAS_COUNTER
    unsigned a, b, c, d;
    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1 << 8))
        return "the processor has no counter of constant rate";
    int allowed = 0;
    if (prctl(PR_GET_TSC, &allowed) == 0 && allowed == PR_TSC_SIGSEGV)
        return "this process may not read the processor's counter";
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (!file)
        return "the system does not say whether it trusts the processor's counter";
    bool read = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    if (!read || strcmp(name, "tsc\n") != 0)
        return "the system does not trust the processor's counter";
    for (int look = 0; look < 8; look++) {
        uint64_t before = ordered_counter();
        system_nanos(false);
        if (ordered_counter() - before <= WIDEST_UNKNOWN)
            return NULL;
    }
    return "the system's clock takes too long to read";
#else
    return "this build has none for the processor's counter";
#endif
}

/* use_counter(wanted): why the counter is not used, or None. */
PyObject *use_counter(PyObject *module, PyObject *wanted) {
    int is_wanted = PyObject_IsTrue(wanted);
    if (is_wanted < 0)
        return NULL;
    const char *reason = is_wanted ? distrust() : "it was not asked for";
    uint64_t latest = cycle_clock.latest;
    cycle_clock = (CycleClock){.latest = latest, .widest = WIDEST_UNKNOWN, .on = !reason};
    return reason ? PyUnicode_FromString(reason) : Py_NewRef(Py_None);
}

/* compare_clocks(wall, count): read the clock between two looks at the system's, so often. */
PyObject *compare_clocks(PyObject *module, PyObject *args) {
    int wall;
    unsigned long long count;
    if (!PyArg_ParseTuple(args, "pK:compare_clocks", &wall, &count))
        return NULL;
    u64 ahead = 0, behind = 0, back = 0, counted = 0, latest = 0;
    for (u64 look = 0; look < count; look++) {
        u64 seen = cycle_clock.anchors[wall].cycles;
        u64 before = system_nanos(wall), nanos = private_nanos(&cycle_clock, wall), after = system_nanos(wall);
        counted += cycle_clock.life && seen == cycle_clock.anchors[wall].cycles;
        if (after < before)
            continue; /* the time of day was set */
        ahead = nanos > after && nanos - after > ahead ? nanos - after : ahead;
        behind = nanos < before && before - nanos > behind ? before - nanos : behind;
        back += nanos < latest;
        latest = nanos;
    }
    return Py_BuildValue("KKKK", ahead, behind, back, counted);
}
