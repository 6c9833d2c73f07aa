/* Store: whole plans, on tables that its Python subclass finds; and the module. */
#include "core.h"

/* What a plan needs while it is decided, in one piece. */
typedef struct {
    int count;
    Item *items;
    Item **order;
    TableObject **tables; /* owned */
    Evidence *evidence;
    u64 *words;
    void *memory;
} Batch;

static void drop_batch(Batch *batch) {
    for (int index = 0; index < batch->count; index++)
        Py_XDECREF((PyObject *)batch->tables[index]);
    PyMem_Free(batch->words);
    PyMem_Free(batch->memory);
}

static inline size_t known_at(const PyObject *space, const PyObject *limit) {
    u64 mixed = ((u64)(uintptr_t)space ^ (u64)(uintptr_t)limit << 20) * 0x9E3779B97F4A7C15ULL;
    return mixed >> 56;
}

/* The table of a check, by the identity of its space and limit; those seen lately are found without a call. */
static TableObject *table_for(StoreObject *self, PyObject *space, PyObject *limit) {
    Known *known = self->known + known_at(space, limit);
    TableObject *found = NULL;
    hold(&self->lock);
    if (known->space == space && known->limit == limit) {
        found = known->table;
        Py_INCREF((PyObject *)found);
    }
    let_go(&self->lock);
    if (found)
        return found;
    PyObject *made = PyObject_CallMethodObjArgs((PyObject *)self, self->state->table_for, space, limit, NULL);
    if (!made)
        return NULL;
    if (Py_TYPE(made) != self->state->table_type) {
        PyErr_Format(PyExc_TypeError, "table_for: expected a Table, got %R", (PyObject *)Py_TYPE(made));
        Py_DECREF(made);
        return NULL;
    }
    Py_INCREF(space);
    Py_INCREF(limit);
    Py_INCREF(made);
    hold(&self->lock);
    Known before = *known;
    *known = (Known){space, limit, (TableObject *)made};
    let_go(&self->lock);
    Py_XDECREF(before.space);
    Py_XDECREF(before.limit);
    Py_XDECREF((PyObject *)before.table);
    return (TableObject *)made;
}

static bool item_from(StoreObject *self, PyObject *check, TableObject **table, Item *item) {
    State *state = self->state;
    PyObject *space = PyObject_GetAttr(check, state->space), *limit = NULL, *key = NULL, *cost = NULL;
    bool done = false;
    *table = NULL;
    if (space)
        limit = PyObject_GetAttr(check, state->limit);
    if (limit)
        key = PyObject_GetAttr(check, state->key);
    if (key)
        cost = PyObject_GetAttr(check, state->cost);
    if (cost)
        *table = table_for(self, space, limit);
    if (*table) {
        item->shelf = (*table)->shelf;
        item->limits = (*table)->terms->limits;
        done = hash_key(state, (*table)->home->shelf, key, true, &item->hash) && cost_from(state, cost, &item->cost);
    }
    Py_XDECREF(space);
    Py_XDECREF(limit);
    Py_XDECREF(key);
    Py_XDECREF(cost);
    return done;
}

static bool make_batch(StoreObject *self, PyObject *plan, Batch *batch) {
    memset(batch, 0, sizeof(*batch));
    if (!PyTuple_Check(plan)) {
        PyErr_Format(PyExc_TypeError, "plan: expected a tuple of checks, got %R", (PyObject *)Py_TYPE(plan));
        return false;
    }
    int count = (int)PyTuple_Size(plan);
    size_t each = sizeof(Item) + sizeof(Item *) + sizeof(TableObject *);
    batch->memory = PyMem_Malloc(count * each + 1);
    if (!batch->memory) {
        PyErr_NoMemory();
        return false;
    }
    memset(batch->memory, 0, count * each);
    batch->items = batch->memory;
    batch->order = (Item **)(batch->items + count);
    batch->tables = (TableObject **)(batch->order + count);
    size_t words = 0, parts = 0;
    for (int index = 0; index < count; index++) {
        batch->count = index + 1;
        if (!item_from(self, PyTuple_GetItem(plan, index), batch->tables + index, batch->items + index)) {
            drop_batch(batch);
            return false;
        }
        parts += batch->tables[index]->terms->parts;
        words += batch->items[index].shelf ? 2 * batch->items[index].shelf->shape->words : 0;
    }
    batch->words = PyMem_Malloc(words * sizeof(u64) + parts * sizeof(Evidence) + 1);
    if (!batch->words) {
        drop_batch(batch);
        PyErr_NoMemory();
        return false;
    }
    u64 *next = batch->words;
    for (int index = 0; index < count; index++) {
        Item *item = batch->items + index;
        if (!item->shelf)
            continue;
        item->old = next;
        item->new = next + item->shelf->shape->words;
        next += 2 * item->shelf->shape->words;
    }
    batch->evidence = (Evidence *)next;
    return true;
}

