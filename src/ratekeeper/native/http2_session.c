/* Session: the server's side of an HTTP/2 connection that carries gRPC, from bytes to bytes.
 *
 * nghttp2 does the framing, the header compression and the flow control.  This file assembles the messages of calls,
 * writes answers and trailers, and bounds what a client can make us keep or do: the bytes of a head and of a message,
 * the time that a message may take, and the frames that carry no call (pings, settings, resets, empty data).
 * It has no socket and no clock: `sweep` is called once a second.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Older versions have no such limit of their own, and some distributions added it to them. */
#ifdef __ELF__
void nghttp2_option_set_stream_reset_rate_limit(nghttp2_option *, uint64_t, uint64_t) __attribute__((weak));
#endif

#define RESETS 10000 /* calls that a client may cancel at once, and so many a second: Envoy cancels what times out */
#define PREFIX 5           /* of a message: a flag for compression, and its length */
#define HEAD_FACTOR 4      /* a head that is so many times too large ends the connection, a smaller one only its call */
#define PAID_BY_CALL 16    /* frames without a call that one call makes up for */
#define FIELD_OVERHEAD 32  /* bytes that HTTP/2 adds to each field when it counts a head */
#define RESOURCE_EXHAUSTED 8 /* codes of gRPC */
#define UNIMPLEMENTED 12
#define INTERNAL 13

typedef struct Stream {
    struct Stream *next, *previous;
    int32_t id;
    PyObject *path, *authorization; /* bytes, or NULL */
    size_t head;
    unsigned long since; /* the sweep in which it began, or was last answered */
    unsigned authorizations;
    bool is_post, is_grpc, is_too_large;
    bool is_streaming; /* each message is told as it arrives */
    bool is_told;      /* Python knows this call */
    bool is_ignored;   /* what still arrives has no meaning */
    bool has_ended;    /* the client sends no more */
    bool has_head;     /* the head of the answer was submitted */
    bool is_finished;  /* the trailers are known */
    bool is_plain;     /* the answer is none of gRPC: text without trailers */
    bool is_deferred;  /* nghttp2 waits for more of the answer */
    char *body;        /* what arrived of the next message */
    size_t size, room;
    char *out; /* what is left of the answer, from `sent` on */
    size_t out_size, out_room, sent;
    int status;
    char *text; /* grpc-message, encoded */
    size_t text_size;
} Stream;

typedef struct {
    PyObject_HEAD
    nghttp2_session *session;
    Stream *streams;
    PyObject *streaming; /* a set of paths */
    PyObject *events;    /* of the present `receive`, or NULL */
    size_t most_head, most_body, held;
    unsigned long sweeps, patience;
    unsigned long noise, most_noise;
    unsigned long open, incomplete;
    bool is_broken;
    char *out;
    size_t out_room;
} Session;

static bool grow(char **buffer, size_t *room, size_t needed) {
    if (needed <= *room)
        return true;
    size_t larger = *room ? *room : 256;
    while (larger < needed)
        larger *= 2;
    char *moved = realloc(*buffer, larger);
    if (!moved)
        return false;
    *buffer = moved;
    *room = larger;
    return true;
}

/* Header fields of answers. */

