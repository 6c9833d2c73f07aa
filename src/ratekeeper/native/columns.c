/* Columns: split many lines of an access log in one call.  Twin of lab/log_columns.py: an unusual line is returned as
 * it is.
 */
#include "core.h"

#define STAMP 26            /* 01/Aug/1995:00:00:01 -0400 */
#define KNOWN_TEXTS (1 << 14)
#define LONGEST_KNOWN 256   /* bytes: bounds the cache, whatever a log contains */

/* A cached string.  Most clients and requests of a log repeat. */
typedef struct {
    PyObject *text;
    const char *letters; /* the UTF-8 of the string, which the string owns */
    size_t length;
} KnownText;

typedef struct {
    PyObject_HEAD
    bool zones;        /* use the zones of timestamps */
    uint32_t busy;     /* 1 while a thread reads */
    char stamp[STAMP]; /* the last timestamp */
    PyObject *at;      /* and its instant */
    KnownText *known;
} ColumnsObject;

static inline size_t known_text_at(const char *letters, size_t length) {
    u64 sum = length, word = 0;
    for (; length > sizeof(word); letters += sizeof(word), length -= sizeof(word)) {
        memcpy(&word, letters, sizeof(word));
        sum = (sum ^ word) * 0x9E3779B97F4A7C15ULL;
        sum ^= sum >> 32;
    }
    word = 0;
    memcpy(&word, letters, length);
    return ((sum ^ word) * 0x9E3779B97F4A7C15ULL >> 48) % KNOWN_TEXTS;
}

/* Return a new reference to the string of some bytes. */
static PyObject *text_from(ColumnsObject *self, const char *letters, size_t length) {
    if (length > LONGEST_KNOWN)
        return PyUnicode_DecodeUTF8(letters, (Py_ssize_t)length, "backslashreplace");
    KnownText *known = self->known + known_text_at(letters, length);
    if (known->text && known->length == length && !memcmp(known->letters, letters, length))
        return Py_NewRef(known->text);
    PyObject *text = PyUnicode_DecodeUTF8(letters, (Py_ssize_t)length, "backslashreplace");
    Py_ssize_t size;
    const char *own = text ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (!own) {
        Py_XDECREF(text);
        return NULL;
    }
    PyObject *before = known->text;
    *known = (KnownText){Py_NewRef(text), own, (size_t)size};
    Py_XDECREF(before);
    return text;
}

/* Parse exactly `count` digits; -1 if there is another character. */
static inline int digits(const char *text, int count) {
    int found = 0;
    for (int index = 0; index < count; index++) {
        unsigned digit = (unsigned char)text[index] - '0';
        if (digit > 9)
            return -1;
        found = found * 10 + (int)digit;
    }
    return found;
}

static inline int month_of(const char *name) {
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    for (int month = 0; month < 12; month++)
        if (!memcmp(names + 3 * month, name, 3))
            return month;
    return -1;
}

/* Days from 1970 to the first day of a month; January is 0. */
static inline i64 days_before(i64 year, int month) {
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    i64 past = year - 1;
    return past * 365 + past / 4 - past / 100 + past / 400 - 719162 + before[month] + (leap && month > 1);
}

/* Microseconds since 1970 of `01/Aug/1995:00:00:01 -0400`; -1 for any other form. */
static i64 instant_in(const char *stamp, bool zones) {
    int day = digits(stamp, 2), month = month_of(stamp + 3), year = digits(stamp + 7, 4);
    int hour = digits(stamp + 12, 2), minute = digits(stamp + 15, 2), second = digits(stamp + 18, 2);
    int hours = digits(stamp + 22, 2), minutes = digits(stamp + 24, 2);
    if (stamp[2] != '/' || stamp[6] != '/' || stamp[11] != ':' || stamp[14] != ':' || stamp[17] != ':' ||
        stamp[20] != ' ' || (stamp[21] != '+' && stamp[21] != '-') || hours < 0 || minutes < 0)
        return -1;
    if (year < 1 || month < 0 || day < 1 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59)
        return -1;
    i64 first = days_before(year, month), next = month < 11 ? days_before(year, month + 1) : first + 31;
    if (day > next - first)
        return -1;
    i64 seconds = (((first + day - 1) * 24 + hour) * 60 + minute) * 60 + second;
    if (zones)
        seconds -= (hours * 60 + minutes) * 60 * (stamp[21] == '-' ? -1 : 1);
    return seconds >= 0 && seconds < (i64)(MOST_NOW / 1000000) ? seconds * 1000000 : -1;
}

/* Return the instant of a timestamp, borrowed; NULL if the timestamp is unusual, or with an error set.  Consecutive
 * lines mostly have the same timestamp.
 */