static u64 changes_of(const Batch *batch, int from, int until) {
    u64 sum = 0;
    for (int index = from; index < until; index++)
        if (batch->items[index].shelf && !batch->items[index].shelf->shape->shared)
            sum += changes_in(batch->items[index].shelf);
    return sum;
}

static void watch(StoreObject *self, const Batch *batch) {
    for (int index = 0; self->nanos && index < batch->count; index++)
        if (batch->items[index].shelf)
            batch->items[index].shelf->watched = true;
}

/* Take the regions of some items and read their states and, after that, the clock; -1 with an error set.
 *
 * A clock that is read by a call is read before: if somebody wrote meanwhile, its instant is too early.
 */
static int open_items(StoreObject *self, Batch *batch, int from, int until, u64 *now) {
    int error, count = until - from;
    watch(self, batch);
    for (int look = 1;; look++) {
        u64 seen = changes_of(batch, from, until);
        if (self->nanos && !read_nanos(self->state, self->nanos, now))
            return -1;
        int regions = lock_all(batch->items + from, count, batch->order, &error);
        if (error) {
            unlock_all(batch->order, regions);
            errno = error;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (!self->nanos || seen == changes_of(batch, from, until) || look == MOST_LOOKS) {
            for (int index = 0; index < count; index++)
                read_item(batch->items + from, index);
            if (!self->nanos)
                *now = machine_clock();
            return regions;
        }
        unlock_all(batch->order, regions);
    }
}

static PyObject *commit(StoreObject *self, PyObject *plan, bool peek) {
    Batch batch;
    u64 now;
    if (!make_batch(self, plan, &batch))
        return NULL;
    PyObject *found = NULL;
    int regions = open_items(self, &batch, 0, batch.count, &now);
    if (regions >= 0) {
        bool kept = check_all(batch.items, batch.count, now, peek, batch.evidence);
        unlock_all(batch.order, regions);
        if (kept)
            found = PyTuple_New(batch.count);
        else
            PyErr_NoMemory();
    }
    bool takes = !peek;
    for (int index = 0; index < batch.count; index++)
        takes = takes && batch.items[index].allowed;
    Evidence *evidence = batch.evidence;
    static const Evidence boundless = {false, true, {0, 0, 0}};
    for (int index = 0; found && index < batch.count; index++) {
        Item *item = batch.items + index;
        TermsObject *terms = batch.tables[index]->terms;
        u64 cost = takes || !item->allowed ? item->cost : 0;
        PyObject *decision = decision_from(terms, item->shelf ? evidence : &boundless, item->allowed, now, cost);
        if (item->shelf)
            evidence += terms->parts;
        if (!decision || PyTuple_SetItem(found, index, decision) < 0)
            Py_CLEAR(found);
    }
    drop_batch(&batch);
    return found;
}

static PyObject *store_check(StoreObject *self, PyObject *plan) { return commit(self, plan, false); }
static PyObject *store_peek(StoreObject *self, PyObject *plan) { return commit(self, plan, true); }

/* One after the other, each by itself. */
static PyObject *change_all(StoreObject *self, PyObject *plan, enum change change, PyObject *taken_at) {
    Batch batch;
    i64 at = 0;
    if (taken_at != Py_None) {
        int overflow;
        at = PyLong_AsLongLongAndOverflow(taken_at, &overflow);
        if (at == -1 && !overflow && PyErr_Occurred())
            return NULL;
        if (overflow || at >= (i64)MOST_NOW || at < 0) /* no such instant: later or earlier than all there are */
            at = overflow > 0 || at > 0 ? (i64)MOST_NOW - 1 : -1;
    }
    if (!make_batch(self, plan, &batch))
        return NULL;
    static const Evidence boundless = {false, true, {0, 0, 0}};
    PyObject *found = PyTuple_New(batch.count);
    for (int index = 0; found && index < batch.count; index++) {
        Item *item = batch.items + index;
        TermsObject *terms = batch.tables[index]->terms;
        PyObject *decision = NULL;
        u64 now;
        int regions = open_items(self, &batch, index, index + 1, &now);
        if (regions >= 0) {
            bool kept = !item->shelf || change_item(item, change, now, taken_at == Py_None ? (i64)now : at, batch.evidence);
            unlock_all(batch.order, regions);
            if (kept)
                decision = decision_from(terms, item->shelf ? batch.evidence : &boundless, true, now, 0);
            else
                PyErr_NoMemory();
        }
        if (!decision || PyTuple_SetItem(found, index, decision) < 0)
            Py_CLEAR(found);
    }
    drop_batch(&batch);
    return found;
}

static PyObject *store_take(StoreObject *self, PyObject *plan) { return change_all(self, plan, TAKE, Py_None); }

static PyObject *store_refund(StoreObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"plan", "at", NULL};
    PyObject *plan, *at = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:refund", names, &plan, &at))
        return NULL;
    return change_all(self, plan, REFUND, at);
}

