/* Figures about decided calls.  Twin of lab/measure.py, for one limit and calls of cost 1. */
#include "core.h"

#define MOST ((i64)1 << 62) /* bounds all numbers, so that no difference overflows */

/* Open a column of 64-bit numbers from 0 to below `most`. */
static bool column_from(PyObject *given, i64 most, Py_buffer *column, const i64 **numbers, Py_ssize_t *count) {
    if (PyObject_GetBuffer(given, column, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0)
        return false;
    bool fits = column->itemsize == sizeof(i64) && (!column->len || (uintptr_t)column->buf % sizeof(i64) == 0);
    *numbers = column->buf;
    *count = column->len / (Py_ssize_t)sizeof(i64);
    for (Py_ssize_t index = 0; fits && index < *count; index++)
        fits = (*numbers)[index] >= 0 && (*numbers)[index] < most;
    if (!fits) {
        PyErr_Format(PyExc_ValueError, "figures: expected numbers of 64 bits from 0 to below %lld", (long long)most);
        PyBuffer_Release(column);
    }
    return fits;
}

static bool is_length(long long length) {
    if (length > 0 && length < MOST)
        return true;
    PyErr_SetString(PyExc_ValueError, "figures: expected a length above 0");
    return false;
}

typedef struct {
    Py_buffer columns[2]; /* open buffers: the first `held` of them */
    int held;
    const i64 *times;
    const i64 *who; /* the number of each call's key; NULL: all calls have one key */
    const char *allowed;
    Py_ssize_t count, keys;
} Calls;

static void release(Calls *calls) {
    while (calls->held)
        PyBuffer_Release(calls->columns + --calls->held);
}

static bool calls_from(PyObject *times, PyObject *who, PyObject *allowed, Calls *calls) {
    Py_ssize_t numbers, size;
    char *flags;
    if (!column_from(times, MOST, calls->columns, &calls->times, &calls->count))
        return false;
    calls->held = 1;
    numbers = calls->count;
    if (who != Py_None) {
        if (!column_from(who, calls->keys, calls->columns + 1, &calls->who, &numbers)) {
            release(calls);
            return false;
        }
        calls->held = 2;
    }
    if (PyBytes_AsStringAndSize(allowed, &flags, &size) < 0) {
        release(calls);
        return false;
    }
    calls->allowed = flags;
    bool fits = numbers == calls->count && size == calls->count && calls->keys > 0;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "figures: expected a key and a flag for each call");
        release(calls);
    }
    return fits;
}

/* The admitted calls, sorted by key. */
typedef struct {
    i64 *times;
    Py_ssize_t *first; /* where the calls of a key begin; they end where those of the next key begin */
    Py_ssize_t *since; /* for each key: its first call within the period */
    Py_ssize_t *until; /* and its first call after the current instant */
} Histories;

static void drop_histories(Histories *own) {
    free(own->times);
    free(own->first);
    free(own->since);
    free(own->until);
}

static inline Py_ssize_t key_of(const Calls *calls, Py_ssize_t index) { return calls->who ? (Py_ssize_t)calls->who[index] : 0; }

static bool make_histories(const Calls *calls, Histories *own) {
    size_t keys = (size_t)calls->keys;
    *own = (Histories){malloc((size_t)calls->count * sizeof(i64) + 1), calloc(keys + 1, sizeof(Py_ssize_t)),
                       malloc(keys * sizeof(Py_ssize_t)), malloc(keys * sizeof(Py_ssize_t))};
    if (!own->times || !own->first || !own->since || !own->until) {
        drop_histories(own);
        return false;
    }
    for (Py_ssize_t index = 0; index < calls->count; index++)
        own->first[key_of(calls, index) + 1] += calls->allowed[index] != 0;
    for (Py_ssize_t key = 0; key < calls->keys; key++) {
        own->first[key + 1] += own->first[key];
        own->since[key] = own->until[key] = own->first[key];
    }
    for (Py_ssize_t index = 0; index < calls->count; index++)
        if (calls->allowed[index])
            own->times[own->until[key_of(calls, index)]++] = calls->times[index];
    for (Py_ssize_t key = 0; key < calls->keys; key++)
        own->until[key] = own->first[key];
    return true;
}

