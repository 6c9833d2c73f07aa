/* Many threads share one connection: one of them, the leader, sends the calls of all that wait.
 *
 * A thread that finds no leader leads at once.  Calls that come meanwhile are queued.  When the leader has its answer,
 * it hands the lead to the first in the queue, which sends all queued calls as one batch.  Where the way is long, queued
 * calls do not wait for the answer: after `step` seconds the leader sends them as a further batch, and replies come in
 * the order of the batches.  So a round trip may take nearly the whole deadline.  A thread that must leave
 * before its answer has come, because it is late or interrupted, hands on the lead and what was read so far.  An answer
 * that no thread waits for any more is read and dropped.  The Python twin is stores/redis/combiner.py.
 *
 * Nothing here needs the interpreter, except `convert`.  Only the leader uses the socket, `out`, `in`, `frames` and the
 * batches (but for `is_gone`); the lock guards everything else.  A thread is promised its answer or the lead under the
 * lock, and woken after that.  So a thread that leaves must wait for what it was promised.
 *
 * Of the threads that are answered together each wakes the next, and then takes the interpreter.  If all were woken at
 * once they would only wait for the interpreter, and each would sleep and be woken again.  A thread that is late does
 * not wait for the one before it: it takes its answer, and only its call stays in the chain.
 */
#ifndef RATEKEEPER_LINE_H
#define RATEKEEPER_LINE_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "resp.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#define MOST_CALLS 64   /* of one command: well below a millisecond of the server's time.  resp.MOST_REQUESTS */
#define MOST_BATCHES 32 /* in flight at once */
#define SUBJECT_WORDS 2 /* request.SUBJECT_WORDS */
#define ROOM 65536      /* bytes: a larger buffer is freed after use */
#define READ_AT_ONCE 16384
#define SHORT_REPLY 64

/* A check of one subject, any other plan, or a command that is not the script. */
typedef enum { CHECK, PLAN_OF_MANY, COMMAND } Kind;
/* The last three are final; a call that is DROPPED was not sent. */
typedef enum { LINED_UP, SENT, ANSWERED, LOST, DROPPED } Stage;
/* TOLD: there is a reply.  NOT_SENT: the call was late, or the connection was given up before. */
typedef enum { TOLD, NOT_SENT, LATE, BROKEN, INTERRUPTED } Outcome;

typedef struct Call {
    struct Call *next; /* in the queue, in the batch, or in the chain of threads to wake */
    void *owner;       /* for `convert`: read by the owner only, which may be gone before the call is */
    Kind kind;
    Stage stage;
    const char *keys, *words; /* owned by the caller: read only while the call is queued */
    size_t keys_size, words_size;
    uint32_t keys_count, words_count;
    uint32_t replies;        /* to a command */
    PyThread_type_lock gate; /* released when a promise is kept; NULL once the owner is gone */
    bool is_promised;
    bool is_chained; /* the thread before it in the chain will release the gate */
    bool is_gone;    /* no thread waits for it: the line or the chain frees it */
    bool left_early; /* the owner left before it was woken for its answer */
    char type;    /* of the reply: '$', '-' for an error, 0 for anything else */
    size_t size;
    char *reply, brief[SHORT_REPLY];
} Call;

typedef struct {
    char *bytes;
    size_t size, room;
} Buffer;

/* Calls that were sent together: COMMANDs, or one call of the script. */
typedef struct {
    Call *calls;
    unsigned replies;
    bool is_command;
} Batch;

/* Put what `function` of a session makes of bytes into a buffer, for the call of `owner`.  0, or an errno. */
typedef int Convert(void *owner, void *function, const char *bytes, size_t size, Buffer *into);

typedef struct {
    pthread_mutex_t lock;
    int fd;
    int error; /* the errno for which the connection was given up; 0 while it is open */
    bool was_late; /* a thread got no answer in time: if the connection is given up, that is why */
    Call *leader;
    Call *first, *last; /* of the queue */
    Batch batches[MOST_BATCHES]; /* in flight: a ring */
    unsigned oldest, in_flight;
    double step, sent_at; /* when the last of them was sent, and how much later the next may be */
    Buffer out, in;
    size_t sent;
    Convert *convert; /* of a TLS session; NULL: the connection is not encrypted */
    void *encrypt, *decrypt;
    Frames frames;     /* how far the reply to the oldest batch was parsed */
    const char *start; /* the script's name, as words of a command */
    size_t start_size;
} Line;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool widen(Buffer *buffer, size_t more) {
    size_t room = buffer->room ? buffer->room : 1024;
    while (room - buffer->size < more)
        room *= 2;
    if (room == buffer->room)
        return true;
    char *bytes = realloc(buffer->bytes, room);
    if (bytes) {
        buffer->bytes = bytes;
        buffer->room = room;
    }
    return bytes != NULL;
}