#define STATIC_FIELD(name, value)                                                                         \
    {(uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1,                          \
     NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}

static const nghttp2_nv HEAD[] = {STATIC_FIELD(":status", "200"), STATIC_FIELD("content-type", "application/grpc")};
static const nghttp2_nv NOT_GRPC[] = {STATIC_FIELD(":status", "415"), STATIC_FIELD("content-type", "text/plain")};
static const char WHY_NOT[] = "expected a gRPC call.\n";
static const nghttp2_nv SUCCESS = STATIC_FIELD("grpc-status", "0");

/* grpc-status and grpc-message; returns how many fields were written. */
static size_t write_trailers(Stream *stream, nghttp2_nv *fields, char digits[12]) {
    if (!stream->status) {
        fields[0] = SUCCESS;
        return 1;
    }
    int length = PyOS_snprintf(digits, 12, "%d", stream->status);
    fields[0] = (nghttp2_nv){(uint8_t *)"grpc-status", (uint8_t *)digits, 11, (size_t)length, NGHTTP2_NV_FLAG_NO_COPY_NAME};
    if (!stream->text_size)
        return 1;
    fields[1] = (nghttp2_nv){(uint8_t *)"grpc-message", (uint8_t *)stream->text, 12, stream->text_size,
                             NGHTTP2_NV_FLAG_NO_COPY_NAME};
    return 2;
}

static ssize_t read_answer(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t length, uint32_t *flags,
                           nghttp2_data_source *source, void *data) {
    Stream *stream = source->ptr;
    size_t left = stream->out_size - stream->sent;
    size_t part = left < length ? left : length;
    (void)data;
    if (part)
        memcpy(buffer, stream->out + stream->sent, part);
    stream->sent += part;
    if (stream->sent == stream->out_size) {
        stream->sent = stream->out_size = 0;
        if (stream->is_plain) {
            *flags |= NGHTTP2_DATA_FLAG_EOF;
        } else if (stream->is_finished) {
            nghttp2_nv fields[2];
            char digits[12];
            size_t count = write_trailers(stream, fields, digits);
            *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
            if (nghttp2_submit_trailer(session, id, fields, count))
                return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        } else if (!part) {
            stream->is_deferred = true;
            return NGHTTP2_ERR_DEFERRED;
        }
    }
    return (ssize_t)part;
}

static bool submit_head(Session *self, Stream *stream) {
    nghttp2_data_provider provider = {.source.ptr = stream, .read_callback = read_answer};
    stream->has_head = true;
    return !nghttp2_submit_response(self->session, stream->id, stream->is_plain ? NOT_GRPC : HEAD, 2, &provider);
}

/* Answer a request that is no call. */
static bool explain(Session *self, Stream *stream) {
    if (!grow(&stream->out, &stream->out_room, sizeof WHY_NOT - 1))
        return false;
    memcpy(stream->out, WHY_NOT, sizeof WHY_NOT - 1);
    stream->out_size = sizeof WHY_NOT - 1;
    stream->is_plain = stream->is_finished = true;
    stream->since = self->sweeps;
    return submit_head(self, stream);
}

static bool resume(Session *self, Stream *stream) {
    if (!stream->is_deferred)
        return true;
    stream->is_deferred = false;
    return !nghttp2_session_resume_data(self->session, stream->id);
}

/* End a call; without a message before it, the trailers are all of the answer. */
static bool finish(Session *self, Stream *stream, int status) {
    stream->status = status;
    stream->is_finished = stream->is_ignored = true;
    stream->since = self->sweeps;
    if (stream->has_head)
        return resume(self, stream);
    nghttp2_nv fields[4] = {HEAD[0], HEAD[1]};
    char digits[12];
    size_t count = 2 + write_trailers(stream, fields + 2, digits);
    stream->has_head = true;
    return !nghttp2_submit_response(self->session, stream->id, fields, count, NULL);
}

static bool add_message(Stream *stream, const char *message, size_t size) {
    if (!grow(&stream->out, &stream->out_room, stream->out_size + PREFIX + size))
        return false;
    unsigned char *at = (unsigned char *)stream->out + stream->out_size;
    at[0] = 0;
    at[1] = (unsigned char)(size >> 24);
    at[2] = (unsigned char)(size >> 16);
    at[3] = (unsigned char)(size >> 8);
    at[4] = (unsigned char)size;
    memcpy(at + PREFIX, message, size);
    stream->out_size += PREFIX + size;
    return true;
}

/* What arrives. */

static bool tell(Session *self, int32_t id, PyObject *path, PyObject *authorization, PyObject *message) {
    PyObject *event = Py_BuildValue("(iOOO)", (int)id, path ? path : Py_None, authorization ? authorization : Py_None,
                                    message ? message : Py_None);
    bool is_added = event && !PyList_Append(self->events, event);
    Py_XDECREF(event);
    return is_added;
}

static bool tell_message(Session *self, Stream *stream, const char *bytes, size_t size) {
    PyObject *message = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)size);
    if (!message)
        return false;
    stream->is_told = true;
    self->noise -= self->noise < PAID_BY_CALL ? self->noise : PAID_BY_CALL;
    bool is_told = tell(self, stream->id, stream->path, stream->authorizations == 1 ? stream->authorization : NULL, message);
    Py_DECREF(message);
    return is_told;
}

