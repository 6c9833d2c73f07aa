/* Decision: the evidence, and the answers, which are worked out when they are read.  The twin of decision.py's. */
#include "core.h"

static PyObject *seconds(u64 micros) { return PyFloat_FromDouble((double)(i64)micros / 1e6); }

PyObject *decision_from(const TermsObject *terms, const Evidence *evidence, bool allowed, u64 now, u64 cost) {
    DecisionObject *self = new_decision(terms->state, (TermsObject *)terms);
    if (!self)
        return NULL;
    self->now = now;
    self->cost = cost;
    self->evidence.allowed = allowed;
    if (!terms->each) {
        self->evidence = *evidence;
        self->evidence.allowed = allowed;
        return (PyObject *)self;
    }
    self->kind = SEVERAL;
    self->other = PyTuple_New(terms->parts);
    for (uint32_t index = 0; self->other && index < terms->parts; index++) {
        TermsObject *own = (TermsObject *)PyTuple_GetItem(terms->each, index);
        PyObject *part = own ? decision_from(own, evidence + index, evidence[index].allowed, now, cost) : NULL;
        if (!part || PyTuple_SetItem(self->other, index, part) < 0)
            Py_CLEAR(self->other);
    }
    if (!self->other)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *pure(DecisionObject *self);

static PyObject *from_evidence(State *state, PyObject *evidence, u64 now, int allowed) {
    DecisionObject *self = allowed < 0 ? NULL : new_decision(state, NULL);
    if (!self)
        return NULL;
    self->kind = IN_PYTHON;
    self->evidence.allowed = allowed;
    self->now = now;
    self->other = Py_NewRef(evidence);
#ifdef Py_GIL_DISABLED
    if (!pure(self)) /* now: two threads must not make it at the same time */
        Py_CLEAR(self);
#endif
    return (PyObject *)self;
}

/* new_decision(cls, evidence): a decision of a store that is written in Python. */
PyObject *python_decision(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    State *state = PyModule_GetState(module);
    if (count != 2 || !PyTuple_Check(args[1]) || PyTuple_Size(args[1]) != 5 || !state->pure) {
        PyErr_SetString(PyExc_TypeError, "new_decision: expected Decision and (allowed, limit, state, now, cost)");
        return NULL;
    }
    return from_evidence(state, args[1], 0, PyObject_IsTrue(PyTuple_GetItem(args[1], 0)));
}

/* The refusal of that evidence, at another instant. */
PyObject *refused_at(State *state, PyObject *evidence, u64 now) { return from_evidence(state, evidence, now, false); }

static PyObject *evidence_at(PyObject *evidence, u64 now) {
    PyObject *found = PyTuple_New(5);
    for (Py_ssize_t index = 0; found && index < 5; index++) {
        PyObject *item = index == 3 ? PyLong_FromUnsignedLongLong(now) : Py_NewRef(PyTuple_GetItem(evidence, index));
        if (!item || PyTuple_SetItem(found, index, item) < 0)
            Py_CLEAR(found);
    }
    return found;
}

/* The Decision in Python, made from the evidence the first time that more than `allowed` is read. */
static PyObject *pure(DecisionObject *self) {
    if (PyTuple_CheckExact(self->other)) {
        State *state = state_of((PyObject *)self);
        PyObject *evidence = self->now ? evidence_at(self->other, self->now) : Py_NewRef(self->other);
        if (!evidence)
            return NULL;
        PyObject *items = PyTuple_Pack(1, evidence); /* tuple.__new__ itself: looking it up costs more than the call */
        Py_DECREF(evidence);
        PyObject *made = items ? state->tuple_new((PyTypeObject *)state->pure, items, NULL) : NULL;
        Py_XDECREF(items);
        if (!made)
            return NULL;
        Py_DECREF(self->other);
        self->other = made;
    }
    return self->other;
}

static PyObject *python_answer(DecisionObject *self, const char *name) {
    PyObject *decision = pure(self);
    return decision ? PyObject_GetAttrString(decision, name) : NULL;
}

static bool micros_from(State *state, PyObject *value, const char *what, i64 *micros) {
    PyObject *number = PyObject_CallFunction(state->to_micros, "Os", value, what);
    if (!number)
        return false;
    *micros = PyLong_AsLongLong(number);
    Py_DECREF(number);
    return !(*micros == -1 && PyErr_Occurred());
}

static PyObject *decision_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"allowed", "limit", "remaining", "retry_after", "reset_after", "delay", NULL};
    State *state = PyType_GetModuleState(type);
    PyObject *allowed, *retry_after = NULL, *reset_after = NULL, *delay = NULL;
    long long limit, remaining;
    i64 retry = 0, reset = 0, turn = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OLL|OOO:Decision", names, &allowed, &limit, &remaining,
                                     &retry_after, &reset_after, &delay))
        return NULL;
    int admitted = PyObject_IsTrue(allowed);
    if (admitted < 0)
        return NULL;
    if (retry_after == Py_None)
        retry = NEVER;
    else if (retry_after && !micros_from(state, retry_after, "retry_after", &retry))
        return NULL;
    if ((reset_after && !micros_from(state, reset_after, "reset_after", &reset)) ||
        (delay && !micros_from(state, delay, "delay", &turn)))
        return NULL;
    DecisionObject *self = new_decision(state, NULL);
    if (!self)
        return NULL;
    self->kind = PRESET;
    self->now = 0;
    self->cost = 0;
    self->capacity = limit;
    self->delay = turn;
    self->evidence = (Evidence){true, admitted, {(u64)remaining, (u64)retry, (u64)reset}};
    return (PyObject *)self;
}

