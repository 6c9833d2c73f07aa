/* killed SCENARIO [STRIDE [FIRST]]: a process is killed after every STRIDE-th instruction of a decision on shared memory.
 *
 * The parent steps its child one instruction at a time, kills it there, and then uses the table itself: it must not
 * wait for the dead, and what it is admitted must be all that was left, or that less what the dead one was taking.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../src/ratekeeper/native/hot.h"

#define COUNT 12
#define TAKEN 3 /* before the child comes */
#define COST 2  /* what the child takes */
#define NOW 5000000000ULL
#define SLICE 720000000ULL
#define LATER (NOW + SLICE) /* the next of five slices: every counter moves */
#define KEY 0x123456789ABCDEF1ULL
#define OTHER 0x123456789ABCDEF2ULL

/* A bucket that hardly drains, and windows that hold all this. */
static Limit limit_of(enum algorithm algorithm, u64 slices) {
    u64 unit = 1000000000000ULL;
    Limit limit = {.algorithm = algorithm, .count = COUNT, .capacity = COUNT, .slices = slices, .unit = unit, .drain = 1,
                   .micros = slices > 1 ? slices * SLICE : 100000000000ULL,
                   .window = 100000000000ULL, .full = (u128)COUNT * unit};
    limit.ceiling = ceiling_of(&limit);
    return limit;
}

typedef struct {
    const char *name;
    int parts[2];      /* of each key_table; 0: there is no second one */
    Limit limits[2][3];
    bool known;        /* the child's key is there already */
    bool refund;       /* the child gives back, from the middle of what was taken */
    bool crowded;      /* one bucket's worth of slots, all taken: the child's key takes the place of another */
    bool wide;         /* as a machine has it that cannot swap a slot, or as a larger count needs it */
} Scenario;

static KeyTable *key_tables[2];
static void *memory[2];
static size_t bytes[2];
static u64 words[8][256];

static int fill(const Scenario *scenario, Item *items, u64 hash, u64 cost) {
    int count = 0;
    for (int index = 0; index < 2 && scenario->parts[index]; index++, count++)
        items[count] = (Item){.key_table = key_tables[index], .limits = scenario->limits[index], .hash = hash, .cost = cost,
                              .old = words[2 * index], .new = words[2 * index + 1]};
    return count;
}

static bool check(const Scenario *scenario, u64 hash, u64 cost, u64 now) {
    Item items[2], *order[2];
    Evidence evidence[6];
    int error, count = fill(scenario, items, hash, cost);
    if (count == 1 && key_tables[0]->shape->packed &&
        check_shared(key_tables[0], place_of(key_tables[0], hash), scenario->limits[0], false, &now, cost, evidence))
        return evidence[0].allowed;
    if (count == 1 && !key_tables[0]->shape->packed && key_tables[0]->shape->parts == 1 &&
        check_guarded(key_tables[0], (Place[]){place_of(key_tables[0], hash)}, scenario->limits[0], false, &now, cost, evidence))
        return evidence[0].allowed;
    int regions = lock_all(items, count, order, &error);
    if (error)
        exit(3);
    for (int index = 0; index < count; index++)
        read_item(items, index);
    for (int index = 0; index < count; index++)
        items[index].now = now;
    check_all(items, count, false, evidence);
    unlock_all(order, regions);
    return items[0].allowed && items[count - 1].allowed;
}

static void refund(const Scenario *scenario, u64 hash, u64 cost, u64 now, i64 at) {
    Item items[2], *order[2];
    Evidence evidence[6];
    int error;
    fill(scenario, items, hash, cost);
    int regions = lock_all(items, 1, order, &error);
    read_item(items, 0);
    items->now = now;
    change_item(items, REFUND, at, evidence);
    unlock_all(order, regions);
}

static void act(const Scenario *scenario) {
    if (scenario->refund)
        refund(scenario, KEY, COST, LATER, NOW - 1);
    else
        check(scenario, KEY, COST, LATER);
}