/* Empty a buffer; free one that a rare large batch made grow. */
static void empty(Buffer *buffer) {
    buffer->size = 0;
    if (buffer->room > ROOM) {
        free(buffer->bytes);
        *buffer = (Buffer){0};
    }
}

static bool put(Buffer *buffer, const char *bytes, size_t size) {
    if (!widen(buffer, size))
        return false;
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
    return true;
}

static bool put_number(Buffer *buffer, unsigned number) {
    char digits[12], text[32];
    int count = snprintf(digits, sizeof digits, "%u", number);
    return put(buffer, text, (size_t)snprintf(text, sizeof text, "$%d\r\n%s\r\n", count, digits));
}

#define ALL "$3\r\nall\r\n" /* how the words of a plan begin that is decided all or nothing */

/* Whether calls that differ only in their keys can be written as one: checks, and plans that are all or nothing. */
static bool can_be_joined(const Call *call) {
    size_t size = sizeof ALL - 1;
    return call->kind == CHECK ||
           (call->kind == PLAN_OF_MANY && call->words_size > size && !memcmp(call->words, ALL, size));
}

/* The last of the calls from `call` on that differ only in their keys, and how many: they share one `words`. */
static const Call *last_alike(const Call *call, unsigned *many) {
    *many = 1;
    if (can_be_joined(call))
        for (; call->next && call->next->kind == call->kind && call->next->words == call->words; call = call->next)
            ++*many;
    return call;
}

/* Write all calls as one call of the script: the twin of request.command.  False: out of memory. */
static bool write_script(Line *line, const Call *calls) {
    unsigned keys = 0, words = 0, many;
    bool is_alone = !calls->next; /* a single check needs no word for the operation */
    for (const Call *call = calls; call; call = call->next) {
        const Call *first = call;
        call = last_alike(call, &many);
        if (first->kind == CHECK) {
            words += SUBJECT_WORDS + (many > 1 ? 2 : !is_alone);
            keys += many;
        } else {
            words += first->words_count + (many > 1);
            keys += first->keys_count * many;
        }
    }
    char head[32];
    bool fits = put(&line->out, head, (size_t)snprintf(head, sizeof head, "*%u\r\n", 3 + keys + words)) &&
                put(&line->out, line->start, line->start_size) && put_number(&line->out, keys);
    for (const Call *call = calls; fits && call; call = call->next)
        fits = put(&line->out, call->keys, call->keys_size);
    for (const Call *call = calls; fits && call; call = call->next) {
        const Call *first = call;
        size_t from = 0; /* where its words begin */
        call = last_alike(call, &many);
        if (first->kind == CHECK && many == 1 && !is_alone)
            fits = put(&line->out, "$3\r\none\r\n", 9);
        else if (first->kind == CHECK && many > 1)
            fits = put(&line->out, "$4\r\neach\r\n", 10) && put_number(&line->out, many);
        else if (many > 1) {
            fits = put(&line->out, "$5\r\nplans\r\n", 11) && put_number(&line->out, many);
            from = sizeof ALL - 1;
        }
        fits = fits && put(&line->out, first->words + from, first->words_size - from);
    }
    return fits;
}

static bool write_commands(Line *line, const Call *calls) {
    bool fits = true;
    for (; fits && calls; calls = calls->next)
        fits = put(&line->out, calls->words, calls->words_size);
    return fits;
}

static Batch *batch_at(Line *line, unsigned number) { return &line->batches[(line->oldest + number) % MOST_BATCHES]; }

/* Leader: whether queued calls may be sent now.  All that was written before must have left. */
static bool may_send(Line *line, double now) {
    if (line->sent < line->out.size || line->in_flight == MOST_BATCHES ||
        (line->in_flight && now < line->sent_at + line->step))
        return false;
    pthread_mutex_lock(&line->lock);
    bool is_queued = line->first != NULL;
    pthread_mutex_unlock(&line->lock);
    return is_queued;
}

