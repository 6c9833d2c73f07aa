/* Plans in numbers, decided as one. */
#include "batch.h"

static size_t words_of(const TableObject *table) { return table->key_table ? table->key_table->shape->words : 0; }

size_t batch_bytes(TableObject *const *tables, int count) {
    size_t bytes = (size_t)count * (sizeof(Item) + sizeof(Item *));
    for (int index = 0; index < count; index++)
        bytes += tables[index]->terms->parts * sizeof(Evidence) + 2 * words_of(tables[index]) * sizeof(u64);
    return bytes;
}

void share_out(Batch *batch, void *memory) {
    size_t parts = 0;
    batch->items = memory;
    batch->order = (Item **)(batch->items + batch->count);
    batch->evidence = (Evidence *)(batch->order + batch->count);
    for (int index = 0; index < batch->count; index++)
        parts += batch->tables[index]->terms->parts;
    u64 *next = (u64 *)(batch->evidence + parts);
    for (int index = 0; index < batch->count; index++) {
        TableObject *table = batch->tables[index];
        Item *item = batch->items + index; /* the rest is set where the item is read */
        size_t words = words_of(table);
        item->key_table = table->key_table;
        item->limits = table->terms->limits;
        item->old = next;
        item->new = next + words;
        item->lease = NOBODY;
        item->lasts = 0;
        next += 2 * words;
    }
}

static inline size_t cached_at(const PyObject *space, const PyObject *limit) {
    u64 mixed = ((u64)(uintptr_t)space ^ (u64)(uintptr_t)limit << 20) * 0x9E3779B97F4A7C15ULL;
    return mixed >> 56;
}

/* Tables used lately are found in a cache, without a call into Python. */
TableObject *table_for(StoreObject *self, PyObject *space, PyObject *limit) {
    CachedTable *cached = self->cached + cached_at(space, limit);
    TableObject *found = NULL;
    spin_lock(&self->lock);
    if (cached->space == space && cached->limit == limit) {
        found = cached->table;
        Py_INCREF((PyObject *)found);
    }
    spin_unlock(&self->lock);
    if (found)
        return found;
    PyObject *made = PyObject_CallMethodObjArgs((PyObject *)self, self->state->table, space, limit, NULL);
    if (!made)
        return NULL;
    if (Py_TYPE(made) != self->state->table_type) {
        PyErr_Format(PyExc_TypeError, "table: expected a Table, got %R", (PyObject *)Py_TYPE(made));
        Py_DECREF(made);
        return NULL;
    }
    Py_INCREF(space);
    Py_INCREF(limit);
    Py_INCREF(made);
    spin_lock(&self->lock);
    CachedTable old = *cached;
    *cached = (CachedTable){space, limit, (TableObject *)made};
    spin_unlock(&self->lock);
    Py_XDECREF(old.space);
    Py_XDECREF(old.limit);
    Py_XDECREF((PyObject *)old.table);
    return (TableObject *)made;
}

static TableObject *table_of(StoreObject *self, PyObject *check) {
    PyObject *space = PyObject_GetAttr(check, self->state->space);
    PyObject *limit = space ? PyObject_GetAttr(check, self->state->limit) : NULL;
    TableObject *table = limit ? table_for(self, space, limit) : NULL;
    Py_XDECREF(space);
    Py_XDECREF(limit);
    return table;
}

static bool whole_number(PyObject *check, PyObject *name, u64 *number) {
    PyObject *value = PyObject_GetAttr(check, name);
    if (!value)
        return false;
    *number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return !(*number == (u64)-1 && PyErr_Occurred());
}

/* A check that names a lease: how many places, which may be none to give back all; its id; how long it lasts. */
static bool ask_for_lease(State *state, PyObject *check, const TableObject *table, Item *item) {
    PyObject *key = PyObject_GetAttr(check, state->key);
    bool done = key && hash_key(state, table->home->key_table, key, true, &item->hash) &&
                whole_number(check, state->cost, &item->cost) && whole_number(check, state->lasts, &item->lasts);
    Py_XDECREF(key);
    if (done)
        item->cost = least(item->cost, MOST_COST);
    return done;
}

static bool ask_for(State *state, PyObject *check, const TableObject *table, Item *item) {
    if (table->terms->limits->leases) {
        if (!whole_number(check, state->lease, &item->lease))
            return false;
        if (item->lease != NOBODY)
            return ask_for_lease(state, check, table, item);
    }
    PyObject *key = PyObject_GetAttr(check, state->key), *cost = key ? PyObject_GetAttr(check, state->cost) : NULL;
    bool done = cost && hash_key(state, table->home->key_table, key, true, &item->hash) &&
                cost_from(state, cost, &item->cost);
    Py_XDECREF(key);
    Py_XDECREF(cost);
    return done;
}

