/* What the parts of the extension share: the module's state and its objects. */
#ifndef RATEKEEPER_CORE_H
#define RATEKEEPER_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#define RATEKEEPER_LOCKED 1
#endif

/* Decisions on private tables hold the interpreter's lock throughout; who waits for another process lets it go. */
#define WHILE_WAITING(statement)                   \
    do {                                           \
        PyThreadState *running = PyEval_SaveThread(); \
        statement;                                 \
        PyEval_RestoreThread(running);             \
    } while (0)

#include "cycle_clock.h"
#include "hot.h"

#define LONGEST_KEY 256 /* keys.LONGEST */
#define SPARE_DECISIONS 64
#define MOST_LOOKS 1000 /* at a clock in Python, while other threads write */

/* The kinds of a decision. */
#define SINGLE 0    /* of one limit, with its evidence */
#define SEVERAL 1   /* of several limits: `other` is the tuple of their decisions */
#define PRESET 2    /* with answers known in advance */
#define IN_PYTHON 3 /* of a store in Python: `other` is the evidence, of the instant `now` unless that is 0, or the
                     * Decision in Python, once it was needed */

typedef struct DecisionObject DecisionObject;

typedef struct {
    PyTypeObject *terms_type, *decision_type, *key_table_type, *table_type, *store_type, *prepared_type, *columns_type;
    PyTypeObject *refusal_type, *recall_type, *line_type, *frames_type, *async_call_type, *awaitable_type;
    PyObject *encode, *to_cost, *to_micros, *invalid; /* set by `learn` */
    PyObject *not_awaited;                            /* the error, set by `learn_awaiting` */
    PyObject *pure;                                      /* the Decision in Python */
    PyObject *space, *key, *limit, *cost, *lease, *lasts, *table, *recent, *seen; /* names */
    newfunc tuple_new;
    DecisionObject *spare[SPARE_DECISIONS];
    int spares;
    bool keyed; /* the interpreter's hashes: see hashes_are_keyed */
} State;

/* A limit, or several, in numbers. */
typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *limit;
    PyObject *each; /* a tuple of the terms of each of several limits, else NULL */
    Limit *limits;
    uint32_t parts;
    PyObject *reason; /* why the fallback decides by this limit; NULL: the store does */
} TermsObject;

struct DecisionObject {
    PyObject_HEAD
    TermsObject *terms;
    PyObject *other;
    u64 now;
    u64 cost;
    i64 capacity, delay; /* of a PRESET one */
    Evidence evidence;
    int kind;
};

typedef struct {
    PyObject_HEAD
    State *state;
    KeyTable *key_table;
    Py_buffer memory; /* of a shared one */
    bool shared;
} KeyTableObject;

typedef struct {
    PyObject_HEAD
    State *state;
    TermsObject *terms;
    KeyTableObject *home;
    KeyTable *key_table;    /* NULL: unlimited */
    PyObject *nanos; /* NULL: the machine's monotonic clock */
} TableObject;

#define CACHED_TABLES 256

typedef struct {
    PyObject *space, *limit;
    TableObject *table;
} CachedTable;

typedef struct {
    PyObject_HEAD
    State *state;
    PyObject *nanos;
    uint32_t lock;
    CachedTable cached[CACHED_TABLES];
} StoreObject;

typedef struct {
    PyObject_HEAD
    StoreObject *store;
    int count;
    TableObject **tables;
    u64 *costs;
    size_t bytes; /* of a batch */
} PreparedObject;

extern PyType_Spec terms_spec, decision_spec, key_table_spec, table_spec, store_spec, prepared_spec, columns_spec;
extern PyType_Spec refusal_spec, recall_spec, line_spec, frames_spec, async_call_spec, awaitable_spec;

static inline State *state_of(PyObject *self) { return PyType_GetModuleState(Py_TYPE(self)); }

TermsObject *terms_from(State *state, PyObject *limit);
PyObject *state_to_python(const Item *item);
bool hashes_are_keyed(void);
bool hash_text(const KeyTable *key_table, PyObject *key, u64 *hash);
bool hash_other(State *state, const KeyTable *key_table, PyObject *key, bool encoded, u64 *hash);
bool cost_from(State *state, PyObject *cost, u64 *number);
bool read_nanos(State *state, PyObject *nanos, u64 *now);
bool set_nanos(PyObject **place, PyObject *nanos);
void raise_unlockable(const KeyTable *key_table, int error);
PyObject *use_counter(PyObject *module, PyObject *wanted);
PyObject *compare_clocks(PyObject *module, PyObject *args);
PyObject *store_prepare(StoreObject *store, PyObject *rows);

/* Hash a key; `encoded`: keys.encode has made it already, as for the checks of a plan.
 *
 * A private table uses the interpreter's hash of a text, which is cached in the text.  That hashes the raw letters, of
 * one byte or more, so texts of different length may share it: the length is mixed in.
 */
static inline bool hash_key(State *state, const KeyTable *key_table, PyObject *key, bool encoded, u64 *hash) {
    if (PyUnicode_CheckExact(key)) {
        Py_ssize_t letters = PyUnicode_GetLength(key);
        if (letters && (letters <= LONGEST_KEY || encoded)) {
            if (!key_table->trusts_hash)
                return hash_text(key_table, key, hash);
            *hash = (u64)PyObject_Hash(key) ^ (u64)letters * 0x9E3779B97F4A7C15ULL;
            return true;
        }
    }
    return hash_other(state, key_table, key, encoded, hash);
}

/* The clock of private tables; guarded by the interpreter's lock. */
extern __attribute__((visibility("hidden"))) CycleClock cycle_clock;

/* Microseconds: of shared tables, which have one clock for all processes, or of those in this process. */
static inline u64 table_clock(bool shared, bool wall) {
    return shared ? machine_clock(wall) : private_nanos(&cycle_clock, wall) / 1000;
}

/* Decisions. */
PyObject *decision_from(const TermsObject *terms, const Evidence *evidence, bool allowed, u64 now, u64 cost);
PyObject *python_decision(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *terms_of(PyObject *module, PyObject *limit);
PyObject *read_buckets(PyObject *module, PyObject *args);
PyObject *refused_at(State *state, PyObject *evidence, u64 now);
void free_spares(State *state);

/* Many decisions at once, and figures about them. */
PyObject *check_each(PyObject *module, PyObject *args);
PyObject *count_each(PyObject *module, PyObject *args);
PyObject *picked(PyObject *module, PyObject *args);
PyObject *judge(PyObject *module, PyObject *args);
PyObject *longest_wait(PyObject *module, PyObject *args);
PyObject *most_within(PyObject *module, PyObject *args);

static inline DecisionObject *new_decision(State *state, TermsObject *terms) {
    DecisionObject *self;
#ifndef Py_GIL_DISABLED
    if (state->spares) {
        self = state->spare[--state->spares]; /* its type is still set */
        Py_SET_REFCNT((PyObject *)self, 1);
        Py_INCREF((PyObject *)state->decision_type);
    } else
#endif
        self = PyObject_New(DecisionObject, state->decision_type);
    if (!self)
        return NULL;
    Py_XINCREF((PyObject *)terms);
    self->terms = terms;
    self->other = NULL;
    self->kind = SINGLE;
    return self;
}

#endif
