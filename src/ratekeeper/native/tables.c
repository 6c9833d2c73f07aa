/* KeyTable: the states of a limit.  Table: `check` on them, the hot path. */
#include "core.h"
#include "mapping.h"

static uint32_t mappings_lock; /* of free-threaded builds; the interpreter's lock is enough for others */

static bool shapes_agree(const Shape *a, const Shape *b) {
    if (a->parts != b->parts || a->words != b->words || a->packed != b->packed || a->digit != b->digit)
        return false;
    for (uint32_t index = 0; index < a->parts; index++) {
        enum algorithm one = a->part[index].algorithm, other = b->part[index].algorithm;
        bool buckets = one >= TOKEN_BUCKET && one <= GCRA && other >= TOKEN_BUCKET && other <= GCRA;
        if ((one != other && !buckets) || a->part[index].ring != b->part[index].ring ||
            a->part[index].leases != b->part[index].leases)
            return false;
    }
    return true;
}

static Shape *shape_for(const TermsObject *terms, bool shared) {
    Shape *shape = shape_of(terms->limits, terms->parts, shared, !shared || CAN_SWAP);
    if (!shape)
        PyErr_NoMemory();
    return shape;
}

/* The guard of a region could not be locked. */
void raise_unlockable(const KeyTable *key_table, int error) {
    const char *name = key_table->name ? key_table->name : "", *state = "is damaged";
    if (error == ETIMEDOUT)
        state = "stays locked, by a stopped process or because it is damaged";
    PyObject *why = PyUnicode_FromFormat(
        "expected a guard that is free within %d ms, got one that %s. "
        "To start afresh, stop the others and call ratekeeper.stores.shared.remove('%s').",
        GUARD_MICROS / 1000, state, name);
    PyObject *errors = PyImport_ImportModule("ratekeeper.errors");
    PyObject *kind = errors ? PyObject_GetAttrString(errors, "StoreUnavailable") : NULL;
    PyObject *store = kind ? PyUnicode_FromFormat("shm://%s", name) : NULL;
    PyObject *raised = store && why ? PyObject_CallFunction(kind, "OO", store, why) : NULL;
    if (raised)
        PyErr_SetObject(kind, raised);
    Py_XDECREF(raised);
    Py_XDECREF(store);
    Py_XDECREF(kind);
    Py_XDECREF(errors);
    Py_XDECREF(why);
}

/* KeyTable(limit, max_keys, seed, memory=None, identity=0, name="") */
static PyObject *key_table_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"limit", "max_keys", "seed", "memory", "identity", "name", NULL};
    State *state = PyType_GetModuleState(type);
    PyObject *limit, *memory = Py_None;
    unsigned long long max_keys, identity = 0;
    const char *name = "";
    Py_buffer seed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OKy*|OKs:KeyTable", names, &limit, &max_keys, &seed, &memory,
                                     &identity, &name))
        return NULL;
    u64 words[2];
    bool well = seed.len == sizeof(words) && max_keys > 0;
    if (well)
        memcpy(words, seed.buf, sizeof(words));
    PyBuffer_Release(&seed);
    if (!well) {
        PyErr_SetString(PyExc_ValueError, "KeyTable: expected a seed of 16 bytes and at least one key");
        return NULL;
    }
    TermsObject *terms = terms_from(state, limit);
    if (!terms)
        return NULL;
    KeyTableObject *self = PyObject_New(KeyTableObject, type);
    if (!self) {
        Py_DECREF(terms);
        return NULL;
    }
    self->state = state;
    self->key_table = NULL;
    self->shared = false;
    bool shared = memory != Py_None;
    Shape *shape = shape_for(terms, shared);
    Py_DECREF(terms);
    if (!shape)
        goto failed;
    if (!shared) {
        self->key_table = private_key_table(shape, max_keys, words);
        if (self->key_table)
            self->key_table->trusts_hash = state->keyed;
    } else {
        if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) < 0) {
            free(shape);
            goto failed;
        }
        self->shared = true;
        spin_lock(&mappings_lock);
        bool is_protected = protect_mapping(self->memory.buf, (size_t)self->memory.len);
        spin_unlock(&mappings_lock);
        if (!is_protected) {
            PyErr_Format(PyExc_ValueError, "KeyTable: expected at most %d shared tables at once", MOST_MAPPINGS);
            free(shape);
            goto failed;
        }
        size_t needed = shared_bytes(shape, regions_for(max_keys), buckets_for(max_keys));
        if ((size_t)self->memory.len < needed || (uintptr_t)self->memory.buf % LINE) {
            PyErr_Format(PyExc_ValueError, "KeyTable: expected %zu bytes of memory, got %zd", needed, self->memory.len);
            free(shape);
            goto failed;
        }
        self->key_table = shared_key_table(shape, self->memory.buf, regions_for(max_keys), buckets_for(max_keys), words, identity);
    }
    if (!self->key_table) {
        free(shape);
        PyErr_NoMemory();
        goto failed;
    }
    if (shared) {
        self->key_table->name = strdup(name);
        i64 damaged = damaged_region(self->key_table);
        if (damaged >= 0) {
            PyErr_Format(PyExc_ValueError, "KeyTable: expected a sound guard, got a damaged one in region %lld", damaged);
            goto failed;
        }
    }
    return (PyObject *)self;
