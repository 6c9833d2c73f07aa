/* Store: decides whole plans, on the tables of its Python subclass. */
#include "batch.h"

static PyObject *commit(StoreObject *self, PyObject *plan, bool peek) {
    Batch batch;
    bool allowed;
    if (!make_batch(self, plan, &batch))
        return NULL;
    PyObject *found = decide_batch(self, &batch, peek, &allowed);
    drop_batch(&batch);
    return found;
}

static PyObject *store_check(StoreObject *self, PyObject *plan) { return commit(self, plan, false); }
static PyObject *store_peek(StoreObject *self, PyObject *plan) { return commit(self, plan, true); }

/* Take, refund or reset the checks one by one, each by itself. */
static PyObject *change_all(StoreObject *self, PyObject *plan, enum change change, PyObject *taken_at) {
    Batch batch;
    i64 at = 0;
    if (taken_at != Py_None) {
        int overflow;
        at = PyLong_AsLongLongAndOverflow(taken_at, &overflow);
        if (at == -1 && !overflow && PyErr_Occurred())
            return NULL;
        if (overflow || at >= (i64)MOST_NOW || at < 0) /* an impossible instant: later or earlier than all others */
            at = overflow > 0 || at > 0 ? (i64)MOST_NOW - 1 : -1;
    }
    if (!make_batch(self, plan, &batch))
        return NULL;
    for (int index = 0; index < batch.count; index++)
        if ((change == RENEW || change == GIVE_BACK) && !batch.tables[index]->terms->limits->leases) {
            PyErr_Format(PyExc_ValueError, "plan: expected leases, got %S", batch.tables[index]->terms->limit);
            drop_batch(&batch);
            return NULL;
        }
    PyObject *found = PyTuple_New(batch.count);
    for (int index = 0; found && index < batch.count; index++) {
        Item *item = batch.items + index;
        TermsObject *terms = batch.tables[index]->terms;
        PyObject *decision = NULL;
        int regions = open_items(self, &batch, index, index + 1);
        if (regions >= 0) {
            bool written = !item->key_table || change_item(item, change, taken_at == Py_None ? (i64)item->now : at, batch.evidence);
            unlock_all(batch.order, regions);
            if (written)
                decision = decision_from(terms, item->key_table ? batch.evidence : &BOUNDLESS,
                                         !item->key_table || item->allowed, item->now, change == RENEW ? item->cost : 0);
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

static PyObject *store_debit(StoreObject *self, PyObject *plan) { return change_all(self, plan, DEBIT, Py_None); }

static PyObject *store_refund(StoreObject *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"plan", "at", NULL};
    PyObject *plan, *at = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:refund", names, &plan, &at))
        return NULL;
    return change_all(self, plan, REFUND, at);
}

static PyObject *store_renew(StoreObject *self, PyObject *plan) { return change_all(self, plan, RENEW, Py_None); }
static PyObject *store_end_leases(StoreObject *self, PyObject *plan) { return change_all(self, plan, GIVE_BACK, Py_None); }

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

static PyObject *tuple_from(const u64 *words, u64 count) {
    PyObject *found = PyTuple_New((Py_ssize_t)count);
    for (u64 index = 0; found && index < count; index++) {
        PyObject *number = PyLong_FromUnsignedLongLong(words[index]);
        if (!number || PyTuple_SetItem(found, (Py_ssize_t)index, number) < 0)
            Py_CLEAR(found);
    }
    return found;
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
    case SLIDING_LOG: /* as copy_of wrote it: how many, then the instants, then the ids of leases */
        found = tuple_from(words + 1, words[0]);
        if (found && part->leases)
            found = Py_BuildValue("(NN())", found, tuple_from(words + 1 + words[0], words[0]));
        return found;
    case UNLIMITED: return PyLong_FromLong(0);
    default:
        found = PyLong_FromUnsignedLongLong(words[1]);
        if (found)
            add_digit(&found, 64, words[0]);
        return found;
    }
}

/* A copy of an item's record, part after part, with its logs in full; NULL if out of memory. */
static u64 *copy_of(const Item *item) {
    const Shape *shape = shape_in(item);
    size_t size = 1;
    for (uint32_t each = 0; each < shape->parts; each++) {
        Log log = {(u64 *)&NOTHING_LOGGED, NULL, 0, NULL};
        if (shape->part[each].algorithm == SLIDING_LOG)
            log = item_log(item, shape->part + each, item->old);
        u64 width = shape->part[each].leases ? 2 : 1;
        size += shape->part[each].algorithm == SLIDING_LOG ? 1 + width * log_length(&log) : shape->part[each].words;
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
        for (u64 index = 0; log.ids && index < length; index++)
            *next++ = *id_at(&log, index);
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
    if (!make_batch(self, plan, &batch))
        return NULL;
    PyObject *found = NULL;
    u64 **copies = PyMem_Malloc((size_t)batch.count * sizeof(u64 *) + 1);
    int regions = copies ? open_items(self, &batch, 0, batch.count) : -1;
    if (regions >= 0) { /* copied first, as making Python objects may run any code */
        for (int index = 0; index < batch.count; index++) {
            Item *item = batch.items + index;
            if (item->twin >= 0)
                item->old = batch.items[item->twin].old;
            copies[index] = item->key_table ? copy_of(item) : NULL;
        }
        leave_all(batch.items, batch.count);
        unlock_all(batch.order, regions);
        PyObject *row = PyTuple_New(batch.count), *instants = PyTuple_New(batch.count);
        for (int index = 0; instants && index < batch.count; index++) {
            PyObject *now = PyLong_FromUnsignedLongLong(batch.items[index].now);
            if (!now || PyTuple_SetItem(instants, index, now) < 0)
                Py_CLEAR(instants);
        }
        for (int index = 0; index < batch.count; index++) {
            Item *item = batch.items + index;
            PyObject *own = NULL;
            if (row && !item->key_table)
                own = PyLong_FromLong(0);
            else if (row && copies[index])
                own = record_to_python(batch.tables[index]->terms, shape_in(item), copies[index]);
            else if (row && !PyErr_Occurred())
                PyErr_NoMemory();
            if (row && (!own || PyTuple_SetItem(row, index, own) < 0))
                Py_CLEAR(row);
            free(copies[index]);
        }
        if (row && instants)
            found = PyTuple_Pack(2, instants, row);
        Py_XDECREF(row);
        Py_XDECREF(instants);
    } else if (!copies) {
        PyErr_NoMemory();
    }
    PyMem_Free(copies);
    drop_batch(&batch);
    return found;
}

static void forget_cached(StoreObject *self) {
    for (int index = 0; index < CACHED_TABLES; index++) {
        spin_lock(&self->lock);
        CachedTable old = self->cached[index];
        self->cached[index] = (CachedTable){NULL, NULL, NULL};
        spin_unlock(&self->lock);
        Py_XDECREF(old.space);
        Py_XDECREF(old.limit);
        Py_XDECREF((PyObject *)old.table);
    }
}

static PyObject *store_forget(StoreObject *self, PyObject *unused) {
    forget_cached(self);
    Py_RETURN_NONE;
}

static PyObject *store_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    StoreObject *self = (StoreObject *)alloc(type, 0);
    if (!self)
        return NULL;
    for (PyTypeObject *each = type; each && !self->state; each = PyType_GetSlot(each, Py_tp_base))
        self->state = PyType_GetModuleState(each); /* a subclass in Python has no module state */
    PyErr_Clear();
    return (PyObject *)self;
}

static int store_traverse(StoreObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
    Py_VISIT(self->nanos);
    for (int index = 0; index < CACHED_TABLES; index++) {
        Py_VISIT(self->cached[index].limit);
        Py_VISIT((PyObject *)self->cached[index].table);
    }
    return 0;
}

static int store_clear(StoreObject *self) {
    Py_CLEAR(self->nanos);
    forget_cached(self);
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
    {"peek", (PyCFunction)store_peek, METH_O,
     "peek($self, plan, /)\n--\n\nReturn the decisions that ``check`` would make, and take nothing."},
    {"debit", (PyCFunction)store_debit, METH_O,
     "debit($self, plan, /)\n--\n\nTake all of each cost, though less is left: the key is in debt, and recovers in time."},
    {"take", (PyCFunction)store_take, METH_O,
     "take($self, plan, /)\n--\n\nTake as much of each cost as is left: to charge for what has been used already."},
    {"refund", (PyCFunction)(void (*)(void))store_refund, METH_VARARGS | METH_KEYWORDS,
     "refund($self, plan, at=None)\n--\n\nGive back each cost, taken at the instant ``at``; never above the capacity."},
    {"renew", (PyCFunction)store_renew, METH_O,
     "renew($self, plan, /)\n--\n\nHold each lease of the plan, by itself, from now on; the decisions say which are held."},
    {"end_leases", (PyCFunction)store_end_leases, METH_O,
     "end_leases($self, plan, /)\n--\n\nLet each lease of the plan keep only ``cost`` places: 0 ends it."},
    {"reset", (PyCFunction)store_reset, METH_O, "reset($self, plan, /)\n--\n\nForget what the plan's keys used."},
    {"states", (PyCFunction)store_states, METH_O,
     "states($self, plan, /)\n--\n\nThe time, and the state of each check, to predict a wait."},
    {"prepare", (PyCFunction)store_prepare, METH_O,
     "prepare($self, rows, /)\n--\n\nA plan of (space, limit, cost) that only needs keys: ``prepare(rows).check(keys)``."},
    {"forget_tables", (PyCFunction)store_forget, METH_NOARGS,
     "forget_tables($self, /)\n--\n\nAsk ``table`` again for every space and limit."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef store_getset[] = {
    {"nanos", (getter)get_nanos, (setter)put_nanos,
     "The clock: a function that returns nanoseconds, or None for the machine's clock.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot store_slots[] = {
    {Py_tp_doc, "Decides plans on the tables of a subclass: ``table(space, limit)``."},
    {Py_tp_new, store_new},
    {Py_tp_dealloc, store_free},
    {Py_tp_traverse, store_traverse},
    {Py_tp_clear, store_clear},
    {Py_tp_methods, store_methods},
    {Py_tp_getset, store_getset},
    {0, NULL}};

PyType_Spec store_spec = {"ratekeeper.native.core.Store", sizeof(StoreObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, store_slots};
