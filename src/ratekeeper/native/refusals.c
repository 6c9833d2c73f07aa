/* Refusal and Recall: cached refusals of a remote store.  The C twin of stores/redis/refusal.py. */
#include "core.h"

#include <structmember.h>

/* One refusal.  It holds from `sent` until `until`, our nanoseconds; the store's clock is `ahead` of ours. */
typedef struct {
    PyObject_HEAD
    PyObject *limit;
    PyObject *evidence; /* (False, limit, state, now, cost) */
    long long cost, sent, until, ahead;
    char is_partial;
} RefusalObject;

typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *by_key, *limit;
    PyObject *nanos; /* NULL: the machine's monotonic clock */
} RecallObject;

/* Refusal(limit, cost, state, now, sent, until, is_partial) */
static PyObject *refusal_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"limit", "cost", "state", "now", "sent", "until", "is_partial", NULL};
    PyObject *limit, *state;
    long long cost, now, sent, until, ahead;
    int is_partial;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OLOLLLp:Refusal", names, &limit, &cost, &state, &now, &sent,
                                     &until, &is_partial))
        return NULL;
    if (cost <= 0 || now < 0 || sent < 0 || until < sent || __builtin_mul_overflow(now, 1000LL, &ahead) ||
        until - sent > LLONG_MAX - ahead) {
        PyErr_SetString(PyExc_OverflowError, "Refusal: expected a cost above 0 and instants from 1970 to 2262");
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    RefusalObject *self = (RefusalObject *)alloc(type, 0);
    if (!self)
        return NULL;
    self->limit = Py_NewRef(limit);
    self->cost = cost;
    self->sent = sent;
    self->until = until;
    self->ahead = ahead - sent;
    self->is_partial = (char)is_partial;
    self->evidence = Py_BuildValue("(OOOLL)", Py_False, limit, state, now, cost);
    if (!self->evidence)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void refusal_free(RefusalObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Py_XDECREF(self->limit);
    Py_XDECREF(self->evidence);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static bool still_holds(const RefusalObject *self, PyObject *limit, long long cost, long long nanos) {
    return limit == self->limit && self->sent <= nanos && nanos < self->until &&
           (cost == self->cost || (cost > self->cost && !self->is_partial));
}

static PyObject *told_at(State *state, RefusalObject *self, long long cost, long long nanos) {
    u64 now = (u64)(nanos + self->ahead) / 1000;
    if (cost == self->cost)
        return refused_at(state, self->evidence, now);
    PyObject *part[3] = {PyTuple_GetItem(self->evidence, 1), PyTuple_GetItem(self->evidence, 2),
                         PyTuple_GetItem(self->evidence, 3)};
    PyObject *evidence = Py_BuildValue("(OOOOL)", Py_False, part[0], part[1], part[2], cost);
    PyObject *found = evidence ? refused_at(state, evidence, now) : NULL;
    Py_XDECREF(evidence);
    return found;
}

static PyObject *refusal_holds(RefusalObject *self, PyObject *args) {
    PyObject *limit;
    long long cost, nanos;
    if (!PyArg_ParseTuple(args, "OLL:holds", &limit, &cost, &nanos))
        return NULL;
    return PyBool_FromLong(still_holds(self, limit, cost, nanos));
}

/* Now, in nanoseconds of the clock of this Recall. */
static bool nanos_now(const RecallObject *self, long long *nanos) {
    if (!self->nanos) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        *nanos = (long long)now.tv_sec * 1000000000 + now.tv_nsec;
        return true;
    }
    PyObject *found = PyObject_CallNoArgs(self->nanos);
    *nanos = found ? PyLong_AsLongLong(found) : -1;
    Py_XDECREF(found);
    return !(*nanos == -1 && PyErr_Occurred());
}

/* Recall(by_key, limit, nanos) */
static PyObject *recall_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"by_key", "limit", "nanos", NULL};
    PyObject *by_key, *limit, *nanos;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!OO:Recall", names, &PyDict_Type, &by_key, &limit, &nanos))
        return NULL;
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    RecallObject *self = (RecallObject *)alloc(type, 0);
    if (!self)
        return NULL;
    self->state = PyType_GetModuleState(type);
    self->by_key = Py_NewRef(by_key);
    self->limit = Py_NewRef(limit);
    bool known = set_nanos(&self->nanos, nanos);
#ifdef __linux__ /* elsewhere Python may read another clock than clock_gettime does */
    PyObject *time = known ? PyImport_ImportModule("time") : NULL;
    PyObject *machine = time ? PyObject_GetAttrString(time, "monotonic_ns") : NULL;
    known = known && machine && (self->nanos != machine || set_nanos(&self->nanos, Py_None));
    Py_XDECREF(time);
    Py_XDECREF(machine);
#endif
    if (!known)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int recall_traverse(RecallObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
    Py_VISIT(self->by_key);
    Py_VISIT(self->limit);
    Py_VISIT(self->nanos);
    return 0;
}

static int recall_clear(RecallObject *self) {
    Py_CLEAR(self->nanos);
    return 0;
}

static void recall_free(RecallObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->by_key);
    Py_XDECREF(self->limit);
    Py_XDECREF(self->nanos);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* A new reference to the cached refusal of an encoded key; NULL if there is none, or with an error. */