/* Leader: make the queued calls a batch, and write the command to send.  0, or an errno. */
static int gather(Line *line, double now) {
    pthread_mutex_lock(&line->lock);
    Call *last = line->first;
    if (!last) { /* the last that waited has left since `may_send` */
        pthread_mutex_unlock(&line->lock);
        return 0;
    }
    Batch batch = {last, last->replies, last->kind == COMMAND};
    for (int many = 1; many < MOST_CALLS && last->next && (last->next->kind == COMMAND) == batch.is_command; many++) {
        last = last->next;
        batch.replies += last->replies;
    }
    if (!batch.is_command)
        batch.replies = 1;
    Call *rest = last->next;
    last->next = NULL;
    line->sent = line->out.size = 0;
    int error = line->error;
    if (!error && !(batch.is_command ? write_commands(line, line->first) : write_script(line, line->first)))
        error = ENOMEM;
    if (error) {
        last->next = rest;
    } else {
        if (!line->in_flight)
            line->frames = (Frames){.left = batch.replies};
        *batch_at(line, line->in_flight++) = batch;
        line->sent_at = now;
        line->first = rest;
        line->last = rest ? line->last : NULL;
        for (Call *call = batch.calls; call; call = call->next)
            call->stage = SENT;
    }
    pthread_mutex_unlock(&line->lock);
    return error;
}

static void free_call(Call *call) {
    if (call->reply != call->brief)
        free(call->reply);
    free(call);
}

/* Under the lock: finish a call.  Its thread is promised its answer, and added to the chain of threads to wake. */
static void settle(Call *call, Stage stage, Call ***chain) {
    call->stage = stage;
    call->next = NULL;
    if (call->is_gone) {
        free_call(call);
    } else {
        call->is_promised = call->is_chained = true;
        **chain = call;
        *chain = &call->next;
    }
}

/* Wake the next thread of a chain that still waits.  Once its gate is released, its call may be freed at any time. */
static void pass_on(Line *line, Call *call) {
    if (!call)
        return;
    pthread_mutex_lock(&line->lock);
    while (call && call->is_gone) {
        Call *gone = call;
        call = call->next;
        free_call(gone);
    }
    PyThread_type_lock gate = call ? call->gate : NULL;
    if (call)
        call->is_chained = false;
    pthread_mutex_unlock(&line->lock);
    if (gate)
        PyThread_release_lock(gate);
}

static void keep_reply(Call *call, const Element *part) {
    call->reply = part->size <= SHORT_REPLY ? call->brief : malloc(part->size);
    if (!call->reply)
        return;
    call->type = part->type;
    call->size = part->size;
    memcpy(call->reply, part->bytes, part->size);
}

/* Leader: give each call of the oldest batch its part of the reply, which is whole. */
static void hand_out(Line *line, Call *self) {
    Call *chain = NULL, **tail = &chain, *next;
    Batch *batch = batch_at(line, 0);
    size_t many = 0;
    for (const Call *call = batch->calls; call; call = call->next)
        many++;
    const char *at = line->in.bytes, *end = at + line->frames.at;
    Element whole = read_element(at, end);
    bool each = batch->is_command || (whole.type == '*' && many > 1 && whole.size == many);
    if (each && !batch->is_command)
        at = whole.bytes;
    pthread_mutex_lock(&line->lock);
    for (Call *call = batch->calls; call; call = next) {
        next = call->next;
        Element part = whole;
        if (each) {
            size_t size = frames_size(at, end, batch->is_command ? call->replies : 1);
            part = batch->is_command ? (Element){'$', at, size} : read_element(at, end);
            at += size;
        }
        if ((part.type == '$' && (each || many == 1)) || part.type == '-')
            keep_reply(call, &part);
        if (call == self)
            call->stage = ANSWERED;
        else
            settle(call, ANSWERED, &tail);
    }
    line->oldest = (line->oldest + 1) % MOST_BATCHES;
    line->in_flight--;
    line->in.size -= line->frames.at;
    if (line->in.size && !line->in_flight && !line->error)
        line->error = EPROTO; /* more replies than calls: the next ones cannot be told apart */
    pthread_mutex_unlock(&line->lock);
    if (line->in.size && line->in_flight)
        memmove(line->in.bytes, line->in.bytes + line->frames.at, line->in.size);
    else
        empty(&line->in);
    if (line->in_flight)
        line->frames = (Frames){.left = batch_at(line, 0)->replies};
    pass_on(line, chain);
}

