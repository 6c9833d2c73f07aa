/* The module: its types, the Python functions that it calls, and the sizes of shared tables. */
#include "core.h"

#include <stdio.h>

#if defined(__GLIBC__)
#define LIBRARY "glibc"
#elif defined(__linux__)
#define LIBRARY "musl"
#else
#define LIBRARY "libc"
#endif

/* learn(encode, to_cost, to_micros, InvalidInput, Decision): keep what the core needs from Python.  The functions
 * handle keys, costs and times that are rare; Decision is the class in Python, for stores that are written in Python.
 */
static PyObject *learn(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *encode, *to_cost, *to_micros, *invalid, *pure;
    if (!PyArg_ParseTuple(args, "OOOOO:learn", &encode, &to_cost, &to_micros, &invalid, &pure))
        return NULL;
    PyObject **places[] = {&state->encode, &state->to_cost, &state->to_micros, &state->invalid, &state->pure};
    PyObject *values[] = {encode, to_cost, to_micros, invalid, pure};
    for (int index = 0; index < 5; index++) {
        PyObject *before = *places[index];
        *places[index] = Py_NewRef(values[index]);
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

/* learn_awaiting(NotAwaited): keep the error about a call that was not awaited. */
static PyObject *learn_awaiting(PyObject *module, PyObject *not_awaited) {
    State *state = PyModule_GetState(module);
    PyObject *before = state->not_awaited;
    state->not_awaited = Py_NewRef(not_awaited);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* shape(limit, shared): a text that is equal for limits whose states fit into the same slots. */
static PyObject *shape_text(PyObject *module, PyObject *args) {
    PyObject *limit;
    int shared;
    if (!PyArg_ParseTuple(args, "Op:shape", &limit, &shared))
        return NULL;
    TermsObject *terms = terms_from(PyModule_GetState(module), limit);
    if (!terms)
        return NULL;
    Shape *shape = shape_of(terms->limits, terms->parts, shared, !shared || CAN_SWAP);
    Py_DECREF(terms);
    if (!shape)
        return PyErr_NoMemory();
    PyObject *text = shape->packed ? PyUnicode_FromFormat("packed:%u", (unsigned)shape->digit)
                                   : PyUnicode_FromFormat("wide:%u", (unsigned)shape->words);
    free(shape);
    return text;
}

static PyObject *shared_size(PyObject *module, PyObject *args) {
    PyObject *limit;
    unsigned long long max_keys;
    if (!PyArg_ParseTuple(args, "OK:shared_size", &limit, &max_keys))
        return NULL;
    TermsObject *terms = terms_from(PyModule_GetState(module), limit);
    if (!terms)
        return NULL;
    Shape *shape = shape_of(terms->limits, terms->parts, true, CAN_SWAP);
    Py_DECREF(terms);
    if (!shape)
        return PyErr_NoMemory();
    size_t size = shared_bytes(shape, regions_for(max_keys), buckets_for(max_keys));
    free(shape);
    return PyLong_FromSize_t(size);
}

/* make_guards(limit, max_keys, memory): of a new table, before other processes see it. */
static PyObject *make_guards(PyObject *module, PyObject *args) {
    PyObject *limit;
    unsigned long long max_keys;
    Py_buffer memory;
    if (!PyArg_ParseTuple(args, "OKw*:make_guards", &limit, &max_keys, &memory))
        return NULL;
    TermsObject *terms = terms_from(PyModule_GetState(module), limit);
    Shape *shape = terms ? shape_of(terms->limits, terms->parts, true, CAN_SWAP) : NULL;
    Py_XDECREF((PyObject *)terms);
    bool made = false;
    if (shape && (size_t)memory.len >= shared_bytes(shape, regions_for(max_keys), buckets_for(max_keys)))
        made = make_shared(shape, memory.buf, regions_for(max_keys), buckets_for(max_keys));
    free(shape);
    PyBuffer_Release(&memory);
    if (!made) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_OSError, "this system has no robust mutexes that processes can share");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"new_decision", (PyCFunction)(void (*)(void))python_decision, METH_FASTCALL,
     "Make a Decision from its evidence, for stores that are written in Python."},
    {"check_each", check_each, METH_VARARGS,
     "check_each(ways, subjects, times)\n--\n\nDecide prepared plans, each for its subject and at its own instant: a "
     "byte for each that was admitted or not; when it has its turn; and of each refusal its place, the row of the plan "
     "that refuses for longest, and for how long, or -1; all numbers of 64 bits."},
    {"count_each", count_each, METH_VARARGS,
     "count_each(who, allowed, keys)\n--\n\nHow many calls of each key were admitted, and how many refused."},
    {"picked", picked, METH_VARARGS,
     "picked(numbers, flags)\n--\n\nThe numbers that are flagged, the least first, 64 bits each."},
    {"longest_wait", longest_wait, METH_VARARGS,
     "longest_wait(times, turns)\n--\n\nThe longest way from a time to its turn."},
    {"judge", judge, METH_VARARGS,
     "judge(times, who, allowed, keys, count, period, end)\n--\n\nWhat an exact sliding log says: wrongly admitted, "
     "wrongly refused, the most in any period, and the longest time that a key asked in vain."},
    {"most_within", most_within, METH_VARARGS,
     "most_within(times, length)\n--\n\nThe most that came within any stretch of that length; the times in order."},
    {"terms", terms_of, METH_O, "terms(limit, /)\n--\n\nA bucket as the rows of read_buckets have it."},
    {"read_buckets", read_buckets, METH_VARARGS,
     "read_buckets(reply, rows, keys, sent, most)\n--\n\nThe decisions of a prepared plan of buckets that a remote "
     "store took; each layout remembers the state of its key."},
    {"use_counter", use_counter, METH_O,
     "use_counter(wanted, /)\n--\n\nRead the time of private tables from the processor's counter; why not, or None."},
    {"compare_clocks", compare_clocks, METH_VARARGS,
     "compare_clocks(wall, count)\n--\n\nBy how many nanoseconds the clock of private tables was ahead of the "
     "system's, and behind it, how often it went back, and how often it was read from the counter."},
    {"learn_awaiting", learn_awaiting, METH_O, "Keep the error about a call that was not awaited."},
    {"learn", learn, METH_VARARGS, "Keep what the core needs from Python."},
    {"shape", shape_text, METH_VARARGS, "A text that is equal for limits whose states fit into the same slots."},
    {"shared_size", shared_size, METH_VARARGS, "The size of a shared table in bytes."},
    {"make_guards", make_guards, METH_VARARGS, "Initialise the memory of a shared table, before other processes see it."},
    {NULL, NULL, 0, NULL}};

static int start(PyObject *module) {
    State *state = PyModule_GetState(module);
    state->keyed = hashes_are_keyed();
    state->tuple_new = PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    struct { PyTypeObject **place; PyType_Spec *spec; const char *name; } types[] = {
        {&state->terms_type, &terms_spec, NULL},       {&state->decision_type, &decision_spec, "Decision"},
        {&state->key_table_type, &key_table_spec, "KeyTable"},    {&state->table_type, &table_spec, "Table"},
        {&state->store_type, &store_spec, "Store"},    {&state->prepared_type, &prepared_spec, "Prepared"},
        {&state->columns_type, &columns_spec, "Columns"},
        {&state->refusal_type, &refusal_spec, "Refusal"}, {&state->recall_type, &recall_spec, "Recall"},
        {&state->line_type, &line_spec, "Line"}, {&state->frames_type, &frames_spec, "ReplyFrames"},
        {&state->async_call_type, &async_call_spec, "AsyncCall"},
        {&state->awaitable_type, &awaitable_spec, "AwaitableCall"},
    };
    for (size_t index = 0; index < sizeof(types) / sizeof(types[0]); index++) {
        *types[index].place = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[index].spec, NULL);
        if (!*types[index].place ||
            (types[index].name && PyModule_AddObjectRef(module, types[index].name, (PyObject *)*types[index].place) < 0))
            return -1;
    }
    struct { PyObject **place; const char *text; } names[] = {{&state->space, "space"}, {&state->key, "key"},
        {&state->limit, "limit"}, {&state->cost, "cost"}, {&state->lease, "lease"}, {&state->lasts, "lasts"}, {&state->table, "table"},
        {&state->recent, "recent"}, {&state->seen, "seen"}};
    for (size_t index = 0; index < sizeof(names) / sizeof(names[0]); index++)
        if (!(*names[index].place = PyUnicode_InternFromString(names[index].text)))
            return -1;
    char build[64]; /* what two processes must have in common to share a guard */
    snprintf(build, sizeof build, "%s, guards of %zu bytes%s", LIBRARY, sizeof(Guard), CAN_SWAP ? ", swaps" : "");
    if (PyModule_AddStringConstant(module, "BUILD", build) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "CAN_SWAP", CAN_SWAP);
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->terms_type);
    Py_VISIT(state->decision_type);
    Py_VISIT(state->key_table_type);
    Py_VISIT(state->table_type);
    Py_VISIT(state->store_type);
    Py_VISIT(state->prepared_type);
    Py_VISIT(state->columns_type);
    Py_VISIT(state->refusal_type);
    Py_VISIT(state->recall_type);
    Py_VISIT(state->line_type);
    Py_VISIT(state->frames_type);
    Py_VISIT(state->async_call_type);
    Py_VISIT(state->awaitable_type);
    Py_VISIT(state->not_awaited);
    Py_VISIT(state->encode);
    Py_VISIT(state->to_cost);
    Py_VISIT(state->to_micros);
    Py_VISIT(state->invalid);
    Py_VISIT(state->pure);
    return 0;
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->encode);
    Py_CLEAR(state->to_cost);
    Py_CLEAR(state->to_micros);
    Py_CLEAR(state->invalid);
    Py_CLEAR(state->pure);
    Py_CLEAR(state->not_awaited);
    return 0;
}