failed:
    Py_DECREF(self);
    return NULL;
}

static void key_table_free(KeyTableObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->key_table)
        drop_key_table(self->key_table);
    if (self->shared) {
        spin_lock(&mappings_lock);
        forget_mapping(self->memory.buf);
        spin_unlock(&mappings_lock);
        PyBuffer_Release(&self->memory);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *key_table_clear(KeyTableObject *self, PyObject *unused) {
    KeyTable *key_table = self->key_table;
    if (!key_table->shape->shared) {
        forget_all(key_table);
        Py_RETURN_NONE;
    }
    for (uint32_t index = 0; index < key_table->regions; index++) {
        Region *region = key_table->region + index;
        int error = lock_guard(key_table->shape, region);
        if (error) {
            raise_unlockable(key_table, error);
            return NULL;
        }
        for (size_t slot = 0; slot < (size_t)region->buckets * BUCKET; slot++) {
            if (key_table->shape->packed)
                make_idle(slots_of(region) + slot, (Slot){0, 0});
            else
                marks_of(region)[slot] = 0;
        }
        unlock_guard(region);
    }
    Py_RETURN_NONE;
}

static PyObject *key_table_keys(KeyTableObject *self, void *unused) {
    u64 found = 0;
    for (uint32_t index = 0; index < self->key_table->regions; index++) {
        Region *region = self->key_table->region + index;
        spin_lock(&region->lock);
        for (size_t slot = 0; slot < (size_t)region->buckets * BUCKET; slot++)
            found += slot_taken(self->key_table->shape, region, slot);
        spin_unlock(&region->lock);
    }
    return PyLong_FromUnsignedLongLong(found);
}

static PyObject *key_table_slots(KeyTableObject *self, void *unused) {
    u64 found = 0;
    for (uint32_t index = 0; index < self->key_table->regions; index++)
        found += (u64)self->key_table->region[index].buckets * BUCKET;
    return PyLong_FromUnsignedLongLong(found);
}

static PyObject *key_table_slot_bytes(KeyTableObject *self, void *unused) {
    return PyLong_FromSize_t(slot_bytes(self->key_table->shape));
}

static PyMethodDef key_table_methods[] = {
    {"clear", (PyCFunction)key_table_clear, METH_NOARGS, "clear($self, /)\n--\n\nForget all keys."}, {NULL, NULL, 0, NULL}};

static PyGetSetDef key_table_getset[] = {
    {"keys", (getter)key_table_keys, NULL, "How many slots hold a key, expired or not.", NULL},
    {"slots", (getter)key_table_slots, NULL, "How many slots there are now.", NULL},
    {"slot_bytes", (getter)key_table_slot_bytes, NULL, "The size of a slot.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot key_table_type_slots[] = {
    {Py_tp_doc, "KeyTable(limit, max_keys, seed, memory=None, identity=0)\n--\n\nThe states of all keys, for limits whose "
                "states have the same layout."},
    {Py_tp_new, key_table_new},
    {Py_tp_dealloc, key_table_free},
    {Py_tp_methods, key_table_methods},
    {Py_tp_getset, key_table_getset},
    {0, NULL}};

PyType_Spec key_table_spec = {"ratekeeper.native.core.KeyTable", sizeof(KeyTableObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, key_table_type_slots};

/* Table(key_table, limit, nanos=None) */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"key_table", "limit", "nanos", NULL};
    State *state = PyType_GetModuleState(type);
    KeyTableObject *home;
    PyObject *limit, *nanos = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O|O:Table", names, state->key_table_type, &home, &limit, &nanos))
        return NULL;
    TermsObject *terms = terms_from(state, limit);
    if (!terms)
        return NULL;
    Shape *shape = shape_for(terms, home->shared);
    bool agree = shape && shapes_agree(shape, home->key_table->shape);
    free(shape);
    if (!agree) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "Table: expected a limit whose states the key_table can hold, got %S", limit);
        Py_DECREF(terms);
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    TableObject *self = (TableObject *)alloc(type, 0);
    if (!self) {
        Py_DECREF(terms);
        return NULL;
    }
    self->state = state;
    self->terms = terms;
    self->home = (KeyTableObject *)Py_NewRef((PyObject *)home);
    self->key_table = terms->limits->algorithm == UNLIMITED && terms->parts == 1 ? NULL : home->key_table;
    if (!set_nanos(&self->nanos, nanos)) {
        Py_DECREF(self);
        return NULL;
    }
    if (self->nanos)
        home->key_table->watched = true;
    return (PyObject *)self;
}