static void set_text(Stream *stream, const char *text, size_t size) {
    static const char hex[] = "0123456789ABCDEF";
    char *encoded = malloc(3 * size + 1);
    if (!encoded)
        return; /* the code alone says enough */
    size_t length = 0;
    for (size_t at = 0; at < size; at++) {
        unsigned char byte = (unsigned char)text[at];
        if (byte >= 0x20 && byte <= 0x7e && byte != '%') {
            encoded[length++] = (char)byte;
        } else {
            encoded[length++] = '%';
            encoded[length++] = hex[byte >> 4];
            encoded[length++] = hex[byte & 15];
        }
    }
    free(stream->text);
    stream->text = encoded;
    stream->text_size = length;
}

static bool refuse(Session *self, Stream *stream, int status, const char *why) {
    set_text(stream, why, strlen(why));
    self->held -= stream->size;
    stream->size = 0;
    if (stream->is_told && !tell(self, stream->id, NULL, NULL, NULL))
        return false;
    stream->is_told = false;
    return finish(self, stream, status);
}

/* Tell the messages that are complete; of a unary call the only one, at its end. */
static bool tell_messages(Session *self, Stream *stream) {
    size_t at = 0;
    if (stream->is_ignored) {
        if (!stream->has_ended || stream->has_head) /* the rest of a call that was refused */
            return true;
        return explain(self, stream);
    }
    if (!stream->is_streaming && !stream->has_ended)
        return true;
    while (stream->size - at >= PREFIX) {
        const unsigned char *prefix = (unsigned char *)stream->body + at;
        size_t length = (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 | prefix[4];
        if (prefix[0])
            return refuse(self, stream, UNIMPLEMENTED, "expected a message without compression.");
        if (length > self->most_body)
            return refuse(self, stream, RESOURCE_EXHAUSTED, "the message is too large.");
        if (stream->size - at - PREFIX < length)
            break;
        if (!stream->is_streaming && (at || stream->size != PREFIX + length))
            break;
        if (!tell_message(self, stream, (char *)prefix + PREFIX, length))
            return false;
        at += PREFIX + length;
    }
    if (at) {
        memmove(stream->body, stream->body + at, stream->size - at);
        stream->size -= at;
        self->held -= at;
    }
    if (!stream->has_ended)
        return true;
    if (stream->size || !(stream->is_streaming || stream->is_told))
        return refuse(self, stream, INTERNAL, "expected one whole message.");
    return !stream->is_streaming || tell(self, stream->id, stream->path, NULL, NULL);
}

static bool end_of_request(Session *self, Stream *stream) {
    if (!stream->has_ended) {
        self->incomplete--;
        stream->has_ended = true;
    }
    return tell_messages(self, stream);
}

static bool starts_with(const uint8_t *value, size_t size, const char *start, size_t length) {
    return size >= length && !memcmp(value, start, length);
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *data) {
    Session *self = data;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    Stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    stream->id = frame->hd.stream_id;
    stream->since = self->sweeps;
    stream->next = self->streams;
    if (self->streams)
        self->streams->previous = stream;
    self->streams = stream;
    self->open++;
    self->incomplete++;
    nghttp2_session_set_stream_user_data(session, stream->id, stream);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_size,
                     const uint8_t *value, size_t size, uint8_t flags, void *data) {
    Session *self = data;
    Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    (void)flags;
    if (!stream)
        return 0;
    stream->head += name_size + size + FIELD_OVERHEAD;
    if (stream->head > self->most_head) {
        stream->is_too_large = true;
        return stream->head > HEAD_FACTOR * self->most_head ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
    }
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) /* trailers of the client */
        return 0;
#define IS(text) (name_size == sizeof(text) - 1 && !memcmp(name, text, sizeof(text) - 1))
    if (IS(":path")) {
        Py_XDECREF(stream->path);
        stream->path = PyBytes_FromStringAndSize((const char *)value, (Py_ssize_t)size);
        if (!stream->path)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        int is_streaming = PySet_Contains(self->streaming, stream->path);
        if (is_streaming < 0)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        stream->is_streaming = is_streaming;
    } else if (IS(":method")) {
        stream->is_post = size == 4 && !memcmp(value, "POST", 4);
    } else if (IS("content-type")) {
        stream->is_grpc = starts_with(value, size, "application/grpc", 16) &&
                          (size == 16 || value[16] == '+' || value[16] == ';');
    } else if (IS("authorization")) {
        stream->authorizations++;
        Py_XDECREF(stream->authorization);
        stream->authorization = PyBytes_FromStringAndSize((const char *)value, (Py_ssize_t)size);
        if (!stream->authorization)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
#undef IS
    return 0;
}

static bool end_of_head(Session *self, Stream *stream) {
    if (stream->is_too_large)
        return refuse(self, stream, RESOURCE_EXHAUSTED, "the metadata are too large.");
    stream->is_ignored = !(stream->is_post && stream->is_grpc && stream->path);
    return true;
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *data) {
    Session *self = data;
    bool is_call = (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) ||
                   (frame->hd.type == NGHTTP2_DATA && frame->hd.length);
    if (!is_call && ++self->noise > self->most_noise) {
        nghttp2_session_terminate_session(session, NGHTTP2_ENHANCE_YOUR_CALM);
        return 0;
    }
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!stream)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST && !end_of_head(self, stream))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM && !end_of_request(self, stream))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *bytes, size_t size, void *data) {
    Session *self = data;
    Stream *stream = nghttp2_session_get_stream_user_data(session, id);
    (void)flags;
    if (!stream || stream->is_ignored)
        return 0;
    if (stream->size + size > self->most_body + PREFIX && !stream->is_streaming)
        return refuse(self, stream, RESOURCE_EXHAUSTED, "the message is too large.") ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
    if (!grow(&stream->body, &stream->room, stream->size + size))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    memcpy(stream->body + stream->size, bytes, size);
    stream->size += size;
    self->held += size;
    return tell_messages(self, stream) ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE;
}

