/* AsyncCall and AwaitableCall: what an async method returns, so that a forgotten `await` raises.  Twin of awaitable.py.
 *
 * An AwaitableCall is a coroutine to `await`, to asyncio and to collections.abc.  Like one, it does nothing before it is
 * awaited, and warns if it never is.  Unlike one, it has no truth value, is not compared and has no attributes.
 */
#include "core.h"

/* The states of a call. */
#define UNSTARTED 0
#define STARTED 1
#define FINISHED 2

typedef struct {
    PyObject_HEAD
    PyObject *function; /* a coroutine function, or one that answers at once */
    PyObject *name;     /* such as "AsyncLimiter.check" */
    PyTypeObject *call_type;
    bool is_async;
} AsyncCallObject;

typedef struct {
    PyObject_HEAD
    AsyncCallObject *home;
    PyObject *inner;          /* the coroutine; NULL: the function answers at once, with the arguments below */
    PyObject *first, *second; /* of the usual call: a key and perhaps a cost */
    PyObject *args, *kwargs;  /* of any other call */
    int stage;
} AwaitableObject;

/* AsyncCall(function, name, is_async) */
static PyObject *async_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function, *name;
    int is_async;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OUp:AsyncCall", &function, &name, &is_async))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    AsyncCallObject *self = (AsyncCallObject *)allocate(type, 0);
    if (!self)
        return NULL;
    State *state = PyType_GetModuleState(type);
    self->function = Py_NewRef(function);
    self->name = Py_NewRef(name);
    self->call_type = (PyTypeObject *)Py_NewRef((PyObject *)state->awaitable_type);
    self->is_async = is_async;
    return (PyObject *)self;
}

static int async_call_traverse(PyObject *object, visitproc visit, void *arg) {
    AsyncCallObject *self = (AsyncCallObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->function);
    Py_VISIT(self->call_type);
    return 0;
}

static int async_call_clear(PyObject *object) {
    AsyncCallObject *self = (AsyncCallObject *)object;
    Py_CLEAR(self->function);
    return 0;
}