static int table_traverse(TableObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
    Py_VISIT(self->nanos);
    return 0;
}

static int table_clear(TableObject *self) {
    Py_CLEAR(self->nanos);
    return 0;
}

static void table_free(TableObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->nanos);
    Py_XDECREF((PyObject *)self->terms);
    Py_XDECREF((PyObject *)self->home);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* (key, cost=1), positional or named. */
static bool arguments(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **key, PyObject **cost) {
    *key = count > 0 ? args[0] : NULL;
    *cost = count > 1 ? args[1] : NULL;
    bool fine = count <= 2;
    for (Py_ssize_t index = 0; names && fine && index < PyTuple_Size(names); index++) {
        PyObject *name = PyTuple_GetItem(names, index);
        PyObject **place = PyUnicode_CompareWithASCIIString(name, "key") == 0    ? key
                           : PyUnicode_CompareWithASCIIString(name, "cost") == 0 ? cost
                                                                                 : NULL;
        fine = place && !*place;
        if (fine)
            *place = args[count + index];
    }
    if (!fine || !*key) {
        PyErr_SetString(PyExc_TypeError, "check() takes a key and, as an option, a cost");
        return false;
    }
    return true;
}

/* The slow path for one key: several limits, wide slots, or a new key of a shared table. */
static PyObject *check_one(TableObject *self, u64 hash, u64 cost) {
    State *state = self->state;
    TermsObject *terms = self->terms;
    KeyTable *key_table = self->key_table;
    u64 few[128], *words = few;
    Evidence some[8], *evidence = some;
    Item item = {.key_table = key_table, .limits = terms->limits, .hash = hash, .cost = cost}, *order[1];
    u64 now;
    PyObject *found = NULL;
    if (key_table->shape->words > 64)
        words = PyMem_Malloc(2 * (size_t)key_table->shape->words * sizeof(u64));
    if (terms->parts > 8)
        evidence = PyMem_Malloc(terms->parts * sizeof(Evidence));
    if (!words || !evidence) {
        PyErr_NoMemory();
        goto done;
    }
    item.old = words;
    item.new = words + key_table->shape->words;
    for (int look = 1;; look++) {
        u64 seen = changes_in(key_table);
        int error;
        if (self->nanos && !read_nanos(state, self->nanos, &now))
            goto done;
        int regions = lock_all(&item, 1, order, &error);
        if (error) {
            raise_unlockable(key_table, error);
            goto done;
        }
        bool changed = self->nanos && !key_table->shape->shared && seen != changes_in(key_table) && look < MOST_LOOKS;
        bool written = true;
        if (!changed) {
            read_item(&item, 0);
            if (!self->nanos)
                now = table_clock(key_table->shape->shared, terms->limits->wall);
            item.now = now;
            written = check_all(&item, 1, false, evidence);
        }
        unlock_all(order, regions);
        if (changed)
            continue;
        if (!written)
            PyErr_NoMemory();
        else
            found = decision_from(terms, evidence, item.allowed, now, cost);
        break;
    }
done:
    if (words != few)
        PyMem_Free(words);
    if (evidence != some)
        PyMem_Free(evidence);
    return found;
}

static PyObject *decide_unlimited(TableObject *self, u64 cost) {
    Evidence evidence = {false, true, {0, 0, 0}};
    u64 now;
    if (!read_nanos(self->state, self->nanos, &now))
        return NULL;
    return decision_from(self->terms, &evidence, true, now, cost);
}

/* Read a clock in Python, then lock the region.  The call may let other threads write, and the instant must be later
 * than what they wrote: so read the clock again if they did, but not for ever, as the clock itself may write.
 */
