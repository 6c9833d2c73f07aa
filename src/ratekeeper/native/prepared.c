/* Prepared: a plan with its spaces, limits and costs, which only waits for keys. */
#include "batch.h"

#define SOME_BYTES 2048 /* on the stack: enough for plans of a few limits */

static int prepared_clear(PreparedObject *self) {
    Py_CLEAR(self->store);
    return 0;
}

static void prepared_free(PreparedObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    prepared_clear(self);
    for (int index = 0; index < self->count; index++)
        Py_DECREF((PyObject *)self->tables[index]);
    PyMem_Free(self->tables);
    PyMem_Free(self->costs);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int prepared_traverse(PreparedObject *self, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->store);
    for (int index = 0; index < self->count; index++)
        Py_VISIT((PyObject *)self->tables[index]);
    return 0;
}

static bool add_row(PreparedObject *self, PyObject *row) {
    PyObject *space, *limit, *cost, *mode; /* the mode of the fallback: a store in this process needs none */
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "OOO|O", &space, &limit, &cost, &mode)) {
        PyErr_Format(PyExc_TypeError, "prepare: expected (space, limit, cost), got %R", row);
        return false;
    }
    if (!cost_from(self->store->state, cost, self->costs + self->count))
        return false;
    TableObject *table = table_for(self->store, space, limit);
    if (!table)
        return false;
    self->tables[self->count++] = table;
    return true;
}

PyObject *store_prepare(StoreObject *store, PyObject *rows) {
    if (!PyTuple_Check(rows)) {
        PyErr_Format(PyExc_TypeError, "prepare: expected a tuple of (space, limit, cost), got %R", (PyObject *)Py_TYPE(rows));
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(rows);
    allocfunc alloc = PyType_GetSlot(store->state->prepared_type, Py_tp_alloc);
    PreparedObject *self = (PreparedObject *)alloc(store->state->prepared_type, 0);
    if (!self)
        return NULL;
    self->store = (StoreObject *)Py_NewRef((PyObject *)store);
    self->tables = PyMem_Malloc((size_t)count * sizeof(TableObject *) + 1);
    self->costs = PyMem_Malloc((size_t)count * sizeof(u64) + 1);
    if (!self->tables || !self->costs) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t index = 0; index < count; index++)
        if (!add_row(self, PyTuple_GetItem(rows, index))) {
            Py_DECREF(self);
            return NULL;
        }
    self->bytes = batch_bytes(self->tables, self->count);
    return (PyObject *)self;
}

bool are_keys_of(const PreparedObject *self, PyObject *keys) {
    if (PyTuple_Check(keys) && PyTuple_Size(keys) == self->count)
        return true;
    PyErr_Format(PyExc_TypeError, "check: expected a tuple of %d keys, got %R", self->count, keys);
    return false;
}

/* Neighbours with the same key on tables of one seed are hashed once. */
bool hash_keys(const PreparedObject *self, PyObject *keys, PyObject *before, Item *items) {
    State *state = self->store->state;
    PyObject *last = NULL;
    for (int index = 0; index < self->count; index++) {
        PyObject *key = PyTuple_GetItem(keys, index);
        const KeyTable *key_table = self->tables[index]->home->key_table;
        if (before && key == PyTuple_GetItem(before, index)) {
            last = key;
            continue;
        }
        if (key == last && !memcmp(key_table->seed, self->tables[index - 1]->home->key_table->seed, sizeof(key_table->seed)))
            items[index].hash = items[index - 1].hash;
        else if (!hash_key(state, key_table, key, false, &items[index].hash))
            return false;
        items[index].cost = self->costs[index];
        last = key;
    }
    return true;
}

static PyObject *prepared_check(PreparedObject *self, PyObject *keys) {
    if (!are_keys_of(self, keys))
        return NULL;
    u64 some[SOME_BYTES / sizeof(u64)];
    Batch batch = {.count = self->count, .tables = self->tables};
    if (self->bytes > sizeof(some) && !(batch.memory = PyMem_Malloc(self->bytes)))
        return PyErr_NoMemory();
    share_out(&batch, batch.memory ? batch.memory : some);
    bool allowed;
    PyObject *decisions = NULL, *answer = NULL;
    if (hash_keys(self, keys, NULL, batch.items))
        decisions = decide_batch(self->store, &batch, false, &allowed);
    if (decisions)
        answer = PyTuple_Pack(2, allowed ? Py_True : Py_False, decisions);
    Py_XDECREF(decisions);
    PyMem_Free(batch.memory);
    return answer;
}

static PyMethodDef prepared_methods[] = {
    {"check", (PyCFunction)prepared_check, METH_O,
     "check($self, keys, /)\n--\n\nTake every cost for its key, or none: whether they were taken, and the decisions."},
    {"check_now", (PyCFunction)prepared_check, METH_O, "check_now($self, keys, /)\n--\n\n``check``, which never waits."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot prepared_slots[] = {
    {Py_tp_doc, "A plan with its spaces, limits and costs, which only waits for keys."},
    {Py_tp_dealloc, prepared_free},
    {Py_tp_traverse, prepared_traverse},
    {Py_tp_clear, prepared_clear},
    {Py_tp_methods, prepared_methods},
    {0, NULL}};

PyType_Spec prepared_spec = {"ratekeeper.native.core.Prepared", sizeof(PreparedObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                                 Py_TPFLAGS_HAVE_GC,
                             prepared_slots};