static void finish(void *module) {
    State *state = PyModule_GetState(module);
    clear(module);
    free_spares(state);
    Py_CLEAR(state->terms_type);
    Py_CLEAR(state->decision_type);
    Py_CLEAR(state->key_table_type);
    Py_CLEAR(state->table_type);
    Py_CLEAR(state->store_type);
    Py_CLEAR(state->prepared_type);
    Py_CLEAR(state->columns_type);
    Py_CLEAR(state->refusal_type);
    Py_CLEAR(state->recall_type);
    Py_CLEAR(state->line_type);
    Py_CLEAR(state->frames_type);
    Py_CLEAR(state->async_call_type);
    Py_CLEAR(state->awaitable_type);
    Py_CLEAR(state->space);
    Py_CLEAR(state->key);
    Py_CLEAR(state->limit);
    Py_CLEAR(state->cost);
    Py_CLEAR(state->lease);
    Py_CLEAR(state->lasts);
    Py_CLEAR(state->table);
    Py_CLEAR(state->recent);
    Py_CLEAR(state->seen);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, start},
#if PY_VERSION_HEX >= 0x030C0000 && !defined(Py_LIMITED_API)
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "ratekeeper.native.core",
    .m_doc = "The C twin of the rules, the key table around them, and Decision.", .m_size = sizeof(State),
    .m_methods = methods, .m_slots = slots, .m_traverse = traverse, .m_clear = clear, .m_free = finish};

PyMODINIT_FUNC PyInit_core(void) { return PyModuleDef_Init(&definition); }