static PyObject *store_reset(StoreObject *self, PyObject *plan) {
    PyObject *found = change_all(self, plan, RESET, Py_None);
    if (!found)
        return NULL;
    Py_DECREF(found);
    Py_RETURN_NONE;
}

/* number << bits | digit, a new reference in the place of `number`. */
static bool add_digit(PyObject **number, long bits, u64 digit) {
    PyObject *by = PyLong_FromLong(bits), *low = PyLong_FromUnsignedLongLong(digit);
    PyObject *high = by ? PyNumber_Lshift(*number, by) : NULL;
    PyObject *sum = high && low ? PyNumber_Or(high, low) : NULL;
    Py_XDECREF(by);
    Py_XDECREF(low);
    Py_XDECREF(high);
    Py_DECREF(*number);
    *number = sum;
    return sum != NULL;
}

static PyObject *part_to_python(const Part *part, const Limit *limit, const u64 *words) {
    PyObject *found;
    switch (part->algorithm) {
    case FIXED_WINDOW:
        found = PyLong_FromUnsignedLongLong(words[0]);
        if (found)
            add_digit(&found, 52, words[1]);
        return found;
    case SLIDING_WINDOW:
        found = PyLong_FromUnsignedLongLong(words[0]);
        for (u64 age = limit->slices + 1; found && age-- > 0;)
            add_digit(&found, 52, words[1 + age]);
        return found;
    case SLIDING_LOG: /* copied: how many, then the instants */
        found = PyTuple_New((Py_ssize_t)words[0]);
        for (u64 index = 0; found && index < words[0]; index++) {
            PyObject *instant = PyLong_FromUnsignedLongLong(words[1 + index]);
            if (!instant || PyTuple_SetItem(found, (Py_ssize_t)index, instant) < 0)
                Py_CLEAR(found);
        }
        return found;
    case UNLIMITED: return PyLong_FromLong(0);
    default:
        found = PyLong_FromUnsignedLongLong(words[1]);
        if (found)
            add_digit(&found, 64, words[0]);
        return found;
    }
}

/* A copy of an item's record with its logs written out, part after part; NULL without memory. */
static u64 *copy_of(const Item *item) {
    const Shape *shape = shape_in(item);
    size_t size = 1;
    for (uint32_t each = 0; each < shape->parts; each++) {
        Log log = {(u64 *)&NOTHING_LOGGED, NULL, 0};
        if (shape->part[each].algorithm == SLIDING_LOG)
            log = item_log(item, shape->part + each, item->old);
        size += shape->part[each].algorithm == SLIDING_LOG ? 1 + log_length(&log) : shape->part[each].words;
    }
    u64 *copy = malloc(size * sizeof(u64)), *next = copy;
    for (uint32_t each = 0; copy && each < shape->parts; each++) {
        const Part *part = shape->part + each;
        if (part->algorithm != SLIDING_LOG) {
            memcpy(next, item->old + part->offset, part->words * sizeof(u64));
            next += part->words;
            continue;
        }
        Log log = item_log(item, part, item->old);
        u64 length = log_length(&log);
        *next++ = length;
        for (u64 index = 0; index < length; index++)
            *next++ = *log_at(&log, index);
    }
    return copy;
}

static PyObject *record_to_python(const TermsObject *terms, const Shape *shape, const u64 *copy) {
    if (!terms->each)
        return part_to_python(shape->part, terms->limits, copy);
    PyObject *found = PyTuple_New(terms->parts);
    for (uint32_t each = 0; found && each < terms->parts; each++) {
        const Part *part = shape->part + each;
        PyObject *own = part_to_python(part, terms->limits + each, copy);
        if (!own || PyTuple_SetItem(found, each, own) < 0)
            Py_CLEAR(found);
        copy += part->algorithm == SLIDING_LOG ? 1 + copy[0] : part->words;
    }
    return found;
}

