/* Line: the calls of threads on one connection, sent in batches.  Each call releases the interpreter once. */
#include "core.h"

#include <unistd.h>

#include "line.h"

#define LONGEST_WAIT 604800.0 /* seconds */

typedef struct {
    PyObject_HEAD
    Line line;
    PyObject *start, *encrypt, *decrypt;
    pid_t pid;
} LineObject;

/* The thread that makes a call: its state, to call Python while it leads, and an exception that was raised there. */
typedef struct {
    PyThreadState *thread;
    PyObject *type, *value, *traceback;
} Owner;

/* Convert by a Python function from bytes to bytes. */
static int put_converted(void *caller, void *function, const char *bytes, size_t size, Buffer *into) {
    Owner *owner = caller;
    int why = 0;
    PyEval_RestoreThread(owner->thread);
    PyObject *given = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    PyObject *made = given ? PyObject_CallFunctionObjArgs((PyObject *)function, given, NULL) : NULL;
    if (made && !PyBytes_Check(made)) {
        PyErr_SetString(PyExc_TypeError, "Line: expected encrypt and decrypt to return bytes");
        Py_CLEAR(made);
    }
    if (made) {
        why = put(into, PyBytes_AsString(made), (size_t)PyBytes_Size(made)) ? 0 : ENOMEM;
    } else {
        why = ECONNRESET;
        if (PyErr_ExceptionMatches(PyExc_OSError)) /* of TLS: the connection is of no use any more */
            PyErr_Clear();
        else
            PyErr_Fetch(&owner->type, &owner->value, &owner->traceback);
    }
    Py_XDECREF(given);
    Py_XDECREF(made);
    owner->thread = PyEval_SaveThread();
    return why;
}

/* Line(fd, start, encrypt, decrypt, step): the line owns the socket from now on; `start` is the script's name, as words
 * of a command; after `step` seconds without an answer the calls that are queued are sent.  The functions of a TLS session are called by the thread that leads, so never by two at once. */
static PyObject *line_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"fd", "start", "encrypt", "decrypt", "step", NULL};
    int fd;
    double step = LONGEST_WAIT;
    PyObject *start, *encrypt = NULL, *decrypt = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iS|OOd:Line", names, &fd, &start, &encrypt, &decrypt, &step))
        return NULL;
    encrypt = encrypt == Py_None ? NULL : encrypt;
    decrypt = decrypt == Py_None ? NULL : decrypt;
    if (!encrypt != !decrypt) {
        PyErr_SetString(PyExc_TypeError, "Line: expected encrypt and decrypt together");
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    LineObject *self = (LineObject *)alloc(type, 0);
    if (!self)
        return NULL;
    pthread_mutex_init(&self->line.lock, NULL);
    self->line.fd = fd;
    self->line.step = step;
    self->start = Py_NewRef(start);
    self->line.convert = encrypt ? put_converted : NULL;
    self->line.encrypt = self->encrypt = Py_XNewRef(encrypt);
    self->line.decrypt = self->decrypt = Py_XNewRef(decrypt);
    self->line.start = PyBytes_AsString(start);
    self->line.start_size = (size_t)PyBytes_Size(start);
    self->pid = getpid();
    return (PyObject *)self;
}

