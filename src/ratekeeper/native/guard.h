/* How processes share a table: slots that are swapped atomically, and a guard for each region.
 *
 * A packed slot is sixteen bytes and is written by one compare-and-swap: a process killed at any instruction leaves
 * the old state or the new one.  A wide record is written under the region's guard, a robust mutex.  If one word
 * changes, it is written atomically.  If several do, the old words are saved first, and the next process that finds the
 * guard's owner dead restores them.  The dead process had not returned its decision, so nothing is admitted twice, and
 * nothing is lost but what it was about to take.
 *
 * A slot that a plan of several keys has read is marked busy while the plan is decided: other processes do not swap it,
 * and wait for the guard.  Only the owner of a guard marks slots, so the owner removes any mark that is not its own:
 * it is of a process that died.
 *
 * A file may be damaged.  No mutex function is called on a mutex of another kind than these, as some kinds abort or wait
 * in the kernel for ever; and no thread waits longer for a guard than GUARD_MICROS, as its owner may be stopped, or made up.
 * It waits without the interpreter's lock, and without other guards, so that nobody else waits for it.
 */
#ifndef RATEKEEPER_GUARD_H
#define RATEKEEPER_GUARD_H

#include <errno.h>
#include <pthread.h>
#include <time.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "numbers.h"

#define PRINT_MASK ((((u64)1) << 48) - 1)
#define BUSY ((u64)1 << 15)
#define HIGH_MASK (BUSY - 1)

typedef struct {
    u64 high; /* 48 bits of the key's hash, the busy mark, the upper 15 bits of the state */
    u64 low;
} __attribute__((aligned(16))) Slot;

static inline u64 print_in(Slot slot) { return slot.high >> 16; }
static inline u128 state_in(Slot slot) { return (u128)(slot.high & HIGH_MASK) << 64 | slot.low; }
static inline bool is_busy(Slot slot) { return slot.high & BUSY; }

static inline Slot slot_with(u64 print, u128 state) {
    return (Slot){print << 16 | (u64)(state >> 64), (u64)state};
}

#if defined(__x86_64__)
#define CAN_SWAP true
/* Write `new` if the slot is still `old`; returns whether it was. */
static inline bool swap_slot(Slot *slot, Slot old, Slot new) {
    bool swapped;
    __asm__ __volatile__("lock cmpxchg16b %1"
                         : "=@ccz"(swapped), "+m"(*slot), "+a"(old.high), "+d"(old.low)
                         : "b"(new.high), "c"(new.low)
                         : "memory");
    return swapped;
}
#else /* without such swaps every shared record is a wide one, under its guard */
#define CAN_SWAP false
static inline bool swap_slot(Slot *slot, Slot old, Slot new) {
    (void)old;
    *slot = new;
    return true;
}
#endif

/* The two halves may be of different swaps; a swap that expects such a value fails. */
static inline Slot read_slot(const Slot *slot) {
    return (Slot){__atomic_load_n(&slot->high, __ATOMIC_RELAXED), __atomic_load_n(&slot->low, __ATOMIC_RELAXED)};
}

typedef struct {
    pthread_mutex_t mutex;
    u64 noted;    /* 1: the record of `slot` is being written, and `before` is its old value */
    u64 slot;
    u64 before[]; /* the words of a record outside its rings */
} Guard;

#ifdef __linux__
/* False if this system has no such mutexes. */
static inline bool make_guard(Guard *guard) {
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind))
        return false;
    bool made = !pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) &&
                !pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) && !pthread_mutex_init(&guard->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    return made;
}
#define OWNER_DIED EOWNERDEAD
#define GUARD_MICROS 200000 /* a guard is owned for microseconds, unless its owner is stopped or the machine is busy */
#define OWNER 0x3FFFFFFFu
#define OWNER_IS_DEAD 0x40000000u
#define MOST_THREADS (1u << 22) /* no thread's id is above it: the kernel's PID_MAX_LIMIT */

/* Constant from the first use of a mutex to the last. */
static inline int kind_of(const pthread_mutex_t *mutex) {
#ifdef __GLIBC__
    return mutex->__data.__kind;
#else
    return *(const int *)mutex; /* musl */
#endif
}

static inline bool has_right_kind(const Guard *guard) {
    static int right_kind; /* never 0 once it is known; the same in all threads */
    int right = __atomic_load_n(&right_kind, __ATOMIC_RELAXED);
    if (!right) {
        Guard sound;
        right = make_guard(&sound) ? kind_of(&sound.mutex) : -1;
        __atomic_store_n(&right_kind, right, __ATOMIC_RELAXED);
    }
    return kind_of(&guard->mutex) == right;
}

/* The id of the thread that owns the guard, and marks: that it is dead, that others wait. */
static inline uint32_t lock_word(const Guard *guard) {
#ifdef __GLIBC__
    return (uint32_t)__atomic_load_n(&guard->mutex.__data.__lock, __ATOMIC_RELAXED);
#else
    return (uint32_t)__atomic_load_n((const int *)&guard->mutex + 1, __ATOMIC_RELAXED);
#endif
}

/* False only if the guard is damaged.  A made-up owner with a possible id is found by waiting in vain. */
static inline bool is_sound(const Guard *guard) {
    uint32_t word = lock_word(guard), owner = word & OWNER;
    return has_right_kind(guard) && (!word || word & OWNER_IS_DEAD || (owner && owner <= MOST_THREADS));
}

/* Lets other threads of the interpreter run while a statement waits; nothing outside of an interpreter. */
#ifndef WHILE_WAITING
#define WHILE_WAITING(statement) statement
#endif

/* The guard is owned: wait, but not for an owner that this process has waited for in vain already. */
static __attribute__((noinline)) int wait_for_guard(Guard *guard, uint32_t *vain, u64 micros) {
    uint32_t owner = lock_word(guard) & OWNER;
    if (!is_sound(guard))
        return ENOTRECOVERABLE;
    if (owner && owner == __atomic_load_n(vain, __ATOMIC_RELAXED))
        return ETIMEDOUT;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)micros * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int error;
    WHILE_WAITING(error = pthread_mutex_timedlock(&guard->mutex, &until));
    if (error == ETIMEDOUT && micros == GUARD_MICROS)
        __atomic_store_n(vain, lock_word(guard) & OWNER, __ATOMIC_RELAXED);
    return error;
}
static inline int make_consistent(Guard *guard) { return pthread_mutex_consistent(&guard->mutex); }

/* The memory of a guard that this thread owns is gone (see mapping.h): forget it.  The thread's list of owned mutexes
 * leads through the guard itself, so the whole list is emptied; no other robust mutex is owned for longer than a decision.
 */
static __attribute__((noinline)) void forget_owned(void) {
    struct {
        void *next;
    } *list = NULL;
    size_t bytes = 0;
    if (!syscall(SYS_get_robust_list, 0, &list, &bytes) && list)
        list->next = list;
}
#else /* other systems have private tables only */
static inline bool make_guard(Guard *guard) { return (void)guard, false; }
#define OWNER_DIED -1
#define GUARD_MICROS 200000
static inline bool has_right_kind(const Guard *guard) { return (void)guard, true; }
static inline bool is_sound(const Guard *guard) { return (void)guard, true; }
static inline int wait_for_guard(Guard *guard, uint32_t *vain, u64 micros) {
    return (void)guard, (void)vain, (void)micros, EBUSY;
}
static inline int make_consistent(Guard *guard) { return (void)guard, 0; }
static inline void forget_owned(void) {}
#endif

#endif