static bool lock_after_clock(TableObject *self, Region *region, u64 *now) {
    for (int look = 1;; look++) {
        u64 seen = changes_in(self->key_table);
        if (!read_nanos(self->state, self->nanos, now))
            return false;
        spin_lock(&region->lock);
        if (seen == changes_in(self->key_table) || look == MOST_LOOKS)
            return true;
        spin_unlock(&region->lock);
    }
}

static PyObject *table_check(TableObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *key, *price = NULL;
    State *state = self->state;
    KeyTable *key_table = self->key_table;
    u64 hash, cost = 1, now = 0;
    if (__builtin_expect(!names && (count == 1 || count == 2), 1)) {
        key = args[0];
        price = count == 2 ? args[1] : NULL;
    } else if (!arguments(args, count, names, &key, &price))
        return NULL;
    if (!hash_key(state, self->home->key_table, key, false, &hash) || (price && !cost_from(state, price, &cost)))
        return NULL;
    if (!key_table)
        return decide_unlimited(self, cost);
    const Shape *shape = key_table->shape;
    if (shape->parts > 1)
        return check_one(self, hash, cost);
    DecisionObject *decision = new_decision(state, self->terms);
    if (!decision)
        return NULL;
    if (!shape->shared) {
        Region *region = region_of(key_table, hash);
        Place place;
        if (__builtin_expect(self->nanos == NULL, 1)) {
            spin_lock(&region->lock);
            place = place_of(key_table, hash);
            fetch_early(shape, place); /* memory is loaded while the clock is read */
            now = table_clock(false, self->terms->limits->wall);
        } else {
#ifndef RATEKEEPER_LOCKED
            fetch_early(shape, place_of(key_table, hash));
#endif
            if (!lock_after_clock(self, region, &now)) {
                Py_DECREF(decision);
                return NULL;
            }
            place = place_of(key_table, hash); /* the region may have grown meanwhile */
        }
        bool written = check_private(key_table, place, self->terms->limits, now, cost, &decision->evidence);
        spin_unlock(&region->lock);
        if (!written) {
            Py_DECREF(decision);
            return PyErr_NoMemory();
        }
    } else {
        if (self->nanos && !read_nanos(state, self->nanos, &now)) {
            Py_DECREF(decision);
            return NULL;
        }
        bool by_machine = !self->nanos;
        Place place = place_of(key_table, hash);
        const Limit *limit = self->terms->limits;
        Evidence *evidence = &decision->evidence;
        if (shape->packed ? !check_shared(key_table, place, limit, by_machine, &now, cost, evidence)
                          : !check_guarded(key_table, &place, limit, by_machine, &now, cost, evidence)) {
            Py_DECREF(decision);
            return check_one(self, hash, cost);
        }
    }
    decision->now = now;
    decision->cost = cost;
    return (PyObject *)decision;
}

static PyObject *get_limit(TableObject *self, void *unused) { return Py_NewRef(self->terms->limit); }
static PyObject *get_key_table(TableObject *self, void *unused) { return Py_NewRef((PyObject *)self->home); }

static PyObject *get_nanos(TableObject *self, void *unused) {
    return Py_NewRef(self->nanos ? self->nanos : Py_None);
}

static int put_nanos(TableObject *self, PyObject *nanos, void *unused) {
    if (!set_nanos(&self->nanos, nanos))
        return -1;
    if (self->nanos)
        self->home->key_table->watched = true;
    return 0;
}

static PyMethodDef table_methods[] = {
    {"check", (PyCFunction)(void (*)(void))table_check, METH_FASTCALL | METH_KEYWORDS,
     "check($self, /, key, cost=1)\n--\n\nTake ``cost`` for ``key`` if it fits.  A refusal takes nothing."},
    {"check_now", (PyCFunction)(void (*)(void))table_check, METH_FASTCALL | METH_KEYWORDS,
     "check_now($self, /, key, cost=1)\n--\n\nThe same as ``check``, which never waits here."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef table_getset[] = {
    {"limit", (getter)get_limit, NULL, "The limit, or the set of limits.", NULL},
    {"key_table", (getter)get_key_table, NULL, "The states.", NULL},
    {"nanos", (getter)get_nanos, (setter)put_nanos,
     "The clock: a function that returns nanoseconds, or None for the machine's clock.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "Table(key_table, limit, nanos=None)\n--\n\nThe states of one limit, or of several that are decided as one."},
    {Py_tp_new, table_new},
    {Py_tp_dealloc, table_free},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, table_clear},
    {Py_tp_methods, table_methods},
    {Py_tp_getset, table_getset},
    {0, NULL}};

PyType_Spec table_spec = {"ratekeeper.native.core.Table", sizeof(TableObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC, table_slots};