static void line_free(LineObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    Line *line = &self->line;
    for (unsigned number = 0; number < line->in_flight; number++)
        for (Call *call = batch_at(line, number)->calls, *next; call; call = next) {
            next = call->next;
            if (call->is_gone)
                free_call(call);
        }
    free(line->out.bytes);
    free(line->in.bytes);
    pthread_mutex_destroy(&line->lock);
    if (line->fd >= 0)
        close(line->fd);
    Py_XDECREF(self->start);
    Py_XDECREF(self->encrypt);
    Py_XDECREF(self->decrypt);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* The result for the caller; frees the call, unless the line owns it. */
static PyObject *told(Line *line, Call *call, Outcome outcome) {
    PyObject *found = NULL;
    if (outcome == LATE) {
        PyErr_SetString(PyExc_TimeoutError, "timed out");
        return NULL;
    }
    if (outcome == NOT_SENT) {
        found = Py_NewRef(Py_None);
    } else if (outcome == BROKEN && line->error == ECONNRESET) {
        PyErr_SetString(PyExc_ConnectionResetError, "the connection was closed");
    } else if (outcome == BROKEN) {
        errno = line->error;
        PyErr_SetFromErrno(PyExc_OSError);
    } else if (outcome == TOLD && call->type == '$') {
        found = PyBytes_FromStringAndSize(call->reply, (Py_ssize_t)call->size);
    } else if (outcome == TOLD && call->type == '-') {
        found = PyUnicode_DecodeUTF8(call->reply, (Py_ssize_t)call->size, "replace");
    } else if (outcome == TOLD) {
        found = PyTuple_New(0);
    }
    finish(line, call);
    return found;
}

static PyObject *ask(LineObject *self, const Call *wanted, double seconds) {
    Line *line = &self->line;
    Call *call = malloc(sizeof *call);
    if (!call)
        return PyErr_NoMemory();
    *call = *wanted;
    if (!(call->gate = PyThread_allocate_lock())) {
        free(call);
        return PyErr_NoMemory();
    }
    PyThread_acquire_lock(call->gate, WAIT_LOCK);
    double until = seconds_now() + (seconds < LONGEST_WAIT ? seconds : LONGEST_WAIT);
    Outcome outcome = NOT_SENT;
    bool leads = false, takes_part = false, is_interrupted;
    Owner owner = {NULL, NULL, NULL, NULL};
    call->owner = &owner;
    do {
        owner.thread = PyEval_SaveThread();
        if (takes_part || (takes_part = line_up(line, call, &leads)))
            outcome = take_part(line, call, &leads, until);
        is_interrupted = outcome == INTERRUPTED;
        PyEval_RestoreThread(owner.thread);
    } while (is_interrupted && PyErr_CheckSignals() == 0);
    if (owner.type) { /* a signal handler raised while a session encrypted or decrypted: the connection was given up */
        PyObject *unwanted = told(line, call, outcome);
        Py_XDECREF(unwanted);
        PyErr_Restore(owner.type, owner.value, owner.traceback);
        return NULL;
    }
    if (is_interrupted) { /* a signal handler raised */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_BEGIN_ALLOW_THREADS
        outcome = leave(line, call, false);
        Py_END_ALLOW_THREADS
        PyObject *unwanted = told(line, call, outcome);
        Py_XDECREF(unwanted);
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    return told(line, call, outcome);
}

static PyObject *line_ask(LineObject *self, PyObject *args) {
    Call call = {.kind = PLAN_OF_MANY};
    Py_ssize_t keys_size, words_size;
    double seconds;
    if (!PyArg_ParseTuple(args, "y#Iy#Id:ask", &call.keys, &keys_size, &call.keys_count, &call.words, &words_size,
                          &call.words_count, &seconds))
        return NULL;
    call.keys_size = (size_t)keys_size;
    call.words_size = (size_t)words_size;
    if (!call.words_count)
        call.kind = CHECK;
    return ask(self, &call, seconds);
}

static PyObject *line_exchange(LineObject *self, PyObject *args) {
    Call call = {.kind = COMMAND};
    Py_ssize_t words_size;
    double seconds;
    if (!PyArg_ParseTuple(args, "y#Id:exchange", &call.words, &words_size, &call.replies, &seconds))
        return NULL;
    if (!call.replies) {
        PyErr_SetString(PyExc_ValueError, "exchange: expected a command that is answered");
        return NULL;
    }
    call.words_size = (size_t)words_size;
    return ask(self, &call, seconds);
}

/* A child process has a copy of the socket, and must not shut down its parent's connection. */
static PyObject *line_close(LineObject *self, PyObject *unused) {
    Line *line = &self->line;
    if (getpid() != self->pid) {
        if (line->fd >= 0)
            close(line->fd);
        line->fd = -1;
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&line->lock);
    if (!line->error)
        line->error = EBADF;
    pthread_mutex_unlock(&line->lock);
    shutdown(line->fd, SHUT_RDWR); /* wakes the leader; the file stays open as long as a thread may use it */
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *line_waiting(LineObject *self, void *unused) {
    size_t count = 0;
    pthread_mutex_lock(&self->line.lock);
    for (const Call *call = self->line.first; call; call = call->next)
        count++;
    pthread_mutex_unlock(&self->line.lock);
    return PyLong_FromSize_t(count);
}

static PyObject *line_most(LineObject *self, void *unused) { return PyLong_FromLong(MOST_CALLS); }

static PyGetSetDef line_fields[] = {
    {"most", (getter)line_most, NULL, "How many requests one command has at most.", NULL},
    {"waiting", (getter)line_waiting, NULL, "How many calls are queued and not sent yet.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef line_methods[] = {
    {"ask", (PyCFunction)line_ask, METH_VARARGS,
     "ask($self, keys, keys_count, words, words_count, seconds, /)\n--\n\nThe script's reply to one plan, batched "
     "with those of other threads.  words_count is 0 for a check of one subject.  Text is an error reply, an empty "
     "tuple any other reply, and None says that the plan was not sent."},
    {"exchange", (PyCFunction)line_exchange, METH_VARARGS,
     "exchange($self, payload, replies, seconds, /)\n--\n\n"
     "Send a payload; its replies as they were read, or None if it was not sent."},
    {"close", (PyCFunction)line_close, METH_NOARGS, "close($self, /)\n--\n\nGive the connection up; all calls on it end."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot line_slots[] = {
    {Py_tp_doc, "Line(fd, start, encrypt=None, decrypt=None, step=604800.0)\n--\n\nThe calls of threads on one connection."},
    {Py_tp_new, line_new},
    {Py_tp_dealloc, line_free},
    {Py_tp_methods, line_methods},
    {Py_tp_getset, line_fields},
    {0, NULL}};

PyType_Spec line_spec = {"ratekeeper.native.core.Line", sizeof(LineObject), 0, Py_TPFLAGS_DEFAULT, line_slots};