static void decision_free(DecisionObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    TermsObject *terms = self->terms;
    Py_XDECREF(self->other);
#ifndef Py_GIL_DISABLED
    State *state = terms ? terms->state : PyType_GetModuleState(type);
    if (state->spares < SPARE_DECISIONS) {
        state->spare[state->spares++] = self;
    } else
#endif
        PyObject_Free(self);
    Py_XDECREF((PyObject *)terms);
    Py_DECREF(type);
}

void free_spares(State *state) {
    while (state->spares)
        PyObject_Free(state->spare[--state->spares]);
}

static int decision_true(DecisionObject *self) { return self->evidence.allowed; }

static PyObject *get_allowed(DecisionObject *self, void *unused) { return PyBool_FromLong(self->evidence.allowed); }

static PyObject *get_at(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "at");
    return PyLong_FromUnsignedLongLong(self->now);
}

static const Limit *limit_in(const DecisionObject *self) { return self->terms->limits; }

static u64 remaining_in(DecisionObject *self) {
    Evidence *evidence = &self->evidence;
    Part part = {0};
    if (evidence->answered)
        return evidence->word[0];
    part.algorithm = limit_in(self)->algorithm;
    return part_remaining(&part, evidence->word, self->now, limit_in(self), 0);
}

static i64 retry_in(DecisionObject *self) {
    const Limit *limit = self->terms ? limit_in(self) : NULL; /* a PRESET one has none, and is answered */
    return retry_from(&self->evidence, limit, self->now, self->cost);
}

static u64 reset_in(DecisionObject *self) {
    Evidence *evidence = &self->evidence;
    Part part = {0};
    if (evidence->answered)
        return evidence->word[2];
    part.algorithm = limit_in(self)->algorithm;
    return part_reset_after(&part, evidence->word, self->now, limit_in(self), 0);
}

static u64 delay_in(DecisionObject *self) {
    if (!self->evidence.allowed)
        return 0;
    if (self->kind == PRESET)
        return (u64)self->delay;
    if (limit_in(self)->algorithm != LEAKY_BUCKET)
        return 0;
    return leaky_bucket_delay(joined(self->evidence.word), self->now, limit_in(self), self->cost);
}

static DecisionObject *part_in(DecisionObject *self, Py_ssize_t index) {
    return (DecisionObject *)PyTuple_GetItem(self->other, index);
}

/* The part that decided: the refusal with the longest wait, else the part with the least remaining. */
static DecisionObject *binding_in(DecisionObject *self) {
    DecisionObject *found = NULL;
    i64 longest = 0;
    for (Py_ssize_t index = 0; !self->evidence.allowed && index < PyTuple_Size(self->other); index++) {
        DecisionObject *part = part_in(self, index);
        if (part->evidence.allowed)
            continue;
        i64 wait = retry_in(part) == NEVER ? INT64_MAX : retry_in(part);
        if (!found || wait > longest) {
            found = part;
            longest = wait;
        }
    }
    for (Py_ssize_t index = 0; self->evidence.allowed && index < PyTuple_Size(self->other); index++)
        if (!found || remaining_in(part_in(self, index)) < remaining_in(found))
            found = part_in(self, index);
    return found;
}