static void prepare(const Scenario *scenario) {
    u64 seed[2] = {1, 2};
    for (int index = 0; index < 2 && scenario->parts[index]; index++) {
        Shape *shape = shape_of(scenario->limits[index], scenario->parts[index], true, CAN_SWAP && !scenario->wide);
        uint32_t buckets = scenario->crowded ? 1 : 4;
        bytes[index] = shared_bytes(shape, 1, buckets);
        memory[index] = mmap(NULL, bytes[index], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory[index] == MAP_FAILED || !make_shared(shape, memory[index], 1, buckets))
            exit(3);
        key_tables[index] = shared_key_table(shape, memory[index], 1, buckets, seed, 7 - index);
    }
    if (scenario->known)
        for (u64 unit = 0; unit < TAKEN; unit++)
            check(scenario, KEY, 1, NOW - (TAKEN - 1 - unit) * SLICE);
    check(scenario, OTHER, COUNT, NOW);
    for (u64 key = 0; scenario->crowded && key < BUCKET; key++)
        check(scenario, KEY + 16 * (key + 1), key + 1, NOW);
}

static void finish(const Scenario *scenario) {
    for (int index = 0; index < 2 && scenario->parts[index]; index++) {
        drop_key_table(key_tables[index]);
        munmap(memory[index], bytes[index]);
    }
}

static void fail(const Scenario *scenario, long steps, const char *what, u64 value) {
    fprintf(stderr, "%s: killed after %ld instructions: %s %llu\n", scenario->name, steps, what, (unsigned long long)value);
    exit(1);
}

/* What is kept for the child's key in one key_table: whether it is there, then each part; a log with all its instants. */
static int capture(const Scenario *scenario, int which, u64 *into, int *starts) {
    Item items[2], *order[2];
    int error, length = 0;
    fill(scenario, items, KEY, 1);
    Item *item = items + which;
    int regions = lock_all(item, 1, order, &error);
    read_item(item, 0);
    into[length++] = item->slot >= 0;
    for (uint32_t each = 0; each < shape_in(item)->parts; each++) {
        const Part *part = shape_in(item)->part + each;
        starts[each] = length;
        if (part->algorithm != SLIDING_LOG) {
            memcpy(into + length, item->old + part->offset, part->words * sizeof(u64));
            length += part->words;
            continue;
        }
        Log found = item_log(item, part, item->old);
        into[length++] = log_length(&found);
        for (u64 index = 0; index < log_length(&found); index++)
            into[length++] = *log_at(&found, index);
    }
    starts[shape_in(item)->parts] = length;
    leave_item(item);
    unlock_all(order, regions);
    return length;
}

typedef struct {
    u64 row[2][64];
    int starts[2][5];
} Picture;

static Picture picture(const Scenario *scenario) {
    Picture found = {0};
    for (int which = 0; which < 2 && scenario->parts[which]; which++)
        capture(scenario, which, found.row[which], found.starts[which]);
    return found;
}

static bool same_part(const Picture *a, const Picture *b, int which, int part) {
    int length = a->starts[which][part + 1] - a->starts[which][part];
    return length == b->starts[which][part + 1] - b->starts[which][part] &&
           !memcmp(a->row[which] + a->starts[which][part], b->row[which] + b->starts[which][part], length * sizeof(u64));
}

/* Every part is as it was before or as it is after; those outside logs all alike. */
static bool is_whole(const Scenario *scenario, const Picture *seen, const Picture *before, const Picture *after) {
    for (int which = 0; which < 2 && scenario->parts[which]; which++) {
        bool all_before = true, all_after = true;
        for (int part = 0; part < scenario->parts[which]; part++) {
            bool old = same_part(seen, before, which, part), new = same_part(seen, after, which, part);
            if (!old && !new)
                return false;
            if (scenario->limits[which][part].algorithm != SLIDING_LOG) {
                all_before = all_before && old;
                all_after = all_after && new;
            }
        }
        if (!all_before && !all_after)
            return false;
    }
    return true;
}

