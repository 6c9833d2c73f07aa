/* Limits, keys, costs and instants from Python, checked, as numbers. */
#include "core.h"
#include "siphash.h"

#define TEXT 0x74657874 /* domains of the hash */

static bool number_in(PyObject *limit, const char *name, u64 *number) {
    PyObject *value = PyObject_GetAttrString(limit, name);
    if (!value)
        return false;
    *number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return !(*number == (u64)-1 && PyErr_Occurred());
}

/* The edges of a calendar lie in a bytes object that lives as long as the limit. */
static bool edges_from(PyObject *object, Limit *limit) {
    PyObject *calendar = PyObject_GetAttrString(object, "calendar");
    PyObject *packed = calendar ? PyObject_GetAttrString(calendar, "packed") : NULL;
    char *bytes = NULL;
    Py_ssize_t size = 0;
    if (packed && PyBytes_AsStringAndSize(packed, &bytes, &size) == 0 && size < (Py_ssize_t)(4 * sizeof(u64)))
        PyErr_Format(PyExc_ValueError, "native: expected a calendar with edges, got %R", calendar);
    limit->edges = (const u64 *)bytes;
    limit->edge_count = (u64)size / sizeof(u64);
    Py_XDECREF(packed);
    Py_XDECREF(calendar);
    return !PyErr_Occurred();
}

static bool limit_from(PyObject *object, Limit *limit) {
    static const char *names[] = {"fixed_window", "sliding_log", "sliding_window",  "token_bucket",     "leaky_bucket",
                                  "gcra",         "unlimited",   "concurrency",     "calendar_window", "first_use_window"};
    PyObject *name = PyObject_GetAttrString(object, "algorithm");
    if (!name)
        return false;
    int found = -1;
    for (int index = 0; index < 10 && PyUnicode_Check(name); index++)
        if (PyUnicode_CompareWithASCIIString(name, names[index]) == 0)
            found = index;
    if (found < 0)
        PyErr_Format(PyExc_ValueError, "native: expected an algorithm that has a C twin, got %R", name);
    Py_DECREF(name);
    if (found < 0)
        return false;
    limit->leases = found == 7;
    limit->starts = found == 8 ? BY_CALENDAR : found == 9 ? BY_FIRST_USE : AT_MULTIPLES;
    limit->algorithm = found = limit->leases ? SLIDING_LOG : found > 7 ? FIXED_WINDOW : found;
    limit->edges = NULL;
    if (limit->starts == BY_CALENDAR && !edges_from(object, limit))
        return false;
    if (!number_in(object, "count", &limit->count) || !number_in(object, "micros", &limit->micros) ||
        !number_in(object, "slices", &limit->slices) || !number_in(object, "capacity", &limit->capacity) ||
        !number_in(object, "unit", &limit->unit) || !number_in(object, "drain", &limit->drain) ||
        !number_in(object, "owes", &limit->owes))
        return false;
    limit->full = (u128)limit->capacity * limit->unit;
    limit->window = limit->leases ? 0 : limit->micros;
    limit->reach = limit->leases ? limit->micros : 0;
    if (found != UNLIMITED && (!limit->count || !limit->micros || !limit->unit || !limit->drain ||
                               limit->drain > MOST_DRAIN || limit->capacity > MOST_COUNT || !limit->slices ||
                               limit->slices > MOST_SLICES || limit->full / limit->drain > MOST_NOW / 4)) {
        PyErr_Format(PyExc_ValueError, "native: expected a limit within the bounds of model.py, got %S", object);
        return false;
    }
    limit->ceiling = ceiling_of(limit);
    return true;
}

TermsObject *terms_from(State *state, PyObject *limit) {
    TermsObject *self = PyObject_New(TermsObject, state->terms_type);
    if (!self)
        return NULL;
    PyObject *several = NULL;
    self->state = state;
    self->limit = Py_NewRef(limit);
    self->each = NULL;
    self->limits = NULL;
    self->parts = 1;
    self->reason = PyObject_GetAttrString(limit, "reason");
    if (!self->reason)
        PyErr_Clear(); /* most limits have none */
    if (PyObject_HasAttrString(limit, "limits")) {
        several = PyObject_GetAttrString(limit, "limits");
        if (!several || !PyTuple_Check(several) || PyTuple_Size(several) < 1 || PyTuple_Size(several) > MOST_PARTS) {
            if (!PyErr_Occurred())
                PyErr_Format(state->invalid ? state->invalid : PyExc_ValueError,
                             "limits: expected at most %d limits on one key, got %zd. Put some into a second limiter.",
                             MOST_PARTS, several && PyTuple_Check(several) ? PyTuple_Size(several) : (Py_ssize_t)0);
            goto failed;
        }
        self->parts = (uint32_t)PyTuple_Size(several);
        self->each = PyTuple_New(self->parts);
        if (!self->each)
            goto failed;
    }
    if (posix_memalign((void **)&self->limits, _Alignof(Limit), self->parts * sizeof(Limit))) {
        self->limits = NULL;
        PyErr_NoMemory();
        goto failed;
    }
    for (uint32_t index = 0; index < self->parts; index++) {
        PyObject *own = several ? PyTuple_GetItem(several, index) : limit;
        if (!limit_from(own, self->limits + index))
            goto failed;
        if (several) {
            TermsObject *part = terms_from(state, own);
            if (!part || PyTuple_SetItem(self->each, index, (PyObject *)part) < 0)
                goto failed;
        }
    }
    bool wall = false; /* limits that are decided as one are decided by one clock */
    for (uint32_t index = 0; index < self->parts; index++)
        wall = wall || (self->limits[index].algorithm == FIXED_WINDOW && self->limits[index].starts != BY_FIRST_USE);
    for (uint32_t index = 0; index < self->parts; index++)
        self->limits[index].wall = wall;
    Py_XDECREF(several);
    return self;
failed:
    Py_XDECREF(several);
    Py_DECREF(self);
    return NULL;
}