static PyObject *get_limit(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "limit");
    if (self->kind == PRESET)
        return PyLong_FromLongLong(self->capacity);
    DecisionObject *bound = self->kind == SEVERAL ? binding_in(self) : self;
    return PyLong_FromUnsignedLongLong(limit_in(bound)->capacity);
}

static PyObject *get_remaining(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "remaining");
    if (self->kind != SEVERAL)
        return PyLong_FromLongLong((i64)remaining_in(self));
    u64 found = UINT64_MAX;
    for (Py_ssize_t index = 0; index < PyTuple_Size(self->other); index++)
        found = least(found, remaining_in(part_in(self, index)));
    return PyLong_FromUnsignedLongLong(found);
}

static PyObject *get_retry_after(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "retry_after");
    i64 wait = self->kind == SEVERAL ? 0 : retry_in(self);
    if (self->kind == SEVERAL && !self->evidence.allowed)
        for (Py_ssize_t index = 0; index < PyTuple_Size(self->other) && wait != NEVER; index++) {
            i64 own = retry_in(part_in(self, index));
            wait = own == NEVER || own > wait ? own : wait;
        }
    if (wait == NEVER)
        Py_RETURN_NONE;
    return seconds((u64)wait);
}

static u64 latest_reset(DecisionObject *self) {
    if (self->kind != SEVERAL)
        return reset_in(self);
    u64 found = 0;
    for (Py_ssize_t index = 0; index < PyTuple_Size(self->other); index++) {
        u64 own = reset_in(part_in(self, index));
        found = own > found ? own : found;
    }
    return found;
}

static PyObject *get_reset_after(DecisionObject *self, void *unused) {
    return self->kind == IN_PYTHON ? python_answer(self, "reset_after") : seconds(latest_reset(self));
}

static PyObject *get_reset_at(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "reset_at");
    bool aligned = self->terms && self->terms->limits->wall; /* else its clock has another origin */
    return seconds((aligned ? self->now : machine_clock(true)) + latest_reset(self));
}

static PyObject *get_delay(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "delay");
    if (self->kind != SEVERAL)
        return seconds(delay_in(self));
    u64 found = 0;
    for (Py_ssize_t index = 0; self->evidence.allowed && index < PyTuple_Size(self->other); index++) {
        u64 own = delay_in(part_in(self, index));
        found = own > found ? own : found;
    }
    return seconds(found);
}

static PyObject *get_reason(DecisionObject *self, void *unused) {
    if (self->kind == IN_PYTHON)
        return python_answer(self, "reason");
    return self->terms && self->terms->reason ? Py_NewRef(self->terms->reason) : PyUnicode_FromString("");
}

static PyObject *decision_parts(DecisionObject *self, PyObject *unused) {
    if (self->kind == SEVERAL)
        return Py_NewRef(self->other);
    if (self->kind == IN_PYTHON) {
        PyObject *own = pure(self);
        PyObject *parts = own ? PyObject_CallMethod(own, "parts", NULL) : NULL;
        if (!parts || PyTuple_GetItem(parts, 0) != self->other)
            return parts;
        Py_DECREF(parts);
    }
    return PyTuple_Pack(1, (PyObject *)self);
}

static PyObject *decision_binding(DecisionObject *self, PyObject *unused) {
    if (self->kind == IN_PYTHON) {
        PyObject *own = pure(self);
        PyObject *bound = own ? PyObject_CallMethod(own, "binding", NULL) : NULL;
        if (bound != self->other)
            return bound;
        Py_DECREF(bound);
    }
    return Py_NewRef(self->kind == SEVERAL ? (PyObject *)binding_in(self) : (PyObject *)self);
}

static PyObject *answers(DecisionObject *self) {
    PyObject *row[6] = {get_allowed(self, NULL),     get_limit(self, NULL),       get_remaining(self, NULL),
                        get_retry_after(self, NULL), get_reset_after(self, NULL), get_delay(self, NULL)};
    PyObject *found = NULL;
    if (row[0] && row[1] && row[2] && row[3] && row[4] && row[5])
        found = PyTuple_Pack(6, row[0], row[1], row[2], row[3], row[4], row[5]);
    for (int index = 0; index < 6; index++)
        Py_XDECREF(row[index]);
    return found;
}