/* Leader: give the connection up; all calls end, and there is no leader any more. */
static void give_up(Line *line, Call *self, int error) {
    Call *chain = NULL, **tail = &chain, *next;
    pthread_mutex_lock(&line->lock);
    if (!line->error || line->was_late)
        line->error = line->was_late ? ETIMEDOUT : error;
    for (unsigned number = 0; number <= line->in_flight; number++) {
        bool was_sent = number < line->in_flight;
        for (Call *call = was_sent ? batch_at(line, number)->calls : line->first; call; call = next) {
            next = call->next;
            if (call == self)
                call->stage = was_sent ? LOST : DROPPED;
            else
                settle(call, was_sent ? LOST : DROPPED, &tail);
        }
    }
    line->leader = line->first = line->last = NULL;
    line->in_flight = 0;
    pthread_mutex_unlock(&line->lock);
    pass_on(line, chain);
}

/* Leader: hand the lead to a thread of a batch, or to the first in the queue; else the next call takes it. */
static void hand_on(Line *line) {
    pthread_mutex_lock(&line->lock);
    Call *heir = NULL;
    for (unsigned number = 0; !heir && number < line->in_flight; number++)
        for (heir = batch_at(line, number)->calls; heir && heir->is_gone; heir = heir->next)
            ;
    if (!heir)
        heir = line->first;
    line->leader = heir;
    PyThread_type_lock gate = heir ? heir->gate : NULL; /* NULL if the heir is leaving */
    if (heir)
        heir->is_promised = true;
    pthread_mutex_unlock(&line->lock);
    if (gate)
        PyThread_release_lock(gate);
}

/* Leader: encrypt the command, if the connection is encrypted.  0, or an errno. */
static int encrypt_batch(Line *line, void *owner) {
    if (!line->convert || !line->out.size)
        return 0;
    Buffer encrypted = {0};
    int why = line->convert(owner, line->encrypt, line->out.bytes, line->out.size, &encrypted);
    if (why) {
        free(encrypted.bytes);
        return why;
    }
    free(line->out.bytes);
    line->out = encrypted;
    return 0;
}

/* Leader: read what has arrived.  The number of bytes, 0 at the end of the connection, or -1 with errno. */
static ssize_t read_some(Line *line, void *owner) {
    if (!line->convert) {
        ssize_t count = recv(line->fd, line->in.bytes + line->in.size, line->in.room - line->in.size, 0);
        if (count > 0)
            line->in.size += (size_t)count;
        return count;
    }
    char encrypted[READ_AT_ONCE];
    ssize_t count = recv(line->fd, encrypted, sizeof encrypted, 0);
    if (count > 0) {
        int why = line->convert(owner, line->decrypt, encrypted, (size_t)count, &line->in);
        if (why) {
            errno = why;
            return -1;
        }
    }
    return count;
}

/* Wait until the socket is ready (1) or the instant `until` (0); -1 with errno. */
static int wait_for(int fd, short events, double until) {
    double left = until - seconds_now();
    struct pollfd one = {fd, events, 0};
    return poll(&one, 1, left > 0 ? (int)(left * 1e3 + 0.999) : 0);
}

/* Leader: one step of sending what was written, or of reading.  False, with `outcome`, if the lead ends here. */
static bool converse(Line *line, Call *self, double until, bool *was_late, Outcome *outcome, int *why) {
    bool sends = line->sent < line->out.size;
    double now = seconds_now();
    *outcome = LATE;
    if (now >= until && *was_late)
        return false; /* a server that never stops sending must not keep the caller */
    *was_late = now >= until; /* what has arrived just in time is still read */
    *outcome = BROKEN;
    *why = ENOMEM;
    if (!widen(&line->in, READ_AT_ONCE))
        return false;
    double looks_at = now + line->step; /* again into the queue */
    bool is_slice = !sends && line->in_flight < MOST_BATCHES && looks_at < until;
    int ready = sends ? 1 : wait_for(line->fd, POLLIN, is_slice ? looks_at : until);
    ssize_t done = -1;
    if (ready > 0) {
        done = sends ? send(line->fd, line->out.bytes + line->sent, line->out.size - line->sent, MSG_NOSIGNAL)
                     : read_some(line, self->owner);
        if (done < 0)
            ready = errno != EAGAIN && errno != EWOULDBLOCK ? -1
                                                            : wait_for(line->fd, sends ? POLLOUT : POLLIN, until);
    }
    if (ready == 0 && is_slice)
        return true;
    if (ready == 0 || (ready < 0 && errno == EINTR)) {
        *outcome = ready ? INTERRUPTED : LATE;
        return false;
    }
    *why = ready < 0 ? errno : ECONNRESET;
    if (ready < 0 || (done == 0 && !sends))
        return false;
    if (done > 0 && sends)
        line->sent += (size_t)done;
    if (line->sent == line->out.size)
        empty(&line->out), line->sent = 0;
    while (line->in_flight && frames_are_whole(&line->frames, line->in.bytes, line->in.size))
        hand_out(line, self);
    *why = EPROTO;
    return !(line->in_flight && line->frames.is_broken);
}