typedef struct {
    i64 wrongly_admitted, wrongly_refused, worst, shut_out;
} Judged;

static void judge_admitted(const Calls *calls, const Histories *own, i64 count, i64 period, Judged *judged) {
    for (Py_ssize_t key = 0; key < calls->keys; key++)
        for (Py_ssize_t since = own->first[key], at = since; at < own->first[key + 1]; at++) {
            while (own->times[since] <= own->times[at] - period)
                since++;
            i64 within = at - since + 1;
            judged->wrongly_admitted += within > count;
            judged->worst = within > judged->worst ? within : judged->worst;
        }
}

/* Among calls at one instant the admitted ones come first, because only time frees capacity. */
static void judge_refused(const Calls *calls, Histories *own, i64 count, i64 period, i64 end, Judged *judged) {
    for (Py_ssize_t index = 0; index < calls->count; index++) {
        if (calls->allowed[index])
            continue;
        Py_ssize_t key = key_of(calls, index), last = own->first[key + 1];
        Py_ssize_t since = own->since[key], until = own->until[key];
        i64 at = calls->times[index];
        while (until < last && own->times[until] <= at)
            until++;
        while (since < until && own->times[since] <= at - period)
            since++;
        judged->wrongly_refused += until - since < count;
        i64 wait = (until < last ? own->times[until] : end) - at;
        judged->shut_out = wait > judged->shut_out ? wait : judged->shut_out;
        own->since[key] = since;
        own->until[key] = until;
    }
}

/* judge(times, who, allowed, keys, count, period, end) */
PyObject *judge(PyObject *module, PyObject *args) {
    PyObject *times, *who, *allowed;
    long long count, period, end;
    Calls calls = {.held = 0};
    Histories own;
    Judged judged = {0, 0, 0, 0};
    if (!PyArg_ParseTuple(args, "OOSnLLL:judge", &times, &who, &allowed, &calls.keys, &count, &period, &end) ||
        !is_length(period) || !is_length(end) || !calls_from(times, who, allowed, &calls))
        return NULL;
    if (!make_histories(&calls, &own)) {
        release(&calls);
        return PyErr_NoMemory();
    }
    judge_admitted(&calls, &own, count, period, &judged);
    judge_refused(&calls, &own, count, period, end, &judged);
    drop_histories(&own);
    release(&calls);
    return Py_BuildValue("(LLLL)", (long long)judged.wrongly_admitted, (long long)judged.wrongly_refused,
                         (long long)judged.worst, (long long)judged.shut_out);
}

/* count_each(who, allowed, keys): how many calls of each key were admitted, and how many refused. */
PyObject *count_each(PyObject *module, PyObject *args) {
    PyObject *who, *allowed, *found = NULL;
    Calls calls = {.held = 0};
    if (!PyArg_ParseTuple(args, "OSn:count_each", &who, &allowed, &calls.keys) || !calls_from(who, who, allowed, &calls))
        return NULL;
    long long *counts = PyMem_Calloc((size_t)calls.keys, 2 * sizeof(long long));
    PyObject *lists[2] = {PyList_New(calls.keys), PyList_New(calls.keys)};
    bool done = counts && lists[0] && lists[1];
    if (!counts)
        PyErr_NoMemory();
    for (Py_ssize_t index = 0; done && index < calls.count; index++)
        counts[2 * calls.who[index] + !calls.allowed[index]]++;
    for (Py_ssize_t place = 0; done && place < 2 * calls.keys; place++) {
        PyObject *number = PyLong_FromLongLong(counts[place]);
        done = number && PyList_SetItem(lists[place % 2], place / 2, number) == 0;
    }
    if (done)
        found = PyTuple_Pack(2, lists[0], lists[1]);
    PyMem_Free(counts);
    Py_XDECREF(lists[0]);
    Py_XDECREF(lists[1]);
    release(&calls);
    return found;
}

