/* check_each: decide prepared plans one after the other, each at its own instant instead of the clock's.  Twin of
 * check_each in lab/decide_batch.py, for the millions of decisions of a replay or a simulation.
 */
#include "batch.h"

/* The memory of the current plan: laid out once for all consecutive checks of that plan. */
typedef struct {
    PreparedObject *plan; /* owned */
    PyObject *keys;       /* owned: the keys of the previous check, whose hashes are still in the items */
    Batch batch;
} Slate;

static void clear_slate(Slate *slate) {
    Py_CLEAR(slate->keys);
    Py_CLEAR(slate->plan);
    PyMem_Free(slate->batch.memory);
    slate->batch.memory = NULL;
}

static bool lay_out(Slate *slate, PreparedObject *plan) {
    clear_slate(slate);
    slate->batch = (Batch){.count = plan->count, .tables = plan->tables, .memory = PyMem_Malloc(plan->bytes + 1)};
    if (!slate->batch.memory) {
        PyErr_NoMemory();
        return false;
    }
    slate->plan = (PreparedObject *)Py_NewRef((PyObject *)plan);
    share_out(&slate->batch, slate->batch.memory);
    return true;
}

static bool instant_from(State *state, PyObject *time, u64 *now) {
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(time, &overflow);
    if (value == -1 && !overflow && PyErr_Occurred())
        return false;
    if (overflow || value < 0 || (u64)value >= MOST_NOW) {
        PyErr_Format(state->invalid, "check_each: expected microseconds from 0 to 142 years, got %S.", time);
        return false;
    }
    *now = (u64)value;
    return true;
}

/* Microseconds until the turn of an admitted call. */
static i64 longest_delay(const Batch *batch, u64 now) {
    const Evidence *evidence = batch->evidence;
    u64 longest = 0;
    for (int index = 0; index < batch->count; index++) {
        const Item *item = batch->items + index;
        for (uint32_t each = 0; item->key_table && each < shape_in(item)->parts; each++, evidence++)
            if (item->limits[each].algorithm == LEAKY_BUCKET) {
                u64 delay = leaky_bucket_delay(joined(evidence->word), now, item->limits + each, item->cost);
                longest = delay > longest ? delay : longest;
            }
    }
    return (i64)longest;
}

/* Decide a plan of one limit on a table of this process, as Table.check does. */
static bool decide_one(Batch *batch, u64 now) {
    Item *item = batch->items;
    Region *region = region_of(item->key_table, item->hash);
    spin_lock(&region->lock);
    bool kept = check_private(item->key_table, place_of(item->key_table, item->hash), item->limits, now, item->cost, batch->evidence);
    spin_unlock(&region->lock);
    item->allowed = batch->evidence->allowed;
    if (!kept)
        PyErr_NoMemory();
    return kept;
}

static bool decide_all(Batch *batch, u64 now) {
    int regions = lock_items(batch, 0, batch->count);
    if (regions < 0)
        return false;
    for (int index = 0; index < batch->count; index++)
        read_item(batch->items, index);
    for (int index = 0; index < batch->count; index++)
        batch->items[index].now = now;
    bool kept = check_all(batch->items, batch->count, false, batch->evidence);
    unlock_all(batch->order, regions);
    if (!kept)
        PyErr_NoMemory();
    return kept;
}

/* The result in columns: admitted or not, the turn of each call, and the refusals. */
typedef struct {
    char *allowed;
    i64 *turns;
    i64 *refused; /* three numbers each: the place of the call, the row of the plan that refuses for longest, the wait (-1: forever) */
    Py_ssize_t refusals;
} Found;

static void tell_refusal(const Batch *batch, u64 now, i64 place, i64 *told) {
    const Evidence *evidence = batch->evidence;
    i64 longest = -1;
    told[0] = place;
    for (int index = 0; index < batch->count; index++) {
        const Item *item = batch->items + index;
        i64 wait = 0;
        for (uint32_t each = 0; item->key_table && each < shape_in(item)->parts; each++, evidence++) {
            i64 own = item->allowed ? 0 : retry_from(evidence, item->limits + each, now, item->cost);
            wait = own == NEVER || wait == NEVER ? NEVER : own > wait ? own : wait;
        }
        if (item->allowed || (wait != NEVER && wait <= longest))
            continue;
        longest = wait;
        told[1] = index;
        told[2] = wait == NEVER ? -1 : wait;
        if (wait == NEVER)
            return;
    }
}

