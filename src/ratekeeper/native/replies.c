/* read_buckets: the reply of a remote store to a prepared plan whose limits are all buckets, and which was taken.
 *
 * The C twin of PreparedRequest.read in stores/redis/prepared.py: it makes the decisions, and lets each layout remember
 * the state of its key.
 */
#include "core.h"

#define RECORD 20 /* bytes: the instant at which it was made and the whole part of the state, I8 each; the rest, I4 */

static u64 big_endian(const unsigned char *bytes, int count) {
    u64 number = 0;
    for (int index = 0; index < count; index++)
        number = number << 8 | bytes[index];
    return number;
}

/* A state, which needs more than 64 bits. */
static PyObject *state_of_record(u64 whole, u64 rest) {
    PyObject *a = PyLong_FromUnsignedLongLong(whole), *b = PyLong_FromLong(FRACTION);
    PyObject *state = a && b ? PyNumber_Lshift(a, b) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    if (state && rest) {
        PyObject *shifted = state, *c = PyLong_FromUnsignedLongLong(rest);
        state = c ? PyNumber_Or(shifted, c) : NULL;
        Py_XDECREF(c);
        Py_DECREF(shifted);
    }
    return state;
}

/* Let `layout` remember the state of `key`; `row` is (layout, terms, cost, refusals). */
static bool remember(State *state, PyObject *row, PyObject *key, PyObject *now, PyObject *seen, PyObject *value,
                     PyObject *sent, Py_ssize_t most) {
    PyObject *layout = PyTuple_GetItem(row, 0), *refusals = PyTuple_GetItem(row, 3);
    PyObject *recent = layout ? PyObject_GetAttr(layout, state->recent) : NULL;
    bool done = recent && refusals && PyDict_SetItem(recent, key, value) == 0 &&
                PyObject_SetAttr(layout, state->seen, seen) == 0;
    if (done && PyDict_Size(recent) >= most) {
        PyObject *aged = PyObject_CallMethod(layout, "age", NULL);
        done = aged;
        Py_XDECREF(aged);
    }
    Py_XDECREF(recent);
    int is_refused = done ? PyDict_Contains(refusals, key) : -1;
    if (is_refused == 1) {
        PyObject *cache = PyObject_GetAttrString(layout, "refusals");
        PyObject *noted = cache ? PyObject_CallMethod(cache, "admitted", "OOOOOO", key,
                                                      ((TermsObject *)PyTuple_GetItem(row, 1))->limit,
                                                      PyTuple_GetItem(row, 2), value, now, sent)
                                : NULL;
        done = noted;
        Py_XDECREF(cache);
        Py_XDECREF(noted);
    }
    return done && is_refused >= 0;
}

/* terms(limit): a bucket as the rows of read_buckets have it. */
PyObject *terms_of(PyObject *module, PyObject *limit) {
    return (PyObject *)terms_from(PyModule_GetState(module), limit);
}

/* read_buckets(reply, rows, keys, sent, most) -> the decisions */
PyObject *read_buckets(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *reply, *rows, *keys, *sent;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "O!O!O!On:read_buckets", &PyBytes_Type, &reply, &PyTuple_Type, &rows, &PyTuple_Type,
                          &keys, &sent, &most))
        return NULL;
    Py_ssize_t count = PyTuple_Size(rows);
    if (!count || PyTuple_Size(keys) != count || PyBytes_Size(reply) != count * RECORD) {
        PyErr_SetString(PyExc_ValueError, "read_buckets: expected a record and a key for each row");
        return NULL;
    }
    const unsigned char *bytes = (const unsigned char *)PyBytes_AsString(reply);
    u64 instant = big_endian(bytes, 8);
    PyObject *now = PyLong_FromUnsignedLongLong(instant);
    PyObject *seen = now ? PyTuple_Pack(2, now, sent) : NULL;
    PyObject *decisions = seen ? PyTuple_New(count) : NULL;
    for (Py_ssize_t index = 0; decisions && index < count; index++, bytes += RECORD) {
        PyObject *row = PyTuple_GetItem(rows, index), *key = PyTuple_GetItem(keys, index), *decision = NULL;
        if (!PyTuple_Check(row) || PyTuple_Size(row) != 4 || Py_TYPE(PyTuple_GetItem(row, 1)) != state->terms_type ||
            !PyDict_Check(PyTuple_GetItem(row, 3))) {
            PyErr_SetString(PyExc_TypeError, "read_buckets: expected (layout, terms, cost, refusals)");
        } else {
            u64 cost = PyLong_AsUnsignedLongLong(PyTuple_GetItem(row, 2));
            u64 whole = big_endian(bytes + 8, 8), rest = big_endian(bytes + 16, 4);
            PyObject *value = PyErr_Occurred() ? NULL : state_of_record(whole, rest);
            Evidence evidence = {false, true, {0, 0, 0}};
            split((u128)whole << FRACTION | rest, evidence.word);
            if (value && remember(state, row, key, now, seen, value, sent, most))
                decision = decision_from((TermsObject *)PyTuple_GetItem(row, 1), &evidence, true, instant, cost);
            Py_XDECREF(value);
        }
        if (!decision)
            Py_CLEAR(decisions);
        else
            PyTuple_SetItem(decisions, index, decision);
    }
    Py_XDECREF(seen);
    Py_XDECREF(now);
    return decisions;
}