static PyObject *decision_compare(PyObject *self, PyObject *other, int how) {
    if (Py_TYPE(self) != Py_TYPE(other) || (how != Py_EQ && how != Py_NE))
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *mine = answers((DecisionObject *)self), *theirs = answers((DecisionObject *)other);
    PyObject *found = mine && theirs ? PyObject_RichCompare(mine, theirs, how) : NULL;
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return found;
}

static Py_hash_t decision_hash(PyObject *self) {
    PyObject *mine = answers((DecisionObject *)self);
    Py_hash_t found = mine ? PyObject_Hash(mine) : -1;
    Py_XDECREF(mine);
    return found;
}

static PyObject *decision_repr(PyObject *self) {
    PyObject *row = answers((DecisionObject *)self);
    if (!row)
        return NULL;
    PyObject *text = PyUnicode_FromFormat(
        "Decision(allowed=%R, limit=%R, remaining=%R, retry_after=%R, reset_after=%R, delay=%R)",
        PyTuple_GetItem(row, 0), PyTuple_GetItem(row, 1), PyTuple_GetItem(row, 2), PyTuple_GetItem(row, 3),
        PyTuple_GetItem(row, 4), PyTuple_GetItem(row, 5));
    Py_DECREF(row);
    return text;
}

static PyObject *decision_reduce(PyObject *self, PyObject *unused) {
    PyObject *row = answers((DecisionObject *)self);
    return row ? Py_BuildValue("(ON)", Py_TYPE(self), row) : NULL;
}

static PyGetSetDef decision_getset[] = {
    {"allowed", (getter)get_allowed, NULL, "Whether the call was admitted.", NULL},
    {"limit", (getter)get_limit, NULL,
     "The capacity: the most that can pass at once.  Of several limits, that of the binding one.", NULL},
    {"remaining", (getter)get_remaining, NULL,
     "How much cost would be admitted right after this decision.  Of several limits, the smallest.", NULL},
    {"retry_after", (getter)get_retry_after, NULL,
     "Seconds until the same call would be admitted: 0.0 if it was, None if it never can be.", NULL},
    {"reset_at", (getter)get_reset_at, NULL,
     "The instant at which the full limit is available again, in seconds since 1970.", NULL},
    {"reset_after", (getter)get_reset_after, NULL, "Seconds until the full limit is available again.", NULL},
    {"delay", (getter)get_delay, NULL,
     "Seconds that a call admitted by a leaky bucket has to wait for its turn; else 0.0.", NULL},
    {"at", (getter)get_at, NULL, "The instant of the decision on the store's clock, in microseconds.", NULL},
    {"reason", (getter)get_reason, NULL,
     "Empty if the store decided; else its fallback and why: ``\"local: gave no answer in 50 ms\"``.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef decision_methods[] = {
    {"parts", (PyCFunction)decision_parts, METH_NOARGS,
     "parts($self, /)\n--\n\nThe decision of each limit, if several were decided as one; else this decision alone."},
    {"binding", (PyCFunction)decision_binding, METH_NOARGS,
     "binding($self, /)\n--\n\nThe part that decided: the refusal with the longest wait, else the part with the "
     "least remaining."},
    {"__reduce__", decision_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot decision_slots[] = {
    {Py_tp_doc, "Decision(allowed, limit, remaining, retry_after=0.0, reset_after=0.0, delay=0.0)\n--\n\n"
                "The answer to one call.  It is true if the call was admitted: ``if limiter.check(key): ...``.\n\n"
                "The answers are exact as of the instant of the decision."},
    {Py_tp_new, decision_new},
    {Py_tp_dealloc, decision_free},
    {Py_tp_repr, decision_repr},
    {Py_tp_hash, decision_hash},
    {Py_tp_richcompare, decision_compare},
    {Py_tp_getset, decision_getset},
    {Py_tp_methods, decision_methods},
    {Py_nb_bool, decision_true},
    {0, NULL}};

PyType_Spec decision_spec = {"ratekeeper.decision.Decision", sizeof(DecisionObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, decision_slots};