static void async_call_dealloc(PyObject *object) {
    AsyncCallObject *self = (AsyncCallObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->function);
    Py_CLEAR(self->name);
    Py_CLEAR(self->call_type);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

static PyObject *dict_of(PyObject *const *values, PyObject *names) {
    PyObject *kwargs = PyDict_New();
    for (Py_ssize_t index = 0; kwargs && index < PyTuple_Size(names); index++)
        if (PyDict_SetItem(kwargs, PyTuple_GetItem(names, index), values[index]) < 0)
            Py_CLEAR(kwargs);
    return kwargs;
}

/* Keep the arguments of a function that answers at once; or make the coroutine, which runs nothing yet. */
static bool prepare_call(AwaitableObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (count >= 1 && count <= 2 && !names) {
        self->first = Py_NewRef(args[0]);
        self->second = count == 2 ? Py_NewRef(args[1]) : NULL;
        return true;
    }
    self->args = PyTuple_New(count);
    self->kwargs = self->args && names ? dict_of(args + count, names) : NULL;
    if (!self->args || (names && !self->kwargs))
        return false;
    for (Py_ssize_t index = 0; index < count; index++)
        PyTuple_SetItem(self->args, index, Py_NewRef(args[index]));
    return true;
}

static void drop_arguments(AwaitableObject *self) {
    Py_CLEAR(self->first);
    Py_CLEAR(self->second);
    Py_CLEAR(self->args);
    Py_CLEAR(self->kwargs);
}

static PyObject *run_function(AwaitableObject *self) {
    PyObject *function = self->home->function;
    PyObject *value = self->args ? PyObject_Call(function, self->args, self->kwargs)
                                 : PyObject_CallFunctionObjArgs(function, self->first, self->second, NULL);
    drop_arguments(self);
    return value;
}

/* call(*args, **kwargs): an AwaitableCall. */
static PyObject *async_call_call(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    AsyncCallObject *home = (AsyncCallObject *)object;
    AwaitableObject *self = PyObject_GC_New(AwaitableObject, home->call_type);
    if (!self)
        return NULL;
    self->home = (AsyncCallObject *)Py_NewRef(object);
    self->first = self->second = self->args = self->kwargs = self->inner = NULL;
    self->stage = UNSTARTED;
    if (!prepare_call(self, args, count, names) || (home->is_async && !(self->inner = run_function(self)))) {
        self->stage = FINISHED; /* no warning */
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    if (home->is_async) /* else it is never part of a cycle: tracking would cost more than the answer */
        PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyMethodDef async_call_methods[] = {
    {"call", (PyCFunction)(void (*)(void))async_call_call, METH_FASTCALL | METH_KEYWORDS,
     "call($self, /, *args, **kwargs)\n--\n\nReturn an AwaitableCall of the function with these arguments."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot async_call_slots[] = {
    {Py_tp_doc, "An async function whose calls must be awaited."},
    {Py_tp_new, async_call_new},           {Py_tp_dealloc, async_call_dealloc},
    {Py_tp_traverse, async_call_traverse}, {Py_tp_clear, async_call_clear},
    {Py_tp_methods, async_call_methods},   {0, NULL}};

PyType_Spec async_call_spec = {"ratekeeper.native.core.AsyncCall", sizeof(AsyncCallObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, async_call_slots};

static PySendResult awaitable_send(PyObject *object, PyObject *sent, PyObject **result) {
    AwaitableObject *self = (AwaitableObject *)object;
    *result = NULL;
    if (self->stage == FINISHED) {
        PyErr_Format(PyExc_RuntimeError, "cannot reuse already awaited %U", self->home->name);
        return PYGEN_ERROR;
    }
    if (!self->inner) {
        self->stage = FINISHED;
        *result = run_function(self);
        return *result ? PYGEN_RETURN : PYGEN_ERROR;
    }
    self->stage = STARTED;
    PyObject *inner = Py_NewRef(self->inner);
    PySendResult outcome = PyIter_Send(inner, sent, result);
    Py_DECREF(inner);
    if (outcome != PYGEN_NEXT) {
        Py_CLEAR(self->inner);
        self->stage = FINISHED;
    }
    return outcome;
}

/* The value of a call that ended, as iterators return it. */
static PyObject *stop_with(PyObject *value) {
    PyObject *stop = PyObject_CallFunctionObjArgs(PyExc_StopIteration, value, NULL); /* an instance: value may be a tuple */
    Py_DECREF(value);
    if (stop) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

static PyObject *awaitable_method_send(PyObject *object, PyObject *sent) {
    PyObject *result;
    PySendResult outcome = awaitable_send(object, sent, &result);
    return outcome == PYGEN_RETURN ? stop_with(result) : result;
}

static PyObject *awaitable_next(PyObject *object) { return awaitable_method_send(object, Py_None); }

/* throw(type[, value[, traceback]]) */
static PyObject *awaitable_throw(PyObject *object, PyObject *args) {
    AwaitableObject *self = (AwaitableObject *)object;
    if (self->inner) {
        PyObject *inner = Py_NewRef(self->inner), *throw = PyObject_GetAttrString(inner, "throw");
        PyObject *result = throw ? PyObject_Call(throw, args, NULL) : NULL;
        Py_XDECREF(throw);
        Py_DECREF(inner);
        if (!result) {
            Py_CLEAR(self->inner);
            self->stage = FINISHED;
        }
        return result;
    }
    PyObject *kind, *value = NULL, *trace = NULL;
    if (!PyArg_ParseTuple(args, "O|OO:throw", &kind, &value, &trace))
        return NULL;
    self->stage = FINISHED;
    drop_arguments(self);
    PyObject *error = PyExceptionInstance_Check(kind) ? Py_NewRef(kind)
                      : value && PyExceptionInstance_Check(value)
                          ? Py_NewRef(value)
                          : PyObject_CallFunctionObjArgs(kind, value && value != Py_None ? value : NULL, NULL);
    if (error) {
        if (PyExceptionInstance_Check(error))
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        else
            PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
        Py_DECREF(error);
    }
    return NULL;
}

/* End the call without a warning; false: the coroutine raised. */
static bool end_call(AwaitableObject *self) {
    PyObject *inner = self->inner, *done = NULL;
    self->inner = NULL;
    self->stage = FINISHED;
    drop_arguments(self);
    if (!inner)
        return true;
    PyObject *close = PyObject_GetAttrString(inner, "close");
    if (close)
        done = PyObject_CallFunctionObjArgs(close, NULL);
    Py_XDECREF(close);
    Py_DECREF(inner);
    Py_XDECREF(done);
    return done;
}

static PyObject *awaitable_close(PyObject *object, PyObject *unused) {
    (void)unused;
    if (!end_call((AwaitableObject *)object))
        return NULL;
    Py_RETURN_NONE;
}

/* Raise NotAwaited; the call has taught, so it does not warn as well. */
static void raise_not_awaited(AwaitableObject *self, PyObject *use) {
    State *state = state_of((PyObject *)self);
    if (self->stage == UNSTARTED && !end_call(self)) {
        Py_XDECREF(use);
        return;
    }
    PyObject *error = use ? PyObject_CallFunctionObjArgs(state->not_awaited, self->home->name, use, NULL) : NULL;
    if (error) {
        PyErr_SetObject(state->not_awaited, error);
        Py_DECREF(error);
    }
    Py_XDECREF(use);
}

static int awaitable_bool(PyObject *object) {
    raise_not_awaited((AwaitableObject *)object, PyUnicode_FromString("its truth value"));
    return -1;
}

static PyObject *awaitable_compare(PyObject *object, PyObject *other, int operation) {
    (void)operation;
    if (object == other && (operation == Py_EQ || operation == Py_NE)) /* for lists and dictionaries of calls */
        return PyBool_FromLong(operation == Py_EQ);
    raise_not_awaited((AwaitableObject *)object, PyUnicode_FromString("a comparison"));
    return NULL;
}

static Py_hash_t awaitable_hash(PyObject *object) { return (Py_hash_t)((uintptr_t)object >> 4); }

/* Attributes of coroutines that Python looks for, such as cr_frame, are missing in the usual way. */
static bool is_of_coroutines(PyObject *name) {
    PyObject *bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
    const char *text = bytes ? PyBytes_AsString(bytes) : NULL;
    bool known = !text || text[0] == '_' || strncmp(text, "cr_", 3) == 0 || strncmp(text, "gi_", 3) == 0 ||
                 strncmp(text, "ag_", 3) == 0;
    Py_XDECREF(bytes);
    PyErr_Clear();
    return known;
}

static PyObject *awaitable_getattr(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(object, name);
    if (value || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return value;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    if (is_of_coroutines(name)) {
        PyErr_Restore(kind, error, trace);
        return NULL;
    }
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    raise_not_awaited((AwaitableObject *)object, PyUnicode_FromFormat("its attribute '%U'", name));
    return NULL;
}

static PyObject *awaitable_repr(PyObject *object) {
    return PyUnicode_FromFormat("<call of %U to be awaited>", ((AwaitableObject *)object)->home->name);
}

static PyObject *awaitable_self(PyObject *object) { return Py_NewRef(object); }

static PyObject *awaitable_await(PyObject *object, PyObject *unused) {
    (void)unused;
    return Py_NewRef(object);
}

static int awaitable_traverse(PyObject *object, visitproc visit, void *arg) {
    AwaitableObject *self = (AwaitableObject *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->home);
    Py_VISIT(self->inner);
    Py_VISIT(self->first);
    Py_VISIT(self->second);
    Py_VISIT(self->args);
    Py_VISIT(self->kwargs);
    return 0;
}

static int awaitable_clear(PyObject *object) {
    AwaitableObject *self = (AwaitableObject *)object;
    self->stage = FINISHED;
    drop_arguments(self);
    Py_CLEAR(self->inner);
    return 0;
}

static void awaitable_dealloc(PyObject *object) {
    AwaitableObject *self = (AwaitableObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->stage == UNSTARTED) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "%U was never awaited", self->home->name) < 0)
            PyErr_WriteUnraisable(self->home->name);
        if (!end_call(self))
            PyErr_WriteUnraisable(self->home->name);
        PyErr_Restore(kind, error, trace);
    }
    drop_arguments(self);
    Py_CLEAR(self->inner);
    Py_CLEAR(self->home);
    PyObject_GC_Del(object);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef awaitable_methods[] = {
    {"__await__", awaitable_await, METH_NOARGS, "__await__($self, /)\n--\n\nReturn the iterator that an event loop runs."},
    {"send", awaitable_method_send, METH_O, "send($self, value, /)\n--\n\nGo on, as coroutines do."},
    {"throw", awaitable_throw, METH_VARARGS, "throw($self, /, *error)\n--\n\nRaise inside the call."},
    {"close", awaitable_close, METH_NOARGS, "close($self, /)\n--\n\nEnd the call."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot awaitable_slots[] = {
    {Py_tp_doc, "A call to be awaited; used as if it were the result, it raises."},
    {Py_tp_dealloc, awaitable_dealloc}, {Py_tp_methods, awaitable_methods},
    {Py_tp_traverse, awaitable_traverse}, {Py_tp_clear, awaitable_clear},
    {Py_tp_repr, awaitable_repr},       {Py_tp_getattro, awaitable_getattr},
    {Py_tp_hash, awaitable_hash},       {Py_tp_richcompare, awaitable_compare},
    {Py_tp_iter, awaitable_self},       {Py_tp_iternext, awaitable_next},
    {Py_nb_bool, awaitable_bool},       {Py_am_await, awaitable_self},
    {Py_am_send, awaitable_send},       {0, NULL}};

PyType_Spec awaitable_spec = {"ratekeeper.native.core.AwaitableCall", sizeof(AwaitableObject), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              awaitable_slots};