static RefusalObject *found_for(RecallObject *self, PyObject *key) {
    PyObject *found;
#ifdef Py_GIL_DISABLED
    if (PyDict_GetItemRef(self->by_key, key, &found) < 0)
        found = NULL;
#else
    found = PyDict_GetItemWithError(self->by_key, key);
    Py_XINCREF(found);
#endif
    if (found && !PyObject_TypeCheck(found, self->state->refusal_type)) {
        PyErr_SetString(PyExc_TypeError, "Recall: expected refusals by key");
        Py_CLEAR(found);
    }
    return (RefusalObject *)found;
}

static PyObject *known_of(RecallObject *self, PyObject *key, PyObject *price) {
    u64 cost;
    long long nanos;
    RefusalObject *refusal = found_for(self, key);
    if (!refusal) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    PyObject *found = NULL;
    if (cost_from(self->state, price, &cost) && nanos_now(self, &nanos))
        found = still_holds(refusal, self->limit, (long long)cost, nanos)
                    ? told_at(self->state, refusal, (long long)cost, nanos)
                    : Py_NewRef(Py_None);
    Py_DECREF(refusal);
    return found;
}

static PyObject *recall_known(RecallObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count == 2)
        return known_of(self, args[0], args[1]);
    PyErr_SetString(PyExc_TypeError, "known() takes an encoded key and a cost");
    return NULL;
}

static PyObject *recall_hit(RecallObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "hit() takes a key and a cost");
        return NULL;
    }
    if (!PyDict_Size(self->by_key))
        Py_RETURN_NONE;
    if (PyUnicode_CheckExact(args[0]) && PyUnicode_GetLength(args[0]) <= LONGEST_KEY) /* text needs no encoding */
        return known_of(self, args[0], args[1]);
    PyObject *encoded = PyObject_CallFunctionObjArgs(self->state->encode, args[0], NULL);
    PyObject *found = encoded ? known_of(self, encoded, args[1]) : NULL;
    Py_XDECREF(encoded);
    return found;
}

static PyObject *refusal_decision(RefusalObject *self, PyObject *args) {
    State *state = NULL;
    long long cost, nanos;
    if (!PyArg_ParseTuple(args, "LL:decision", &cost, &nanos))
        return NULL;
    for (PyTypeObject *each = Py_TYPE((PyObject *)self); each && !state; each = PyType_GetSlot(each, Py_tp_base))
        state = PyType_GetModuleState(each); /* a subclass in Python has no module state of its own */
    PyErr_Clear();
    if (nanos < self->sent || nanos > self->until || cost < self->cost) {
        PyErr_SetString(PyExc_ValueError, "decision: expected an instant and a cost for which the refusal holds");
        return NULL;
    }
    return told_at(state, self, cost, nanos);
}

static PyMemberDef refusal_members[] = {
    {"limit", T_OBJECT, offsetof(RefusalObject, limit), READONLY, "What was asked for, and by which cost."},
    {"evidence", T_OBJECT, offsetof(RefusalObject, evidence), READONLY, "(False, limit, state, now, cost)"},
    {"cost", T_LONGLONG, offsetof(RefusalObject, cost), READONLY, NULL},
    {"sent", T_LONGLONG, offsetof(RefusalObject, sent), READONLY, "From when, and until when, it holds."},
    {"until", T_LONGLONG, offsetof(RefusalObject, until), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef refusal_methods[] = {
    {"holds", (PyCFunction)refusal_holds, METH_VARARGS,
     "holds($self, limit, cost, nanos, /)\n--\n\nWhether the store would refuse ``cost`` at the instant ``nanos``, too."},
    {"decision", (PyCFunction)refusal_decision, METH_VARARGS,
     "decision($self, cost, nanos, /)\n--\n\nThe refusal with the figures of the instant ``nanos``."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot refusal_slots[] = {
    {Py_tp_doc, "Refusal(limit, cost, state, now, sent, until, is_partial)\n--\n\nOne refusal, and how long it holds."},
    {Py_tp_new, refusal_new},
    {Py_tp_dealloc, refusal_free},
    {Py_tp_members, refusal_members},
    {Py_tp_methods, refusal_methods},
    {0, NULL}};

PyType_Spec refusal_spec = {"ratekeeper.native.core.Refusal", sizeof(RefusalObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, refusal_slots};

static PyMethodDef recall_methods[] = {
    {"hit", (PyCFunction)(void (*)(void))recall_hit, METH_FASTCALL,
     "hit($self, key, cost, /)\n--\n\nThe cached refusal of a caller's ``key`` if it holds now; else None."},
    {"known", (PyCFunction)(void (*)(void))recall_known, METH_FASTCALL,
     "known($self, key, cost, /)\n--\n\nThe same for a key that is encoded already."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot recall_slots[] = {
    {Py_tp_doc, "Recall(by_key, limit, nanos)\n--\n\nLooks up the cached refusals of one limit."},
    {Py_tp_new, recall_new},
    {Py_tp_dealloc, recall_free},
    {Py_tp_traverse, recall_traverse},
    {Py_tp_clear, recall_clear},
    {Py_tp_methods, recall_methods},
    {0, NULL}};

PyType_Spec recall_spec = {"ratekeeper.native.core.Recall", sizeof(RecallObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC, recall_slots};