static Outcome outcome_of(const Call *call) {
    return call->stage == ANSWERED ? TOLD : call->stage == LOST ? BROKEN : NOT_SENT;
}

/* Lead until the own call is finished.  After LATE and INTERRUPTED the thread still has the lead. */
static Outcome lead(Line *line, Call *self, double until) {
    bool was_late = false;
    while (self->stage < ANSWERED) {
        double now = seconds_now();
        if (now >= until && self->stage == LINED_UP)
            return LATE; /* do not send what no thread would wait for */
        Outcome outcome = BROKEN;
        int why = 0;
        if (may_send(line, now) && !(why = gather(line, now)))
            why = encrypt_batch(line, self->owner);
        if (why || !converse(line, self, until, &was_late, &outcome, &why)) {
            if (outcome != BROKEN)
                return outcome;
            give_up(line, self, why);
            return outcome_of(self);
        }
    }
    hand_on(line);
    return TOLD;
}

/* Queue a call, and take the lead if no thread has it; false if the connection was given up. */
static bool line_up(Line *line, Call *self, bool *leads) {
    pthread_mutex_lock(&line->lock);
    bool is_good = !line->error;
    if (is_good) {
        *(line->last ? &line->last->next : &line->first) = self;
        line->last = self;
        *leads = !line->leader;
        if (*leads)
            line->leader = self;
    }
    pthread_mutex_unlock(&line->lock);
    return is_good;
}

/* Under the lock: take a call out of the queue. */
static void leave_line(Line *line, const Call *self) {
    Call **place = &line->first, *before = NULL;
    while (*place != self) {
        before = *place;
        place = &before->next;
    }
    *place = self->next;
    if (line->last == self)
        line->last = before;
}

/* Leave early: NOT_SENT, LATE, or the answer if it has just come.  After LATE the line owns the call. */
static Outcome leave(Line *line, Call *self, bool is_late) {
    pthread_mutex_lock(&line->lock);
    PyThread_type_lock gate = self->gate;
    bool is_over = self->stage >= ANSWERED, was_sent = self->stage == SENT;
    bool is_to_lead = !is_over && self->is_promised; /* but was not woken yet; see `finish` for a call that is over */
    self->is_promised = is_over && self->is_promised;
    self->left_early = is_over;
    bool leads = !is_over && line->leader == self;
    if (was_sent) {
        self->is_gone = true;
        self->gate = NULL;
        line->was_late = line->was_late || is_late;
    } else if (!is_over) {
        leave_line(line, self);
    }
    pthread_mutex_unlock(&line->lock);
    if (is_to_lead)
        PyThread_acquire_lock(gate, WAIT_LOCK);
    if (leads)
        hand_on(line);
    if (was_sent && gate)
        PyThread_free_lock(gate);
    return was_sent ? LATE : is_over ? outcome_of(self) : NOT_SENT;
}

/* Wait for the answer, or for the lead and then lead.  After INTERRUPTED call this again, or leave. */
static Outcome take_part(Line *line, Call *self, bool *leads, double until) {
    if (!*leads) {
        double left = until - seconds_now();
        PyLockStatus status = PyThread_acquire_lock_timed(self->gate, left > 0 ? (PY_TIMEOUT_T)(left * 1e6) : 0, 1);
        if (status == PY_LOCK_INTR)
            return INTERRUPTED;
        if (status == PY_LOCK_FAILURE)
            return leave(line, self, true);
        self->is_promised = false;
        if (self->stage >= ANSWERED) {
            pass_on(line, self->next);
            return outcome_of(self);
        }
        *leads = true;
    }
    Outcome outcome = lead(line, self, until);
    return outcome == LATE ? leave(line, self, true) : outcome;
}

/* Free a call that was not LATE, unless the chain still needs it. */
static void finish(Line *line, Call *self) {
    PyThread_type_lock gate = self->gate;
    bool is_chained = false;
    if (self->left_early) {
        pthread_mutex_lock(&line->lock);
        is_chained = self->is_chained;
        self->is_gone = true;
        pthread_mutex_unlock(&line->lock);
        if (!is_chained) { /* woken meanwhile */
            PyThread_acquire_lock(gate, WAIT_LOCK);
            pass_on(line, self->next);
        }
    }
    PyThread_free_lock(gate);
    if (!is_chained)
        free_call(self);
}
#endif