static PyObject *instant_from(ColumnsObject *self, const char *stamp) {
    if (self->at && !memcmp(self->stamp, stamp, STAMP))
        return self->at;
    i64 at = instant_in(stamp, self->zones);
    PyObject *found = at < 0 ? NULL : PyLong_FromLongLong(at);
    if (!found)
        return NULL;
    Py_XDECREF(self->at);
    self->at = found;
    memcpy(self->stamp, stamp, STAMP);
    return found;
}

/* The parts of `CLIENT - - [STAMP] "REQUEST"...`, with no quote and no backslash in the request. */
typedef struct {
    const char *client, *stamp, *request;
    size_t client_length, request_length;
} Parts;

static inline bool take_apart(const char *line, const char *end, Parts *parts) {
    const char *space = memchr(line, ' ', (size_t)(end - line));
    if (!space || space == line || end - space < 6 + STAMP + 5 || memcmp(space, " - - [", 6))
        return false;
    const char *stamp = space + 6, *request = stamp + STAMP + 3;
    if (memcmp(stamp + STAMP, "] \"", 3))
        return false;
    const char *quote = memchr(request, '"', (size_t)(end - request));
    if (!quote || quote == request || memchr(request, '\\', (size_t)(quote - request)))
        return false;
    *parts = (Parts){line, stamp, request, (size_t)(space - line), (size_t)(quote - request)};
    return true;
}

static bool append(PyObject *list, PyObject *item) {
    bool done = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return done;
}

static bool read_line(ColumnsObject *self, const char *line, const char *end, Py_ssize_t number, PyObject **lists) {
    Parts parts;
    PyObject *at = take_apart(line, end, &parts) ? instant_from(self, parts.stamp) : NULL;
    if (at)
        return append(lists[0], Py_NewRef(at)) && append(lists[1], text_from(self, parts.client, parts.client_length)) &&
               append(lists[2], text_from(self, parts.request, parts.request_length));
    if (PyErr_Occurred())
        return false;
    return append(lists[3], Py_BuildValue("(nny#)", PyList_Size(lists[0]), number, line, (Py_ssize_t)(end - line)));
}

static PyObject *columns_read(ColumnsObject *self, PyObject *piece) {
    char *line;
    Py_ssize_t size, lines = 0;
    if (PyBytes_AsStringAndSize(piece, &line, &size) < 0)
        return NULL;
    if (__atomic_exchange_n(&self->busy, 1, __ATOMIC_ACQUIRE)) {
        PyErr_SetString(PyExc_RuntimeError, "Columns: expected one thread at a time");
        return NULL;
    }
    PyObject *lists[4] = {PyList_New(0), PyList_New(0), PyList_New(0), PyList_New(0)};
    bool done = lists[0] && lists[1] && lists[2] && lists[3];
    const char *end, *until = line + size;
    for (const char *next = line; done && (end = memchr(next, '\n', (size_t)(until - next))); next = end + 1)
        done = read_line(self, next, end, ++lines, lists);
    __atomic_store_n(&self->busy, 0, __ATOMIC_RELEASE);
    PyObject *found = done ? PyTuple_Pack(4, lists[0], lists[1], lists[2], lists[3]) : NULL;
    for (int index = 0; index < 4; index++)
        Py_XDECREF(lists[index]);
    return found;
}

static PyObject *columns_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"zones", NULL};
    int zones;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "p:Columns", names, &zones))
        return NULL;
    ColumnsObject *self = PyObject_New(ColumnsObject, type);
    if (!self)
        return NULL;
    self->zones = zones;
    self->busy = 0;
    self->at = NULL;
    self->known = PyMem_Calloc(KNOWN_TEXTS, sizeof(KnownText));
    if (!self->known) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void columns_free(ColumnsObject *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (int index = 0; self->known && index < KNOWN_TEXTS; index++)
        Py_XDECREF(self->known[index].text);
    PyMem_Free(self->known);
    Py_XDECREF(self->at);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyMethodDef columns_methods[] = {
    {"read", (PyCFunction)columns_read, METH_O,
     "read($self, piece, /)\n--\n\nReturn the times, clients and requests of complete lines, and the unusual lines."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot columns_slots[] = {
    {Py_tp_doc, "Columns(zones)\n--\n\nSplits lines of access logs into columns; zones says whether to use the zones of timestamps."},
    {Py_tp_new, columns_new},
    {Py_tp_dealloc, columns_free},
    {Py_tp_methods, columns_methods},
    {0, NULL}};

PyType_Spec columns_spec = {"ratekeeper.native.core.Columns", sizeof(ColumnsObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, columns_slots};