/* An answer before the end of the request: what the client still sends would be read for nothing. */
static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *data) {
    (void)data;
    if (frame->hd.type != NGHTTP2_HEADERS || !(frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    Stream *stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (stream && !stream->has_ended)
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
    return 0;
}

static void release(Session *self, Stream *stream) {
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        self->streams = stream->next;
    if (stream->next)
        stream->next->previous = stream->previous;
    self->open--;
    self->held -= stream->size;
    if (!stream->has_ended)
        self->incomplete--;
    Py_XDECREF(stream->path);
    Py_XDECREF(stream->authorization);
    free(stream->body);
    free(stream->out);
    free(stream->text);
    free(stream);
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t error, void *data) {
    Session *self = data;
    Stream *stream = nghttp2_session_get_stream_user_data(session, id);
    (void)error;
    if (!stream)
        return 0;
    bool is_cancelled = stream->is_told && !stream->is_finished && self->events;
    release(self, stream);
    return is_cancelled && !tell(self, id, NULL, NULL, NULL) ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* The object. */

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"head", "body", "streams", "noise", "patience", "streaming", NULL};
    Py_ssize_t head, body;
    unsigned int streams;
    unsigned long noise, patience;
    PyObject *streaming;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "nnIkkO:Session", names, &head, &body, &streams, &noise, &patience,
                                     &streaming))
        return NULL;
    if (head < 1 || body < 1 || !streams || !PyAnySet_Check(streaming)) {
        PyErr_SetString(PyExc_ValueError, "Session: expected sizes above 0 and a set of paths.");
        return NULL;
    }
    allocfunc alloc = PyType_GetSlot(type, Py_tp_alloc);
    Session *self = (Session *)alloc(type, 0);
    if (!self)
        return NULL;
    self->most_head = (size_t)head;
    self->most_body = (size_t)body;
    self->most_noise = noise;
    self->patience = patience;
    Py_INCREF(streaming);
    self->streaming = streaming;
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, streams},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)(head > UINT32_MAX ? UINT32_MAX : head)},
    };
    bool is_ready = !nghttp2_session_callbacks_new(&callbacks) && !nghttp2_option_new(&option);
    if (is_ready) {
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
        nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
#ifdef __ELF__
        if (nghttp2_option_set_stream_reset_rate_limit)
            nghttp2_option_set_stream_reset_rate_limit(option, RESETS, RESETS);
#endif
        is_ready = !nghttp2_session_server_new2(&self->session, callbacks, self, option) &&
                   !nghttp2_submit_settings(self->session, NGHTTP2_FLAG_NONE, settings, 2);
    }
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(option);
    if (!is_ready) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void session_free(Session *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    while (self->streams)
        release(self, self->streams);
    nghttp2_session_del(self->session);
    Py_XDECREF(self->streaming);
    free(self->out);
    freefunc done = PyType_GetSlot(type, Py_tp_free);
    done(self);
    Py_DECREF(type);
}