static void terms_free(TermsObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->limit);
    Py_XDECREF(self->reason);
    Py_XDECREF(self->each);
    free(self->limits);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot terms_slots[] = {
    {Py_tp_doc, "A limit, or several, in numbers."}, {Py_tp_dealloc, terms_free}, {0, NULL}};

PyType_Spec terms_spec = {"ratekeeper.native.core.Terms", sizeof(TermsObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, terms_slots};

/* Whether the interpreter hashes text as we do: by SipHash, with all 64 bits and a secret key. */
bool hashes_are_keyed(void) {
    const char *seed = getenv("PYTHONHASHSEED");
    PyObject *facts = PySys_GetObject("hash_info"), *flags = PySys_GetObject("flags");
    PyObject *name = facts ? PyObject_GetAttrString(facts, "algorithm") : NULL;
    PyObject *cutoff = name ? PyObject_GetAttrString(facts, "cutoff") : NULL;
    PyObject *random = cutoff && flags ? PyObject_GetAttrString(flags, "hash_randomization") : NULL;
    bool keyed = sizeof(Py_hash_t) == sizeof(u64) && (!seed || !*seed || !strcmp(seed, "random")) && random &&
                 PyObject_IsTrue(random) == 1 && PyObject_Not(cutoff) == 1 &&
                 (!PyUnicode_CompareWithASCIIString(name, "siphash13") ||
                  !PyUnicode_CompareWithASCIIString(name, "siphash24"));
    Py_XDECREF(name);
    Py_XDECREF(cutoff);
    Py_XDECREF(random);
    PyErr_Clear();
    return keyed;
}

bool hash_text(const KeyTable *key_table, PyObject *key, u64 *hash) {
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(key, &size);
    if (text) {
        *hash = siphash(key_table->seed, TEXT, text, (size_t)size);
        return true;
    }
    PyErr_Clear(); /* lone surrogates: encode as keys.wire does */
    PyObject *made = PyUnicode_AsEncodedString(key, "utf-8", "surrogatepass");
    if (!made)
        return false;
    PyBytes_AsStringAndSize(made, (char **)&text, &size);
    *hash = siphash(key_table->seed, TEXT, text, (size_t)size);
    Py_DECREF(made);
    return true;
}

bool hash_other(State *state, const KeyTable *key_table, PyObject *key, bool encoded, u64 *hash) {
    PyObject *made = NULL;
    if (!encoded || !PyBytes_CheckExact(key)) {
        if (encoded && !PyUnicode_CheckExact(key)) {
            PyErr_Format(PyExc_TypeError, "Check.key: expected what keys.encode returns, got %R", (PyObject *)Py_TYPE(key));
            return false;
        }
        made = PyObject_CallFunctionObjArgs(state->encode, key, NULL);
        if (!made)
            return false;
        if (!PyBytes_CheckExact(made)) {
            bool done = hash_key(state, key_table, made, true, hash);
            Py_DECREF(made);
            return done;
        }
        key = made;
    }
    char *bytes;
    Py_ssize_t size;
    PyBytes_AsStringAndSize(key, &bytes, &size);
    *hash = siphash(key_table->seed, 0, bytes, (size_t)size);
    Py_XDECREF(made);
    return true;
}

bool cost_from(State *state, PyObject *cost, u64 *number) {
    int overflow = 0;
    if (PyLong_CheckExact(cost)) {
        long long value = PyLong_AsLongLongAndOverflow(cost, &overflow);
        if (!overflow && value > 0 && value <= (long long)MOST_COST) {
            *number = (u64)value;
            return true;
        }
    }
    PyObject *whole = PyObject_CallFunctionObjArgs(state->to_cost, cost, NULL);
    if (!whole)
        return false;
    *number = PyLong_AsUnsignedLongLong(whole);
    Py_DECREF(whole);
    return !(*number == (u64)-1 && PyErr_Occurred());
}

bool read_nanos(State *state, PyObject *nanos, u64 *now) {
    if (!nanos) {
        *now = machine_clock(false);
        return true;
    }
    Py_INCREF(nanos); /* the call may replace the clock */
    PyObject *found = PyObject_CallNoArgs(nanos);
    Py_DECREF(nanos);
    if (!found)
        return false;
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(found, &overflow);
    if (value == -1 && !overflow && PyErr_Occurred()) {
        Py_DECREF(found);
        return false;
    }
    if (overflow || value < 0 || (u64)value / 1000 >= MOST_NOW) {
        PyErr_Format(state->invalid, "clock: expected nanoseconds from 0 to 142 years, got %S.", found);
        Py_DECREF(found);
        return false;
    }
    Py_DECREF(found);
    *now = (u64)value / 1000;
    return true;
}

bool set_nanos(PyObject **place, PyObject *nanos) {
    if (!nanos || (nanos != Py_None && !PyCallable_Check(nanos))) {
        PyErr_SetString(PyExc_TypeError, "nanos: expected a function or None");
        return false;
    }
    PyObject *before = *place;
    *place = nanos == Py_None ? NULL : Py_NewRef(nanos);
#ifndef Py_GIL_DISABLED /* in such a build another thread may be about to call it: leak it, as it is replaced once */
    Py_XDECREF(before);
#else
    (void)before;
#endif
    return true;
}
