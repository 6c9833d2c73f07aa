/* ReplyFrames: which of the bytes that a server sent are whole replies.
 *
 * The C twin of ReplyFrames in stores/redis/reader.py.  It keeps what is not whole yet, never more than one reply may be
 * and one part of it, and raises at the first byte that no reply has.
 */
#include "core.h"

#include "resp.h"

typedef struct {
    PyObject_HEAD
    Frames frames;
    char *kept;
    size_t size, room;
} FramesObject;

static PyObject *frames_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, ":ReplyFrames", names))
        return NULL;
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    FramesObject *self = (FramesObject *)alloc(type, 0);
    if (self)
        self->frames.left = UINT64_MAX;
    return (PyObject *)self;
}

static void frames_free(FramesObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->kept);
    freefunc release = PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static bool keep(FramesObject *self, const char *bytes, size_t size) {
    size_t room = self->room ? self->room : 1024;
    while (room - self->size < size)
        room *= 2;
    if (room != self->room) {
        char *kept = realloc(self->kept, room);
        if (!kept)
            return false;
        self->kept = kept;
        self->room = room;
    }
    memcpy(self->kept + self->size, bytes, size);
    self->size += size;
    return true;
}

/* The replies before the one that is not whole leave, and positions are counted from there on. */
static void shorten(Frames *frames) {
    frames->at -= frames->start;
    frames->start = 0;
}

/* whole(part) -> the replies that are whole by now, as they were sent */
static PyObject *frames_whole(FramesObject *self, PyObject *part) {
    if (!PyBytes_Check(part)) {
        PyErr_SetString(PyExc_TypeError, "whole: expected bytes");
        return NULL;
    }
    Frames *frames = &self->frames;
    const char *bytes = PyBytes_AsString(part);
    size_t size = (size_t)PyBytes_Size(part);
    bool is_kept = self->size > 0;
    if (is_kept) {
        if (!keep(self, bytes, size))
            return PyErr_NoMemory();
        bytes = self->kept;
        size = self->size;
    }
    frames_are_whole(frames, bytes, size);
    if (frames->is_broken) {
        free(self->kept);
        self->kept = NULL;
        self->size = self->room = 0;
        PyErr_SetString(PyExc_ValueError, "no reply begins or goes on like that");
        return NULL;
    }
    size_t end = frames->start;
    shorten(frames);
    if (!is_kept && end == size)
        return Py_NewRef(part); /* by far the most common */
    PyObject *whole = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)end);
    if (is_kept) {
        self->size -= end;
        if (self->size)
            memmove(self->kept, self->kept + end, self->size);
        else if (self->room > MOST_LINE) { /* a rare large reply made it grow */
            free(self->kept);
            self->kept = NULL;
            self->room = 0;
        }
    } else if (whole && !keep(self, bytes + end, size - end)) {
        Py_CLEAR(whole);
        PyErr_NoMemory();
    }
    return whole;
}

static PyMethodDef frames_methods[] = {
    {"whole", (PyCFunction)frames_whole, METH_O,
     "whole($self, part, /)\n--\n\nThe replies that are whole by now, as they were sent; ValueError if they are none."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot frames_slots[] = {
    {Py_tp_doc, "ReplyFrames()\n--\n\nWhich of the bytes that a server sent are whole replies."},
    {Py_tp_new, frames_new},
    {Py_tp_dealloc, frames_free},
    {Py_tp_methods, frames_methods},
    {0, NULL}};

PyType_Spec frames_spec = {"ratekeeper.native.core.ReplyFrames", sizeof(FramesObject), 0, Py_TPFLAGS_DEFAULT,
                           frames_slots};
