/* Threads on one connection, late and interrupted at random: each gets its own answer, and nobody is left behind.
 *
 * The server echoes questions of eight bytes, in pieces.  Signals stand in for interruptions: some leave then.
 */
#include <assert.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* What the interpreter lends to line.h. */
typedef sem_t *PyThread_type_lock;
typedef long long PY_TIMEOUT_T;
typedef enum { PY_LOCK_FAILURE, PY_LOCK_ACQUIRED, PY_LOCK_INTR } PyLockStatus;
#define WAIT_LOCK 1
static PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, PY_TIMEOUT_T micros, int interrupts);
static void PyThread_acquire_lock(PyThread_type_lock lock, int waits) { PyThread_acquire_lock_timed(lock, 1LL << 40, !waits); }
static void PyThread_release_lock(PyThread_type_lock lock) { sem_post(lock); }
static void PyThread_free_lock(PyThread_type_lock lock) {
    sem_destroy(lock);
    free(lock);
}

#include "../../src/ratekeeper/native/line.h"

static PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, PY_TIMEOUT_T micros, int interrupts) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long long nanos = until.tv_nsec + micros % 1000000 * 1000;
    until.tv_sec += micros / 1000000 + nanos / 1000000000;
    until.tv_nsec = nanos % 1000000000;
    while (sem_timedwait(lock, &until))
        if (errno == ETIMEDOUT)
            return PY_LOCK_FAILURE;
        else if (interrupts)
            return PY_LOCK_INTR;
    return PY_LOCK_ACQUIRED;
}

#define THREADS 8
static Line line = {.lock = PTHREAD_MUTEX_INITIALIZER, .start = "", .fd = -1, .step = 0.0002};
static int far, calls = 4000;
static long outcomes[5], running;

static unsigned next(unsigned *seed) { return *seed = *seed * 1664525 + 1013904223, *seed >> 8; }

static void *serve(void *unused) {
    (void)unused;
    unsigned seed = 7;
    char question[8], text[32];
    size_t have = 0;
    for (ssize_t got; (got = recv(far, question + have, sizeof question - have, 0)) > 0 || (got < 0 && errno == EINTR);) {
        have += got > 0 ? (size_t)got : 0;
        if (have < sizeof question)
            continue;
        have = 0;
        int size = snprintf(text, sizeof text, "$8\r\n%.8s\r\n", question);
        for (int sent = 0; sent < size;) {
            int piece = 1 + (int)(next(&seed) % (unsigned)size);
            ssize_t done = send(far, text + sent, (size_t)(piece < size - sent ? piece : size - sent), MSG_NOSIGNAL);
            if (done < 0 && errno != EINTR)
                return NULL; /* the other side has ended while late answers were on their way */
            sent += done > 0 ? (int)done : 0;
            if (next(&seed) % 4 == 0)
                sched_yield();
        }
    }
    return NULL;
}

static void *run(void *given) {
    unsigned number = (unsigned)(uintptr_t)given, seed = number * 77 + 1;
    for (int index = 0; index < calls; index++) {
        char question[16];
        snprintf(question, sizeof question, "%u%07d", number, index);
        Call *call = calloc(1, sizeof *call);
        call->kind = COMMAND;
        call->words = question;
        call->words_size = 8;
        call->replies = 1;
        call->gate = malloc(sizeof *call->gate);
        sem_init(call->gate, 0, 0);
        bool is_patient = next(&seed) % 3 == 0, leads = false, is_good = line_up(&line, call, &leads);
        assert(is_good);
        double until = seconds_now() + (is_patient ? 60 : next(&seed) % 300 / 1e6);
        Outcome outcome;
        while ((outcome = take_part(&line, call, &leads, until)) == INTERRUPTED)
            if (!is_patient && next(&seed) % 2) {
                outcome = leave(&line, call, false);
                break;
            }
        __atomic_add_fetch(&outcomes[outcome], 1, __ATOMIC_RELAXED);
        if (outcome == LATE) {
            assert(!is_patient);
            continue; /* the call is the line's */
        }
        assert(outcome == TOLD || (outcome == NOT_SENT && !is_patient));
        if (outcome == TOLD)
            assert(call->type == '$' && call->size == 14 && !memcmp(call->reply + 4, question, 8));
        finish(&line, call);
    }
    __atomic_sub_fetch(&running, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void nothing(int number) { (void)number; }

int main(int count, char **words) {
    if (count > 1)
        calls = atoi(words[1]);
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGUSR1, &action, NULL);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        return 1;
    line.fd = pair[0];
    far = pair[1];
    pthread_t server, threads[THREADS];
    pthread_create(&server, NULL, serve, NULL);
    running = THREADS;
    for (uintptr_t number = 0; number < THREADS; number++)
        pthread_create(&threads[number], NULL, run, (void *)(number + 1));
    for (unsigned turn = 0; __atomic_load_n(&running, __ATOMIC_RELAXED); turn++) {
        pthread_kill(threads[turn % THREADS], SIGUSR1);
        usleep(50);
    }
    for (int number = 0; number < THREADS; number++)
        pthread_join(threads[number], NULL);
    assert(!line.leader && !line.first && !line.last && !line.error);
    for (unsigned number = 0; number < line.in_flight; number++)
        for (Call *call = batch_at(&line, number)->calls, *after; call; call = after) {
            after = call->next;
            assert(call->is_gone);
            free_call(call);
        }
    shutdown(line.fd, SHUT_RDWR);
    pthread_join(server, NULL);
    free(line.out.bytes);
    free(line.in.bytes);
    printf("told %ld, not sent %ld, late %ld\n", outcomes[TOLD], outcomes[NOT_SENT], outcomes[LATE]);
    assert(outcomes[TOLD] && outcomes[LATE]);
    return 0;
}
