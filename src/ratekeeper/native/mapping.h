/* Shared tables in memory whose file another process may truncate: to touch a page that is gone must not end us.
 *
 * The system then sends SIGBUS.  If the address is in one of our tables, the handler puts empty memory of our own in the
 * place of the whole table, and the instruction goes on.  Empty memory has no sound guard, so every call on the table
 * raises from then on, until the segment is opened again.  Any other SIGBUS goes to the handler that was there before.
 */
#ifndef RATEKEEPER_MAPPING_H
#define RATEKEEPER_MAPPING_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#define MOST_MAPPINGS 65536

typedef struct {
    uintptr_t start; /* 0: unused */
    uintptr_t bytes;
} Mapping;

static Mapping mappings[MOST_MAPPINGS]; /* the handler reads it at any instant: `bytes` is written before `start` */
static uint32_t mappings_used;
static struct sigaction before_us;

static void on_bus_error(int number, siginfo_t *facts, void *context) {
    uintptr_t address = (uintptr_t)facts->si_addr;
    uint32_t used = __atomic_load_n(&mappings_used, __ATOMIC_ACQUIRE);
    for (uint32_t index = 0; index < used; index++) {
        uintptr_t start = __atomic_load_n(&mappings[index].start, __ATOMIC_ACQUIRE);
        if (!start || address < start || address - start >= mappings[index].bytes)
            continue;
        void *memory = mmap((void *)start, mappings[index].bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (memory != MAP_FAILED)
            return;
    }
    if (before_us.sa_flags & SA_SIGINFO) {
        before_us.sa_sigaction(number, facts, context);
    } else if (before_us.sa_handler != SIG_DFL && before_us.sa_handler != SIG_IGN) {
        before_us.sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the instruction fails again, and ends the process */
    }
}

static inline bool handles_bus_errors(void) {
    struct sigaction present;
    return !sigaction(SIGBUS, NULL, &present) && present.sa_flags & SA_SIGINFO && present.sa_sigaction == on_bus_error;
}

/* The caller holds a lock.  False if there are too many. */
static inline bool protect_mapping(void *memory, size_t bytes) {
    uint32_t index = 0;
    while (index < mappings_used && mappings[index].start)
        index++;
    if (index == MOST_MAPPINGS)
        return false;
    mappings[index].bytes = bytes;
    __atomic_store_n(&mappings[index].start, (uintptr_t)memory, __ATOMIC_RELEASE);
    if (index == mappings_used)
        __atomic_store_n(&mappings_used, index + 1, __ATOMIC_RELEASE);
    if (!handles_bus_errors()) { /* the first table, or another library took the signal since */
        struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        sigaction(SIGBUS, &ours, &before_us);
    }
    return true;
}

static inline void forget_mapping(void *memory) {
    for (uint32_t index = 0; index < mappings_used; index++)
        if (mappings[index].start == (uintptr_t)memory)
            __atomic_store_n(&mappings[index].start, 0, __ATOMIC_RELEASE);
}

#endif