/* Whether the child was still at it after so many instructions. */
static bool kill_after(const Scenario *scenario, long steps, const Picture *before, const Picture *after) {
    prepare(scenario);
    pid_t child = fork();
    if (child < 0) { /* never to be signalled: -1 means everybody */
        perror("fork");
        exit(3);
    }
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0))
            _exit(77);
        raise(SIGSTOP);
        __asm__ __volatile__("int3"); /* from here on the parent counts */
        act(scenario);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child)
        exit(3);
    if (WIFEXITED(status))
        exit(WEXITSTATUS(status)); /* 77: stepping is not allowed here */
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    for (long step = 0; step < steps && WIFSTOPPED(status); step++) {
        ptrace(PTRACE_SINGLESTEP, child, 0, 0);
        waitpid(child, &status, 0);
    }
    bool busy = WIFSTOPPED(status);
    if (busy) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    alarm(5); /* whoever waits for the dead is stopped by this */
    Picture seen = picture(scenario);
    if (!scenario->refund && !is_whole(scenario, &seen, before, after))
        fail(scenario, steps, "a state is neither the old nor the new one", 0);
    u64 taken = scenario->known ? TAKEN : 0, admitted = 0;
    while (check(scenario, KEY, 1, LATER) && admitted <= 2 * COUNT)
        admitted++;
    alarm(0);
    u64 most = COUNT - taken + (scenario->refund ? COST : 0);
    if (admitted > most)
        fail(scenario, steps, "admitted too much:", admitted);
    if (admitted + COST < most)
        fail(scenario, steps, "lost more than it was taking; admitted", admitted);
    if (!scenario->crowded && check(scenario, OTHER, 1, LATER))
        fail(scenario, steps, "another key was reset", 0);
    finish(scenario);
    return busy;
}

int main(int count, char **arguments) {
    Limit bucket = limit_of(GCRA, 1), fixed = limit_of(FIXED_WINDOW, 1), sliding = limit_of(SLIDING_WINDOW, 1);
    Limit log = limit_of(SLIDING_LOG, 1), sliced = limit_of(SLIDING_WINDOW, 5);
    Scenario scenarios[] = {
        {"packed", {1}, {{bucket}}, true},
        {"packed-new", {1}, {{fixed}}, false},
        {"packed-crowded", {1}, {{sliding}}, false, false, true},
        {"wide", {1}, {{sliced}}, true},
        {"wide-still", {1}, {{sliding}}, true, .wide = true}, /* only the newest counter changes */
        {"wide-bucket", {1}, {{bucket}}, true, .wide = true},
        {"wide-new", {1}, {{sliced}}, false},
        {"wide-crowded", {1}, {{sliced}}, false, false, true},
        {"log", {1}, {{log}}, true},
        {"log-new", {1}, {{log}}, false},
        {"log-refund", {1}, {{log}}, true, true},
        {"several", {3}, {{bucket, log, sliced}}, true},
        {"several-new", {3}, {{bucket, log, sliced}}, false},
        {"plan", {1, 2}, {{bucket}, {fixed, log}}, true},
        {"plan-new", {1, 2}, {{bucket}, {fixed, log}}, false},
    };
    long stride = count > 2 ? atol(arguments[2]) : 1, first = count > 3 ? atol(arguments[3]) : 0;
    for (size_t index = 0; index < sizeof(scenarios) / sizeof(*scenarios); index++) {
        if (count > 1 && strcmp(arguments[1], "all") && strcmp(arguments[1], scenarios[index].name))
            continue;
        prepare(scenarios + index);
        Picture before = picture(scenarios + index);
        act(scenarios + index);
        Picture after = picture(scenarios + index);
        finish(scenarios + index);
        long steps = first;
        while (kill_after(scenarios + index, steps, &before, &after))
            steps += stride;
        printf("%s: %ld instructions\n", scenarios[index].name, steps);
        fflush(stdout);
    }
    return 0;
}