static PyObject *store_states(StoreObject *self, PyObject *plan) {
    Batch batch;
    u64 now;
    if (!make_batch(self, plan, &batch))
        return NULL;
    PyObject *found = NULL;
    u64 **copies = PyMem_Malloc((size_t)batch.count * sizeof(u64 *) + 1);
    int regions = copies ? open_items(self, &batch, 0, batch.count, &now) : -1;
    if (regions >= 0) { /* copied first: making Python objects may run anything */
        for (int index = 0; index < batch.count; index++) {
            Item *item = batch.items + index;
            if (item->twin >= 0)
                item->old = batch.items[item->twin].old;
            copies[index] = item->shelf ? copy_of(item) : NULL;
        }
        leave_all(batch.items, batch.count);
        unlock_all(batch.order, regions);
        PyObject *row = PyTuple_New(batch.count);
        for (int index = 0; index < batch.count; index++) {
            Item *item = batch.items + index;
            PyObject *own = NULL;
            if (row && !item->shelf)
                own = PyLong_FromLong(0);
            else if (row && copies[index])
                own = record_to_python(batch.tables[index]->terms, shape_in(item), copies[index]);
            else if (row && !PyErr_Occurred())
                PyErr_NoMemory();
            if (row && (!own || PyTuple_SetItem(row, index, own) < 0))
                Py_CLEAR(row);
            free(copies[index]);
        }
        if (row)
            found = Py_BuildValue("(KN)", (unsigned long long)now, row);
    } else if (!copies) {
        PyErr_NoMemory();
    }
    PyMem_Free(copies);
    drop_batch(&batch);
    return found;
}

static void forget_known(StoreObject *self) {
    for (int index = 0; index < KNOWN_TABLES; index++) {
        hold(&self->lock);
        Known before = self->known[index];
        self->known[index] = (Known){NULL, NULL, NULL};
        let_go(&self->lock);
        Py_XDECREF(before.space);
        Py_XDECREF(before.limit);
        Py_XDECREF((PyObject *)before.table);
    }
}

static PyObject *store_forget(StoreObject *self, PyObject *unused) {
    forget_known(self);
    Py_RETURN_NONE;
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    StoreObject *self = (StoreObject *)alloc(type, 0);
    if (!self)
        return NULL;
    for (PyTypeObject *each = type; each && !self->state; each = PyType_GetSlot(each, Py_tp_base))
        self->state = PyType_GetModuleState(each); /* the subclass in Python has no module state of its own */
    PyErr_Clear();
    return (PyObject *)self;
}

static int store_traverse(StoreObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
    Py_VISIT(self->nanos);
    for (int index = 0; index < KNOWN_TABLES; index++) {
        Py_VISIT(self->known[index].limit);
        Py_VISIT((PyObject *)self->known[index].table);
    }
    return 0;
}

static int store_clear(StoreObject *self) {
    Py_CLEAR(self->nanos);
    forget_known(self);
    return 0;
}

static void store_free(StoreObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    store_clear(self);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *get_nanos(StoreObject *self, void *unused) {
    return Py_NewRef(self->nanos ? self->nanos : Py_None);
}

static int put_nanos(StoreObject *self, PyObject *nanos, void *unused) {
    return set_nanos(&self->nanos, nanos) ? 0 : -1;
}

static PyMethodDef store_methods[] = {
    {"check", (PyCFunction)store_check, METH_O, "check($self, plan, /)\n--\n\nTake every cost of the plan, or none."},
    {"peek", (PyCFunction)store_peek, METH_O, "peek($self, plan, /)\n--\n\nSay what ``check`` would, and take nothing."},
    {"take", (PyCFunction)store_take, METH_O,
     "take($self, plan, /)\n--\n\nTake of each cost what is there, up to all of it: to charge for what has been used "
     "already."},
    {"refund", (PyCFunction)(void (*)(void))store_refund, METH_VARARGS | METH_KEYWORDS,
     "refund($self, plan, at=None)\n--\n\nGive each cost, taken at the instant ``at``, back: never above the capacity."},
    {"reset", (PyCFunction)store_reset, METH_O, "reset($self, plan, /)\n--\n\nForget what the plan's keys used."},
    {"states", (PyCFunction)store_states, METH_O,
     "states($self, plan, /)\n--\n\nNow, and the state of each check: to foresee a wait."},
    {"forget_tables", (PyCFunction)store_forget, METH_NOARGS,
     "forget_tables($self, /)\n--\n\nAsk ``table_for`` again for every space and limit."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef store_getset[] = {
    {"nanos", (getter)get_nanos, (setter)put_nanos, "The clock: a function, or None for the machine's.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot store_slots[] = {
    {Py_tp_doc, "Decides plans on tables that a subclass finds: ``table_for(space, limit)``."},
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_free},
    {Py_tp_traverse, store_traverse},
    {Py_tp_clear, store_clear},
    {Py_tp_methods, store_methods},
    {Py_tp_getset, store_getset},
    {0, NULL}};

PyType_Spec store_spec = {"ratekeeper.native.core.Store", sizeof(StoreObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, store_slots};