/* most_within(times, length): the most calls within any stretch of that length; the times are in order. */
PyObject *most_within(PyObject *module, PyObject *args) {
    PyObject *given;
    long long length;
    Py_buffer column;
    const i64 *times;
    Py_ssize_t count, since = 0, most = 0;
    if (!PyArg_ParseTuple(args, "OL:most_within", &given, &length) || !is_length(length) ||
        !column_from(given, MOST, &column, &times, &count))
        return NULL;
    for (Py_ssize_t at = 0; at < count; at++) {
        while (since < at && times[since] <= times[at] - length)
            since++;
        most = at - since + 1 > most ? at - since + 1 : most;
    }
    PyBuffer_Release(&column);
    return PyLong_FromSsize_t(most);
}

/* Radix sort, one pass for each byte that differs, lowest byte first.  `other` has the same size as `numbers`; returns
 * the one that holds the result.
 */
static i64 *sort(i64 *numbers, i64 *other, Py_ssize_t count) {
    i64 differ = 0;
    for (Py_ssize_t index = 1; index < count; index++)
        differ |= numbers[index] ^ numbers[0];
    for (int shift = 0; shift < 64; shift += 8) {
        Py_ssize_t places[257] = {0};
        if (!(differ >> shift & 255))
            continue;
        for (Py_ssize_t index = 0; index < count; index++)
            places[(numbers[index] >> shift & 255) + 1]++;
        for (int byte = 0; byte < 256; byte++)
            places[byte + 1] += places[byte];
        for (Py_ssize_t index = 0; index < count; index++)
            other[places[numbers[index] >> shift & 255]++] = numbers[index];
        i64 *before = numbers;
        numbers = other;
        other = before;
    }
    return numbers;
}

/* picked(numbers, flags): the flagged numbers, sorted, as 64-bit numbers. */
PyObject *picked(PyObject *module, PyObject *args) {
    PyObject *given, *flags, *found = NULL;
    Calls calls = {.held = 0, .keys = 1};
    if (!PyArg_ParseTuple(args, "OS:picked", &given, &flags) || !calls_from(given, Py_None, flags, &calls))
        return NULL;
    i64 *numbers = PyMem_Malloc(2 * (size_t)calls.count * sizeof(i64) + 1);
    if (numbers) {
        Py_ssize_t count = 0;
        bool sorted = true;
        for (Py_ssize_t index = 0; index < calls.count; index++)
            if (calls.allowed[index]) {
                sorted = sorted && (!count || numbers[count - 1] <= calls.times[index]);
                numbers[count++] = calls.times[index];
            }
        const i64 *ordered = sorted ? numbers : sort(numbers, numbers + count, count);
        found = PyBytes_FromStringAndSize((const char *)ordered, count * (Py_ssize_t)sizeof(i64));
    } else {
        PyErr_NoMemory();
    }
    PyMem_Free(numbers);
    release(&calls);
    return found;
}

/* longest_wait(times, turns): the longest time from a call to its turn. */
PyObject *longest_wait(PyObject *module, PyObject *args) {
    PyObject *given[2];
    Py_buffer columns[2];
    const i64 *times, *turns;
    Py_ssize_t count, others;
    if (!PyArg_ParseTuple(args, "OO:longest_wait", given, given + 1) ||
        !column_from(given[0], MOST, columns, &times, &count))
        return NULL;
    if (!column_from(given[1], MOST, columns + 1, &turns, &others)) {
        PyBuffer_Release(columns);
        return NULL;
    }
    i64 longest = 0;
    for (Py_ssize_t index = 0; index < count && index < others; index++)
        longest = turns[index] - times[index] > longest ? turns[index] - times[index] : longest;
    PyBuffer_Release(columns);
    PyBuffer_Release(columns + 1);
    return PyLong_FromLongLong(longest);
}