static bool check_at(Slate *slate, PyObject *keys, u64 now, Py_ssize_t place, Found *found) {
    Batch *batch = &slate->batch;
    if (!hash_keys(slate->plan, keys, slate->keys, batch->items))
        return false;
    PyObject *before = slate->keys;
    slate->keys = Py_NewRef(keys);
    Py_XDECREF(before);
    const KeyTable *key_table = batch->count == 1 ? batch->items->key_table : NULL;
    if (key_table && !key_table->shape->shared && key_table->shape->parts == 1 ? !decide_one(batch, now) : !decide_all(batch, now))
        return false;
    bool allowed = true;
    for (int index = 0; index < batch->count; index++)
        allowed = allowed && batch->items[index].allowed;
    found->allowed[place] = allowed;
    found->turns[place] = (i64)now + (allowed ? longest_delay(batch, now) : 0);
    if (!allowed)
        tell_refusal(batch, now, place, found->refused + 3 * found->refusals++);
    return true;
}

static bool check_way(State *state, Slate *slate, PyObject *way, PyObject *subject, PyObject *time, Py_ssize_t place,
                      Found *found) {
    u64 now;
    if (!PyTuple_Check(way)) {
        PyErr_Format(PyExc_TypeError, "check_each: expected tuples of a plan and keys, got %R", (PyObject *)Py_TYPE(way));
        return false;
    }
    PyObject *plan = PyTuple_GetItem(way, 0), *known = plan ? PyTuple_GetItem(way, 1) : NULL;
    if (!known || !instant_from(state, time, &now))
        return false;
    found->allowed[place] = true;
    found->turns[place] = (i64)now;
    if (plan == Py_None)
        return true;
    if (Py_TYPE(plan) != state->prepared_type) {
        PyErr_Format(PyExc_TypeError, "check_each: expected a prepared plan or None, got %R", (PyObject *)Py_TYPE(plan));
        return false;
    }
    if ((PyObject *)slate->plan != plan && !lay_out(slate, (PreparedObject *)plan))
        return false;
    PyObject *keys = PyObject_GetItem(known, subject);
    bool done = keys && are_keys_of(slate->plan, keys) && check_at(slate, keys, now, place, found);
    Py_XDECREF(keys);
    return done;
}

/* check_each(plans, clients, times): lists of the same length. */
PyObject *check_each(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *lists[3];
    if (!PyArg_ParseTuple(args, "O!O!O!:check_each", &PyList_Type, lists, &PyList_Type, lists + 1, &PyList_Type, lists + 2))
        return NULL;
    Py_ssize_t count = PyList_Size(lists[0]);
    if (PyList_Size(lists[1]) != count || PyList_Size(lists[2]) != count)
        return PyErr_Format(PyExc_ValueError, "check_each: expected %zd clients and times, as many as plans", count);
    Slate slate = {NULL, NULL, {0}};
    Found found = {PyMem_Malloc((size_t)count + 1), PyMem_Malloc((size_t)count * sizeof(i64) + 1),
                   PyMem_Malloc(3 * (size_t)count * sizeof(i64) + 1), 0};
    PyObject *answer = NULL;
    bool done = found.allowed && found.turns && found.refused;
    if (!done)
        PyErr_NoMemory();
    for (Py_ssize_t place = 0; done && place < count; place++) {
        PyObject *own[3] = {NULL, NULL, NULL}; /* owned: looking up keys may run Python code that changes these lists */
        for (int index = 0; done && index < 3; index++)
            done = (own[index] = PyList_GetItem(lists[index], place)) && Py_NewRef(own[index]);
        done = done && check_way(state, &slate, own[0], own[1], own[2], place, &found);
        for (int index = 0; index < 3; index++)
            Py_XDECREF(own[index]);
    }
    clear_slate(&slate);
    if (done)
        answer = Py_BuildValue("(y#y#y#)", found.allowed, count, (const char *)found.turns, count * (Py_ssize_t)sizeof(i64),
                               (const char *)found.refused, 3 * found.refusals * (Py_ssize_t)sizeof(i64));
    PyMem_Free(found.allowed);
    PyMem_Free(found.turns);
    PyMem_Free(found.refused);
    return answer;
}