bool make_batch(StoreObject *self, PyObject *plan, Batch *batch) {
    memset(batch, 0, sizeof(*batch));
    if (!PyTuple_Check(plan)) {
        PyErr_Format(PyExc_TypeError, "plan: expected a tuple of checks, got %R", (PyObject *)Py_TYPE(plan));
        return false;
    }
    int count = (int)PyTuple_Size(plan);
    batch->tables = PyMem_Malloc((size_t)count * sizeof(TableObject *) + 1);
    for (; batch->tables && batch->count < count; batch->count++)
        if (!(batch->tables[batch->count] = table_of(self, PyTuple_GetItem(plan, batch->count)))) {
            drop_batch(batch);
            return false;
        }
    if (batch->tables)
        batch->memory = PyMem_Malloc(batch_bytes(batch->tables, count) + 1);
    if (!batch->memory) {
        drop_batch(batch);
        PyErr_NoMemory();
        return false;
    }
    share_out(batch, batch->memory);
    for (int index = 0; index < count; index++)
        if (!ask_for(self->state, PyTuple_GetItem(plan, index), batch->tables[index], batch->items + index)) {
            drop_batch(batch);
            return false;
        }
    return true;
}

void drop_batch(Batch *batch) {
    for (int index = 0; index < batch->count; index++)
        Py_DECREF((PyObject *)batch->tables[index]);
    PyMem_Free(batch->tables);
    PyMem_Free(batch->memory);
}

/* Counts what other threads wrote: if it differs after a clock in Python was read, the time read is too early. */
static u64 changes_of(const Batch *batch, int from, int until) {
    u64 sum = 0;
    for (int index = from; index < until; index++) {
        KeyTable *key_table = batch->items[index].key_table;
        if (key_table && !key_table->shape->shared) {
            key_table->watched = true;
            sum += changes_in(key_table);
        }
    }
    return sum;
}

int lock_items(Batch *batch, int from, int count) {
    int error, regions = lock_all(batch->items + from, count, batch->order, &error);
    if (!error)
        return regions;
    raise_unlockable(batch->order[0]->key_table, error);
    return -1;
}

/* Each clock of the machine is read once, and only if a limit of the plan follows it.  A clock in Python is the only one.
 * The tables of a store are all shared, or none is.
 */
static void set_instants(Item *items, int count, bool calls, u64 now) {
    u64 read[2] = {now, now};
    bool known[2] = {calls, calls}, shared = false;
    for (int index = 0; index < count; index++)
        shared = shared || (items[index].key_table && items[index].key_table->shape->shared);
    for (int index = 0; index < count; index++) {
        bool wall = items[index].limits->wall;
        if (!known[wall])
            read[wall] = table_clock(shared, wall);
        known[wall] = true;
        items[index].now = read[wall];
    }
}

/* The machine's clock is read after the states.  One in Python is read before, and again if a thread wrote since. */
int open_items(StoreObject *self, Batch *batch, int from, int until) {
    u64 now = 0;
    int count = until - from;
    for (int look = 1;; look++) {
        bool calls = self->nanos != NULL;
        u64 seen = calls ? changes_of(batch, from, until) : 0;
        if (calls && !read_nanos(self->state, self->nanos, &now))
            return -1;
        int regions = lock_items(batch, from, count);
        if (regions < 0)
            return -1;
        if (!calls || seen == changes_of(batch, from, until) || look == MOST_LOOKS) {
            for (int index = 0; index < count; index++)
                read_item(batch->items + from, index);
            set_instants(batch->items + from, count, calls, now);
            return regions;
        }
        unlock_all(batch->order, regions);
    }
}

static PyObject *decisions_of(const Batch *batch, bool peek, bool allowed) {
    PyObject *found = PyTuple_New(batch->count);
    const Evidence *evidence = batch->evidence;
    for (int index = 0; found && index < batch->count; index++) {
        const Item *item = batch->items + index;
        const TermsObject *terms = batch->tables[index]->terms;
        u64 cost = (allowed && !peek) || !item->allowed ? item->cost : 0;
        PyObject *decision = decision_from(terms, item->key_table ? evidence : &BOUNDLESS, item->allowed, item->now, cost);
        if (item->key_table)
            evidence += terms->parts;
        if (!decision || PyTuple_SetItem(found, index, decision) < 0)
            Py_CLEAR(found);
    }
    return found;
}

PyObject *decide_batch(StoreObject *self, Batch *batch, bool peek, bool *allowed) {
    int regions = open_items(self, batch, 0, batch->count);
    if (regions < 0)
        return NULL;
    bool written = check_all(batch->items, batch->count, peek, batch->evidence);
    unlock_all(batch->order, regions);
    if (!written)
        return PyErr_NoMemory();
    *allowed = true;
    for (int index = 0; index < batch->count; index++)
        *allowed = *allowed && batch->items[index].allowed;
    return decisions_of(batch, peek, *allowed);
}