/* receive(part) -> [(stream, path, authorization, message), ...]: messages of calls, in their order.
 * Without a message the client has sent its last one; without a path it has cancelled the call. */
static PyObject *session_receive(Session *self, PyObject *part) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(part, &bytes, &size))
        return NULL;
    PyObject *events = PyList_New(0);
    if (!events)
        return NULL;
    if (self->is_broken)
        return events;
    self->events = events;
    ssize_t read = nghttp2_session_mem_recv(self->session, (const uint8_t *)bytes, (size_t)size);
    self->events = NULL;
    if (PyErr_Occurred()) {
        Py_DECREF(events);
        return NULL;
    }
    if (read != size)
        self->is_broken = true;
    return events;
}

static PyObject *session_pending(Session *self, PyObject *Py_UNUSED(nothing)) {
    size_t size = 0;
    while (!self->is_broken) {
        const uint8_t *bytes;
        ssize_t part = nghttp2_session_mem_send(self->session, &bytes);
        if (part < 0)
            self->is_broken = true;
        if (part <= 0)
            break;
        if (!grow(&self->out, &self->out_room, size + (size_t)part))
            return PyErr_NoMemory();
        memcpy(self->out + size, bytes, (size_t)part);
        size += (size_t)part;
    }
    return PyBytes_FromStringAndSize(self->out, (Py_ssize_t)size);
}

static Stream *find(Session *self, int id) {
    Stream *stream = self->is_broken ? NULL : nghttp2_session_get_stream_user_data(self->session, id);
    return stream && !stream->is_finished ? stream : NULL;
}

/* Add a message to the answer, and its end if `ends`; False if the call has ended already. */
static PyObject *add(Session *self, PyObject *args, bool ends) {
    int id;
    const char *message;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "iy#", &id, &message, &size))
        return NULL;
    Stream *stream = find(self, id);
    if (!stream)
        Py_RETURN_FALSE;
    stream->since = self->sweeps;
    if (!add_message(stream, message, (size_t)size))
        return PyErr_NoMemory();
    if (ends)
        stream->is_finished = stream->is_ignored = true;
    if (!(stream->has_head ? resume(self, stream) : submit_head(self, stream)))
        self->is_broken = true;
    Py_RETURN_TRUE;
}

