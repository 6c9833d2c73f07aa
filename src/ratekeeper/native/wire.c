/* A question to a server and the beginning of its answer, with the interpreter let go of once.
 *
 * Python's own sockets let go of it four times for the same: to wait for room, to send, to wait for an answer and to
 * read it.  Where many threads ask, each of these hands the interpreter around.  The twin is in stores/link.py.
 */
#include "core.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#define MOST_READ 16384
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

static double monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Wait until `fd` is ready or that instant has passed: 1, 0, or -1 with errno. */
static int wait_for(int fd, short events, double until) {
    double left = until - monotonic();
    struct pollfd one = {fd, events, 0};
    return poll(&one, 1, left > 0 ? (int)(left * 1e3 + 0.999) : 0);
}

/* exchange(fd, payload, seconds): send all of payload, then read once: b"" if the other side closed. */
PyObject *exchange(PyObject *module, PyObject *args) {
    int fd, error = 0;
    Py_buffer payload;
    double seconds;
    if (!PyArg_ParseTuple(args, "iy*d:exchange", &fd, &payload, &seconds))
        return NULL;
    double until = monotonic() + seconds;
    char found[MOST_READ];
    Py_ssize_t sent = 0, got = -1;
    bool late = false;
    do {
        Py_BEGIN_ALLOW_THREADS
        error = 0;
        while (!error && !late && got < 0) {
            bool sends = sent < payload.len;
            int ready = sends ? 1 : wait_for(fd, POLLIN, until);
            if (ready > 0) {
                ssize_t done = sends ? send(fd, (char *)payload.buf + sent, (size_t)(payload.len - sent), MSG_NOSIGNAL)
                                     : recv(fd, found, sizeof found, 0);
                if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                    ready = wait_for(fd, sends ? POLLOUT : POLLIN, until);
                else if (done < 0)
                    error = errno;
                else if (sends)
                    sent += done;
                else
                    got = done;
            }
            late = ready == 0;
            if (ready < 0)
                error = errno;
        }
        Py_END_ALLOW_THREADS
    } while (error == EINTR && PyErr_CheckSignals() == 0);
    PyBuffer_Release(&payload);
    if (PyErr_Occurred())
        return NULL;
    if (late) {
        PyErr_SetString(PyExc_TimeoutError, "timed out");
        return NULL;
    }
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyBytes_FromStringAndSize(found, got);
}