static PyObject *session_answer(Session *self, PyObject *args) {
    return add(self, args, true);
}

static PyObject *session_send(Session *self, PyObject *args) {
    return add(self, args, false);
}

static PyObject *session_finish(Session *self, PyObject *args) {
    int id, status;
    const char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "iis#", &id, &status, &text, &size))
        return NULL;
    Stream *stream = find(self, id);
    if (!stream)
        Py_RETURN_FALSE;
    set_text(stream, text, (size_t)size);
    if (!finish(self, stream, status))
        self->is_broken = true;
    Py_RETURN_TRUE;
}

static PyObject *session_shut_down(Session *self, PyObject *last) {
    int is_last = PyObject_IsTrue(last);
    if (is_last < 0)
        return NULL;
    if (!self->is_broken && is_last)
        nghttp2_submit_goaway(self->session, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(self->session),
                              NGHTTP2_NO_ERROR, NULL, 0);
    else if (!self->is_broken)
        nghttp2_submit_shutdown_notice(self->session);
    Py_RETURN_NONE;
}

/* Once a second: end calls whose message, or whose reader, is too slow. */
static PyObject *session_sweep(Session *self, PyObject *Py_UNUSED(nothing)) {
    self->sweeps++;
    self->noise = 0;
    for (Stream *stream = self->streams; stream && !self->is_broken; stream = stream->next) {
        bool is_slow = (!stream->has_ended && !(stream->is_streaming && stream->is_told && !stream->size)) ||
                       (stream->has_head && (stream->is_finished || stream->out_size));
        if (is_slow && self->sweeps - stream->since > self->patience)
            nghttp2_submit_rst_stream(self->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_CANCEL);
    }
    Py_RETURN_NONE;
}

static PyObject *get_open(Session *self, void *Py_UNUSED(nothing)) {
    return PyLong_FromUnsignedLong(self->open);
}

static PyObject *get_incomplete(Session *self, void *Py_UNUSED(nothing)) {
    return PyLong_FromUnsignedLong(self->incomplete);
}

static PyObject *get_held(Session *self, void *Py_UNUSED(nothing)) {
    return PyLong_FromSize_t(self->held);
}

static PyObject *get_is_over(Session *self, void *Py_UNUSED(nothing)) {
    bool is_over = self->is_broken ||
                   !(nghttp2_session_want_read(self->session) || nghttp2_session_want_write(self->session));
    return PyBool_FromLong(is_over);
}

static PyMethodDef methods[] = {
    {"receive", (PyCFunction)session_receive, METH_O, NULL},
    {"pending", (PyCFunction)session_pending, METH_NOARGS, NULL},
    {"answer", (PyCFunction)session_answer, METH_VARARGS, NULL},
    {"send", (PyCFunction)session_send, METH_VARARGS, NULL},
    {"finish", (PyCFunction)session_finish, METH_VARARGS, NULL},
    {"shut_down", (PyCFunction)session_shut_down, METH_O, NULL},
    {"sweep", (PyCFunction)session_sweep, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"open", (getter)get_open, NULL, NULL, NULL},
    {"incomplete", (getter)get_incomplete, NULL, NULL, NULL},
    {"held", (getter)get_held, NULL, NULL, NULL},
    {"is_over", (getter)get_is_over, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, session_new}, {Py_tp_dealloc, session_free}, {Py_tp_methods, methods}, {Py_tp_getset, attributes}, {0, NULL},
};

static PyType_Spec spec = {"ratekeeper.native.http2_session.Session", sizeof(Session), 0, Py_TPFLAGS_DEFAULT, slots};

static int execute(PyObject *module) {
    PyObject *type = PyType_FromSpec(&spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Session", type);
    Py_DECREF(type);
    return failed || PyModule_AddStringConstant(module, "NGHTTP2", nghttp2_version(0)->version_str);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "ratekeeper.native.http2_session", NULL, 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_http2_session(void) {
    return PyModuleDef_Init(&module);
}
