/* SPDX-License-Identifier: Apache-2.0 */
/* A producing client of librdkafka that identifies messages by sequence numbers and returns their outcomes in columns.
 *
 * 1. Delivery reports, errors and logs: librdkafka calls us back without the GIL, and we collect them in arrays.
 * 2. The arrays as Python objects: `poll` and `flush` return them all, or raise and keep them for the next call.
 * 3. Producing: with the GIL for one message, without it for many.
 * 4. Waiting: in slices, between which signals are handled.
 * 5. The life of a client: it is destroyed by the last call that uses it, and never in the child of a fork.
 * 6. The functions of librdkafka, and the module.
 *
 * The GIL protects the fields of a client, except for those that say otherwise. Callbacks never take it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rdkafka_abi.h"

#if UINTPTR_MAX < INT64_MAX
#error "a message's sequence number is its opaque pointer, which needs 64 bits"
#endif

#ifdef CLOCK_REALTIME_COARSE /* precise to some milliseconds, for a third of the cost */
#define COARSE_CLOCK CLOCK_REALTIME_COARSE
#else
#define COARSE_CLOCK CLOCK_REALTIME
#endif

#define OLDEST_VERSION 0x020300ff /* the first that describes topics with their ids, which a producer asks for */
#define ID_HEADER "message-id"
#define ID_DIGITS 12
#define MOST_ID_BYTES 80
#define SLICE_MS 100            /* how long a signal may wait for its handler */
#define MOST_NOTICES 1000       /* of a kind, until the next poll */
#define COUNTS_LOOKED_AT 8      /* Python adds up the counts of the same bucket */
/* Less takes less time than it may take to get the GIL again. */
#define GIL_RELEASED_FROM_MESSAGES 64
#define GIL_RELEASED_FROM_BYTES 65536

typedef struct {
    char *items;
    size_t count, room;
} array_t;

typedef struct {
    int64_t sequence, offset;
    int32_t partition;
    uint32_t size; /* of value and key */
} delivered_t;

typedef struct {
    const char *start; /* NULL: None */
    size_t size;
} bytes_t;

typedef struct {
    int64_t sequence;
    int code;
    bytes_t text, value, key;
    char bytes[]; /* to which they point */
} undelivered_t;

typedef struct {
    char *topic;
    int64_t bucket_ms; /* its beginning */
    int64_t messages, bytes, delay_ms, most_delay_ms;
} count_t;

typedef struct {
    int number; /* the code of an error, the syslog level of a log line */
    int fatal;
    char *text;
} notice_t;

typedef struct {
    PyObject_HEAD
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic; /* the one that `send` used last, or NULL */
    pid_t pid;
    int closed;
    int users;   /* calls that use `rk` without the GIL */
    int serving; /* whether one of them is `poll` or `flush` */
    atomic_int woken;
    int64_t queued; /* handed over, and not returned as an outcome */
    _Atomic int64_t bucket_ms;

    /* Callbacks write these, in the thread that serves. */
    array_t delivered, undelivered, counts, errors;
    size_t forgotten; /* outcomes that there was no memory for */

    pthread_mutex_t logs_lock; /* any thread of librdkafka logs */
    array_t logs;
    size_t dropped_logs;
} client_t;

static PyObject *Error; /* (code, text, fatal): librdkafka refuses something */

/* ---- 1. Delivery reports, errors and logs ---- */

/* Returns the next item, zeroed, or NULL if there is no memory. */
static void *append(array_t *array, size_t item_size) {
    if (array->count == array->room) {
        size_t room = array->room ? array->room * 2 : 64;
        char *items = realloc(array->items, room * item_size);
        if (!items)
            return NULL;
        array->items = items;
        array->room = room;
    }
    void *item = array->items + array->count++ * item_size;
    return memset(item, 0, item_size);
}

static bytes_t copied(char **to, const void *from, size_t size) {
    bytes_t copy = {from ? *to : NULL, size};
    if (from && size)
        memcpy(*to, from, size);
    *to += size;
    return copy;
}

static undelivered_t *undelivered_copy(const rd_kafka_message_t *message) {
    const char *text = rd.message_produce_errstr(message);
    if (!text)
        text = rd.err2str(message->err);
    undelivered_t *copy = malloc(sizeof(undelivered_t) + strlen(text) + message->len + message->key_len);
    if (!copy)
        return NULL;
    char *to = copy->bytes;
    copy->sequence = (intptr_t)message->opaque;
    copy->code = message->err;
    copy->text = copied(&to, text, strlen(text));
    copy->value = copied(&to, message->payload, message->len);
    copy->key = copied(&to, message->key, message->key_len);
    return copy;
}

static count_t *find_count(array_t *counts, const char *topic, int64_t bucket_ms) {
    count_t *first = (count_t *)counts->items;
    size_t looked_at = 0;
    for (size_t i = counts->count; i > 0 && looked_at < COUNTS_LOOKED_AT; i--, looked_at++)
        if (first[i - 1].bucket_ms == bucket_ms && !strcmp(first[i - 1].topic, topic))
            return &first[i - 1];
    count_t *count = append(counts, sizeof(count_t));
    if (!count)
        return NULL;
    count->topic = strdup(topic);
    count->bucket_ms = bucket_ms;
    if (!count->topic) {
        counts->count--;
        return NULL;
    }
    return count;
}

static int count_delivered(client_t *self, const rd_kafka_message_t *message, int64_t length_ms) {
    int kind;
    int64_t sent_ms = rd.message_timestamp(message, &kind), into_ms = sent_ms % length_ms;
    count_t *count = find_count(&self->counts, rd.topic_name(message->rkt),
                                sent_ms - (into_ms < 0 ? into_ms + length_ms : into_ms));
    if (!count)
        return 0;
    struct timespec now;
    clock_gettime(COARSE_CLOCK, &now);
    int64_t delay_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - sent_ms;
    if (delay_ms < 0)
        delay_ms = 0;
    count->messages++;
    count->bytes += message->len;
    count->delay_ms += delay_ms;
    if (delay_ms > count->most_delay_ms)
        count->most_delay_ms = delay_ms;
    return 1;
}

static int keep_delivered(client_t *self, const rd_kafka_message_t *message) {
    int64_t length_ms = self->bucket_ms;
    delivered_t *delivered = append(&self->delivered, sizeof(delivered_t));
    if (!delivered)
        return 0;
    if (length_ms && !count_delivered(self, message, length_ms)) {
        self->delivered.count--;
        return 0;
    }
    delivered->sequence = (intptr_t)message->opaque;
    delivered->offset = message->offset;
    delivered->partition = message->partition;
    delivered->size = message->len + message->key_len;
    return 1;
}

static int keep_undelivered(client_t *self, const rd_kafka_message_t *message) {
    undelivered_t **undelivered = append(&self->undelivered, sizeof(undelivered_t *));
    if (!undelivered)
        return 0;
    *undelivered = undelivered_copy(message);
    if (!*undelivered) {
        self->undelivered.count--;
        return 0;
    }
    return 1;
}

static void on_delivery_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    client_t *self = opaque;
    (void)rk;
    if (!(message->err ? keep_undelivered(self, message) : keep_delivered(self, message)))
        self->forgotten++;
}

/* Takes the text, which may be NULL if there was no memory for it. A fatal error replaces the last if there are too
 * many. Returns 0 if the notice is not kept. */
static int add_notice(array_t *notices, int number, int fatal, char *text) {
    notice_t *notice = NULL;
    if (text && notices->count < MOST_NOTICES)
        notice = append(notices, sizeof(notice_t));
    else if (text && fatal) {
        notice = (notice_t *)notices->items + MOST_NOTICES - 1;
        free(notice->text);
    }
    if (!notice) {
        free(text);
        return 0;
    }
    *notice = (notice_t){number, fatal, text};
    return 1;
}

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque) {
    client_t *self = opaque;
    char text[512];
    int fatal = code == RD_KAFKA_RESP_ERR__FATAL; /* it stands for the error that made the client unusable */
    if (fatal)
        code = rd.fatal_error(rk, text, sizeof text);
    add_notice(&self->errors, code, fatal, strdup(fatal ? text : reason));
}

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text) {
    client_t *self = rk ? rd.opaque(rk) : NULL;
    if (!self)
        return;
    const char *name = rd.name(rk);
    size_t size = strlen(facility) + strlen(name) + strlen(text) + sizeof " [] ";
    char *line = malloc(size);
    if (line)
        snprintf(line, size, "%s [%s] %s", facility, name, text);
    pthread_mutex_lock(&self->logs_lock);
    if (!add_notice(&self->logs, level, 0, line))
        self->dropped_logs++;
    pthread_mutex_unlock(&self->logs_lock);
}

static void free_notices(array_t *notices) {
    for (size_t i = 0; i < notices->count; i++)
        free(((notice_t *)notices->items)[i].text);
    free(notices->items);
    *notices = (array_t){0};
}

/* The arrays of delivery reports keep their memory for the next ones. */
static void clear_outcomes(client_t *self) {
    for (size_t i = 0; i < self->undelivered.count; i++)
        free(((undelivered_t **)self->undelivered.items)[i]);
    for (size_t i = 0; i < self->counts.count; i++)
        free(((count_t *)self->counts.items)[i].topic);
    self->delivered.count = self->undelivered.count = self->counts.count = 0;
    self->forgotten = 0;
    free_notices(&self->errors);
}

/* ---- 2. The arrays as Python objects ---- */

/* Merges the ascending runs of `from`, two by two, into `to`; returns how many runs are left. */
static size_t merge_runs(const delivered_t *from, delivered_t *to, size_t count) {
    size_t runs = 0, start = 0;
    while (start < count) {
        size_t middle = start + 1, end;
        while (middle < count && from[middle - 1].sequence <= from[middle].sequence)
            middle++;
        for (end = middle + 1; end < count && from[end - 1].sequence <= from[end].sequence;)
            end++;
        if (end > count)
            end = count;
        for (size_t left = start, right = middle, i = start; i < end; i++) {
            int is_left = right == end || (left < middle && from[left].sequence <= from[right].sequence);
            to[i] = from[is_left ? left++ : right++];
        }
        start = end;
        runs++;
    }
    return runs;
}

/* Sorts by sequence: reports come batch by batch of a partition, each ascending. Returns 0 without memory. */
static int sort_delivered(array_t *array) {
    const delivered_t *items = (delivered_t *)array->items;
    size_t sorted = 1;
    while (sorted < array->count && items[sorted - 1].sequence <= items[sorted].sequence)
        sorted++;
    if (sorted >= array->count)
        return 1;
    char *other = malloc(array->room * sizeof(delivered_t));
    if (!other)
        return 0;
    for (size_t runs = 2; runs > 1;) {
        runs = merge_runs((delivered_t *)array->items, (delivered_t *)other, array->count);
        char *merged = other;
        other = array->items;
        array->items = merged;
    }
    free(other);
    return 1;
}

static PyObject *decoded(bytes_t text) { return PyUnicode_DecodeUTF8(text.start, text.size, "replace"); }

static PyObject *bytes_or_none(bytes_t bytes) {
    if (!bytes.start)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(bytes.start, bytes.size);
}

/* Builds the item at `index` of what is at `from`. */
typedef PyObject *build_item_t(const void *from, size_t index);

static PyObject *build_list(build_item_t *build_item, const void *from, size_t count) {
    PyObject *list = PyList_New(count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *item = build_item(from, i);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, i, item);
    }
    return list;
}

/* (sequence, code, text, value, key) */
static PyObject *undelivered_tuple(const void *from, size_t index) {
    const undelivered_t *message = ((undelivered_t *const *)from)[index];
    return Py_BuildValue("(LiNNN)", (long long)message->sequence, message->code, decoded(message->text),
                         bytes_or_none(message->value), bytes_or_none(message->key));
}

/* (topic, beginning of the bucket, messages, bytes, delay_ms, most_delay_ms) */
static PyObject *count_tuple(const void *from, size_t index) {
    const count_t *count = (const count_t *)from + index;
    return Py_BuildValue("(sLLLLL)", count->topic, (long long)count->bucket_ms, (long long)count->messages,
                         (long long)count->bytes, (long long)count->delay_ms, (long long)count->most_delay_ms);
}

/* (code or level, text, fatal) */
static PyObject *notice_tuple(const void *from, size_t index) {
    notice_t notice = ((const notice_t *)from)[index];
    bytes_t text = {notice.text, strlen(notice.text)};
    return Py_BuildValue("(iNN)", notice.number, decoded(text), PyBool_FromLong(notice.fatal));
}

/* Fills the columns of what was delivered; `sizes`: of each message and all before it. */
static void fill_columns(const array_t *array, int64_t *sequences, int32_t *partitions, int64_t *offsets,
                         int64_t *sizes) {
    const delivered_t *delivered = (const delivered_t *)array->items;
    int64_t size = 0;
    for (size_t i = 0; i < array->count; i++) {
        sequences[i] = delivered[i].sequence;
        partitions[i] = delivered[i].partition;
        offsets[i] = delivered[i].offset;
        sizes[i] = size += delivered[i].size;
    }
}

static PyObject *columns(const array_t *array) {
    PyObject *column[4];
    for (int i = 0; i < 4; i++)
        column[i] = PyBytes_FromStringAndSize(NULL, array->count * (i == 1 ? sizeof(int32_t) : sizeof(int64_t)));
    if (column[0] && column[1] && column[2] && column[3])
        fill_columns(array, (int64_t *)PyBytes_AsString(column[0]), (int32_t *)PyBytes_AsString(column[1]),
                     (int64_t *)PyBytes_AsString(column[2]), (int64_t *)PyBytes_AsString(column[3]));
    return Py_BuildValue("(NNNN)", column[0], column[1], column[2], column[3]);
}

static PyObject *all_outcomes(const client_t *self) {
    return Py_BuildValue("(NNNN)", columns(&self->delivered),
                         build_list(undelivered_tuple, self->undelivered.items, self->undelivered.count),
                         build_list(count_tuple, self->counts.items, self->counts.count),
                         build_list(notice_tuple, self->errors.items, self->errors.count));
}

/* Returns what was collected, or None; forgets it only if that succeeds. */
static PyObject *take_outcomes(client_t *self) {
    size_t count = self->delivered.count + self->undelivered.count;
    if (self->forgotten) { /* they stay queued: their outcomes are unknown */
        PyErr_Format(PyExc_MemoryError, "no memory for the outcomes of %zu messages", self->forgotten);
        self->forgotten = 0;
        return NULL;
    }
    if (!count && !self->errors.count)
        Py_RETURN_NONE;
    if (!sort_delivered(&self->delivered))
        return PyErr_NoMemory();
    PyObject *outcomes = all_outcomes(self);
    if (outcomes) {
        self->queued -= count;
        clear_outcomes(self);
    }
    return outcomes;
}

/* Returns (lines of the log, how many more there were), or None. */
static PyObject *client_logs(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    (void)unused;
    pthread_mutex_lock(&self->logs_lock);
    array_t logs = self->logs;
    size_t dropped = self->dropped_logs;
    self->logs = (array_t){0};
    self->dropped_logs = 0;
    pthread_mutex_unlock(&self->logs_lock);
    if (!logs.count && !dropped)
        Py_RETURN_NONE;
    PyObject *taken = Py_BuildValue("(Nn)", build_list(notice_tuple, logs.items, logs.count), (Py_ssize_t)dropped);
    free_notices(&logs);
    return taken;
}

/* ---- 3. Producing ---- */

static void begin_use(client_t *self) { self->users++; }
static void end_use(client_t *self);

static void raise_error(int code, const char *text, int fatal) {
    bytes_t shown = {text, strlen(text)}; /* librdkafka may cut it within a character */
    PyObject *arguments = Py_BuildValue("(iNO)", code, decoded(shown), fatal ? Py_True : Py_False);
    if (arguments)
        PyErr_SetObject(Error, arguments);
    Py_XDECREF(arguments);
}

static int is_open(const client_t *self) {
    if (!self->closed)
        return 1;
    raise_error(RD_KAFKA_RESP_ERR__DESTROY, "the client is closed", 0);
    return 0;
}

static void raise_refused(client_t *self, int code) {
    char text[512];
    if (code == RD_KAFKA_RESP_ERR__QUEUE_FULL)
        PyErr_SetString(PyExc_BufferError, rd.err2str(code));
    else if (code == RD_KAFKA_RESP_ERR__FATAL) { /* as in `on_error` */
        code = rd.fatal_error(self->rk, text, sizeof text);
        raise_error(code, text, 1);
    } else
        raise_error(code, rd.err2str(code), 0);
}

static int has_type(const char *what, PyObject *object, int matches, const char *wanted) {
    if (matches)
        return 1;
    PyObject *type = PyType_GetName(Py_TYPE(object));
    if (type)
        PyErr_Format(PyExc_TypeError, "%s must be %s, not %U", what, wanted, type);
    Py_XDECREF(type);
    return 0;
}

static int as_bytes(const char *what, PyObject *object, bytes_t *bytes) {
    char *start;
    Py_ssize_t size;
    if (!has_type(what, object, PyBytes_Check(object), "bytes") || PyBytes_AsStringAndSize(object, &start, &size))
        return 0;
    *bytes = (bytes_t){start, size};
    return 1;
}

static int as_optional_bytes(const char *what, PyObject *object, bytes_t *bytes) {
    *bytes = (bytes_t){NULL, 0};
    return object == Py_None || as_bytes(what, object, bytes);
}

static int as_text(const char *what, PyObject *object, bytes_t *text) {
    Py_ssize_t size;
    if (!has_type(what, object, PyUnicode_Check(object), "str"))
        return 0;
    text->start = PyUnicode_AsUTF8AndSize(object, &size);
    if (!text->start)
        return 0;
    text->size = size;
    if (strlen(text->start) == text->size)
        return 1;
    PyErr_Format(PyExc_ValueError, "%s must not contain a null character", what);
    return 0;
}

static int as_sequence(PyObject *object, int64_t *sequence) {
    *sequence = PyLong_AsLongLong(object);
    if (*sequence >= 0)
        return 1;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a sequence must not be negative: %lld", (long long)*sequence);
    return 0;
}

static int as_prefix(PyObject *object, bytes_t *prefix) {
    if (!as_optional_bytes("id_prefix", object, prefix))
        return 0;
    if (prefix->size <= MOST_ID_BYTES - 16)
        return 1;
    PyErr_Format(PyExc_ValueError, "id_prefix must have at most %d bytes", MOST_ID_BYTES - 16);
    return 0;
}

/* Selects the topic to produce to. Its handle stays until another is selected, which saves the look-up by name. */
/* The last check of a call: Python code that runs after it, such as a finalizer, may select another topic or close the
 * client. Whatever may run Python code or allocate an object that is garbage-collected comes before it. */
static int select_topic(client_t *self, PyObject *object) {
    bytes_t name;
    if (!is_open(self) || !as_text("topic", object, &name))
        return 0;
    if (self->topic && !strcmp(rd.topic_name(self->topic), name.start))
        return 1;
    rd_kafka_topic_t *topic = rd.topic_new(self->rk, name.start, NULL);
    if (!topic) {
        raise_refused(self, rd.last_error());
        return 0;
    }
    if (self->topic)
        rd.topic_destroy(self->topic);
    self->topic = topic;
    return 1;
}

/* Writes the digits of the sequence as "%012x" does, and returns how many there are. */
static size_t write_digits(char *to, uint64_t sequence) {
    size_t count = ID_DIGITS;
    while (count < 16 && sequence >> 4 * count)
        count++;
    for (size_t i = count; i > 0; sequence >>= 4)
        to[--i] = "0123456789abcdef"[sequence & 15];
    return count;
}

/* Queues one message. `id`: its only header, unless that is NULL. */
static int produce_bytes(rd_kafka_t *rk, rd_kafka_topic_t *topic, bytes_t value, bytes_t key, int64_t sequence,
                         bytes_t id) {
    if (!id.start)
        return rd.producev(rk, RD_KAFKA_VTYPE_RKT, topic, RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY,
                           RD_KAFKA_VTYPE_VALUE, value.start, value.size, RD_KAFKA_VTYPE_KEY, key.start, key.size,
                           RD_KAFKA_VTYPE_OPAQUE, (void *)(intptr_t)sequence, RD_KAFKA_VTYPE_END);
    return rd.producev(rk, RD_KAFKA_VTYPE_RKT, topic, RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY,
                       RD_KAFKA_VTYPE_VALUE, value.start, value.size, RD_KAFKA_VTYPE_KEY, key.start, key.size,
                       RD_KAFKA_VTYPE_HEADER, ID_HEADER, id.start, (ssize_t)id.size, RD_KAFKA_VTYPE_OPAQUE,
                       (void *)(intptr_t)sequence, RD_KAFKA_VTYPE_END);
}

static PyObject *client_send(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    client_t *self = (client_t *)object;
    bytes_t value, key, prefix, id = {NULL, 0};
    int64_t sequence;
    char digits[MOST_ID_BYTES];
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "send takes topic, value, key, sequence and id_prefix, not %zd arguments",
                            count);
    if (!as_bytes("value", arguments[1], &value) || !as_optional_bytes("key", arguments[2], &key) ||
        !as_sequence(arguments[3], &sequence) || !as_prefix(arguments[4], &prefix) || !select_topic(self, arguments[0]))
        return NULL;
    PyObject *result = NULL;
    if (!prefix.start) {
        result = Py_NewRef(Py_None);
    } else {
        memcpy(digits, prefix.start, prefix.size);
        id = (bytes_t){digits, prefix.size + write_digits(digits + prefix.size, sequence)};
        result = PyBytes_FromStringAndSize(id.start, id.size);
        if (!result)
            return NULL;
    }
    int error = produce_bytes(self->rk, self->topic, value, key, sequence, id);
    if (!error) {
        self->queued++;
        return result;
    }
    Py_DECREF(result);
    raise_refused(self, error);
    return NULL;
}

typedef struct {
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic;
    const bytes_t *values;
    Py_ssize_t count;
    bytes_t key, prefix;
    int64_t first;
} bulk_t;

/* Queues until the client takes no more; returns how many it took. */
static Py_ssize_t produce_values(const bulk_t *bulk) {
    char digits[MOST_ID_BYTES];
    bytes_t id = {bulk->prefix.start ? digits : NULL, 0};
    Py_ssize_t i;
    if (id.start)
        memcpy(digits, bulk->prefix.start, bulk->prefix.size);
    for (i = 0; i < bulk->count; i++) {
        if (id.start)
            id.size = bulk->prefix.size + write_digits(digits + bulk->prefix.size, bulk->first + i);
        if (produce_bytes(bulk->rk, bulk->topic, bulk->values[i], bulk->key, bulk->first + i, id))
            break;
    }
    return i;
}

static Py_ssize_t produce_many(client_t *self, bulk_t *bulk) {
    Py_ssize_t taken;
    size_t bytes = 0;
    for (Py_ssize_t i = 0; i < bulk->count; i++)
        bytes += bulk->values[i].size;
    if (bulk->count < GIL_RELEASED_FROM_MESSAGES && bytes < GIL_RELEASED_FROM_BYTES)
        return produce_values(bulk);
    /* A handle of its own, because another thread may select another topic. */
    bulk->topic = rd.topic_new(bulk->rk, rd.topic_name(bulk->topic), NULL);
    if (!bulk->topic)
        return 0;
    begin_use(self);
    Py_BEGIN_ALLOW_THREADS
    taken = produce_values(bulk);
    rd.topic_destroy(bulk->topic);
    Py_END_ALLOW_THREADS
    end_use(self);
    return taken;
}

static bytes_t *values_of(PyObject *held, Py_ssize_t count) {
    bytes_t *values = malloc((count ? count : 1) * sizeof(bytes_t));
    if (!values)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; values && i < count; i++) {
        PyObject *value = PyTuple_GetItem(held, i);
        if (!value || !as_bytes("each value", value, &values[i])) {
            free(values);
            return NULL;
        }
    }
    return values;
}

static PyObject *client_produce(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    client_t *self = (client_t *)object;
    bulk_t bulk = {0};
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "produce takes topic, values, key, first and id_prefix, not %zd arguments",
                            count);
    if (!has_type("values", arguments[1], PyList_Check(arguments[1]), "list") ||
        !as_optional_bytes("key", arguments[2], &bulk.key) || !as_sequence(arguments[3], &bulk.first) ||
        !as_prefix(arguments[4], &bulk.prefix))
        return NULL;
    PyObject *held = PyList_AsTuple(arguments[1]); /* another thread may change the list */
    if (!held)
        return NULL;
    bulk.count = PyTuple_Size(held);
    bytes_t *values = values_of(held, bulk.count);
    Py_ssize_t taken = -1;
    if (values && select_topic(self, arguments[0])) {
        bulk.rk = self->rk;
        bulk.topic = self->topic;
        bulk.values = values;
        self->queued += bulk.count; /* before another thread sees outcomes */
        taken = produce_many(self, &bulk);
        self->queued -= bulk.count - taken;
    }
    free(values);
    Py_DECREF(held);
    return taken < 0 ? NULL : PyLong_FromSsize_t(taken);
}

/* Returns 0 for None or an empty sequence, too; the caller owns the headers. */
static int as_headers(PyObject *object, rd_kafka_headers_t **headers) {
    PyObject *pairs = PySequence_Tuple(object);
    if (!pairs)
        return 0;
    Py_ssize_t count = PyTuple_Size(pairs);
    *headers = count ? rd.headers_new(count) : NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name_object, *value_object;
        bytes_t name, value;
        PyObject *pair = PyTuple_GetItem(pairs, i);
        if (!has_type("each header", pair, PyTuple_Check(pair), "a tuple (name, value)") ||
            !PyArg_ParseTuple(pair, "OO", &name_object, &value_object) ||
            !as_text("a header's name", name_object, &name) ||
            !as_optional_bytes("a header's value", value_object, &value)) {
            rd.headers_destroy(*headers);
            Py_DECREF(pairs);
            return 0;
        }
        rd.header_add(*headers, name.start, name.size, value.start, value.size);
    }
    Py_DECREF(pairs);
    return 1;
}

static PyObject *client_produce_record(PyObject *object, PyObject *arguments) {
    client_t *self = (client_t *)object;
    PyObject *topic, *value_object, *key_object, *header_objects, *sequence_object;
    bytes_t value, key;
    int partition;
    long long timestamp_ms;
    int64_t sequence;
    rd_kafka_headers_t *headers = NULL;
    if (!PyArg_ParseTuple(arguments, "OOOiLOO:produce_record", &topic, &value_object, &key_object, &partition,
                          &timestamp_ms, &header_objects, &sequence_object) ||
        !as_optional_bytes("value", value_object, &value) || !as_optional_bytes("key", key_object, &key) ||
        !as_sequence(sequence_object, &sequence) || !as_headers(header_objects, &headers))
        return NULL;
    if (!select_topic(self, topic)) {
        if (headers)
            rd.headers_destroy(headers);
        return NULL;
    }
    int error = rd.producev(self->rk, RD_KAFKA_VTYPE_RKT, self->topic, RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY,
                            RD_KAFKA_VTYPE_PARTITION, (int32_t)partition, RD_KAFKA_VTYPE_TIMESTAMP,
                            (int64_t)timestamp_ms, RD_KAFKA_VTYPE_VALUE, value.start, value.size, RD_KAFKA_VTYPE_KEY,
                            key.start, key.size, RD_KAFKA_VTYPE_OPAQUE, (void *)(intptr_t)sequence,
                            headers ? RD_KAFKA_VTYPE_HEADERS : RD_KAFKA_VTYPE_END, headers, RD_KAFKA_VTYPE_END);
    if (!error) {
        self->queued++;
        Py_RETURN_NONE;
    }
    if (headers)
        rd.headers_destroy(headers);
    raise_refused(self, error);
    return NULL;
}

/* ---- 4. Waiting ---- */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A slice of a wait, without the GIL; returns whether the wait is over. */
typedef int slice_t(client_t *, int timeout_ms);

static int has_outcomes(const client_t *self) {
    return self->delivered.count || self->undelivered.count || self->errors.count;
}

static int poll_slice(client_t *self, int timeout_ms) {
    rd.poll(self->rk, has_outcomes(self) ? 0 : timeout_ms); /* an interrupted call may have left some */
    return has_outcomes(self) || self->woken;
}

static int flush_slice(client_t *self, int timeout_ms) { return !rd.flush(self->rk, timeout_ms); }

/* Returns 0 with an exception that a signal handler raised. */
static int wait_in_slices(client_t *self, slice_t *slice, int64_t timeout_ms) {
    int64_t until_ms = monotonic_ms() + timeout_ms;
    for (;;) {
        int64_t left_ms = until_ms - monotonic_ms();
        int over, slice_ms = left_ms < 0 ? 0 : left_ms < SLICE_MS ? left_ms : SLICE_MS;
        Py_BEGIN_ALLOW_THREADS
        over = slice(self, slice_ms);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals())
            return 0;
        if (over || self->closed || left_ms <= SLICE_MS)
            return 1;
    }
}

static PyObject *serve(client_t *self, slice_t *slice, PyObject *timeout) {
    PyObject *outcomes = NULL;
    int64_t timeout_ms = PyLong_AsLongLong(timeout);
    if ((timeout_ms == -1 && PyErr_Occurred()) || !is_open(self))
        return NULL;
    if (self->serving) {
        PyErr_SetString(PyExc_RuntimeError, "one call of poll or flush at a time");
        return NULL;
    }
    self->serving = 1;
    begin_use(self);
    if (wait_in_slices(self, slice, timeout_ms))
        outcomes = take_outcomes(self);
    self->serving = 0;
    self->woken = 0;
    end_use(self);
    return outcomes;
}

static PyObject *client_poll(PyObject *self, PyObject *timeout) {
    return serve((client_t *)self, poll_slice, timeout);
}

static PyObject *client_flush(PyObject *self, PyObject *timeout) {
    return serve((client_t *)self, flush_slice, timeout);
}

static PyObject *client_wake(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    (void)unused;
    if (!is_open(self))
        return NULL;
    self->woken = 1;
    rd_kafka_queue_t *queue = rd.queue_get_main(self->rk);
    rd.queue_yield(queue);
    rd.queue_destroy(queue);
    Py_RETURN_NONE;
}

static PyObject *client_queued(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromLongLong(((client_t *)self)->queued);
}

static PyObject *client_count(PyObject *object, PyObject *bucket_seconds) {
    long long seconds = PyLong_AsLongLong(bucket_seconds);
    if (seconds == -1 && PyErr_Occurred())
        return NULL;
    if (seconds <= 0 || seconds > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "bucket_seconds must be positive: %lld", seconds);
    ((client_t *)object)->bucket_ms = seconds * 1000;
    Py_RETURN_NONE;
}

static PyObject *client_purge(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    (void)unused;
    if (!is_open(self))
        return NULL;
    begin_use(self);
    Py_BEGIN_ALLOW_THREADS
    rd.purge(self->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
    Py_END_ALLOW_THREADS
    end_use(self);
    Py_RETURN_NONE;
}

/* ---- 5. The life of a client ---- */

static void destroy(client_t *self) {
    rd_kafka_t *rk = self->rk;
    rd_kafka_topic_t *topic = self->topic;
    self->rk = NULL;
    self->topic = NULL;
    if (!rk || self->pid != getpid()) /* its threads are in the parent: destroying it would wait for them */
        return;
    Py_BEGIN_ALLOW_THREADS
    if (topic)
        rd.topic_destroy(topic);
    rd.destroy(rk);
    Py_END_ALLOW_THREADS
}

static void end_use(client_t *self) {
    if (!--self->users && self->closed)
        destroy(self);
}

/* Destroys the client, unless a call uses it: then that call does so at its end. */
static PyObject *client_close(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    (void)unused;
    if (!self->closed) {
        if (self->users)
            Py_XDECREF(client_wake(object, NULL));
        self->closed = 1;
        if (!self->users)
            destroy(self);
    }
    Py_RETURN_NONE;
}

static void client_dealloc(PyObject *object) {
    client_t *self = (client_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    int is_child = self->pid != getpid();
    destroy(self);
    if (!is_child)
        pthread_mutex_destroy(&self->logs_lock);
    clear_outcomes(self);
    free(self->delivered.items);
    free(self->undelivered.items);
    free(self->counts.items);
    free_notices(&self->logs);
    release(object);
    Py_DECREF(type);
}

static int set_options(rd_kafka_conf_t *conf, PyObject *options) {
    PyObject *name_object, *value_object;
    Py_ssize_t position = 0;
    bytes_t name, value;
    char text[512];
    while (PyDict_Next(options, &position, &name_object, &value_object)) {
        if (!as_text("an option's name", name_object, &name) || !as_text("an option's value", value_object, &value))
            return 0;
        if (rd.conf_set(conf, name.start, value.start, text, sizeof text) != RD_KAFKA_CONF_OK) {
            raise_error(RD_KAFKA_RESP_ERR__INVALID_ARG, text, 0);
            return 0;
        }
    }
    return 1;
}

static int open_client(client_t *self, PyObject *options) {
    char text[512];
    rd_kafka_conf_t *conf = rd.conf_new();
    if (!set_options(conf, options)) {
        rd.conf_destroy(conf);
        return 0;
    }
    rd.conf_set_opaque(conf, self);
    rd.conf_set_dr_msg_cb(conf, on_delivery_report);
    rd.conf_set_error_cb(conf, on_error);
    rd.conf_set_log_cb(conf, on_log);
    Py_BEGIN_ALLOW_THREADS
    self->rk = rd.new(RD_KAFKA_PRODUCER, conf, text, sizeof text);
    Py_END_ALLOW_THREADS
    if (self->rk)
        return 1;
    rd.conf_destroy(conf);
    raise_error(rd.last_error(), text, 0);
    return 0;
}

static PyObject *client_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    PyObject *options;
    if (names && PyDict_Size(names))
        return PyErr_Format(PyExc_TypeError, "Client takes no keyword arguments");
    if (!PyArg_ParseTuple(arguments, "O!:Client", &PyDict_Type, &options))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    client_t *self = (client_t *)allocate(type, 0);
    if (!self)
        return NULL;
    self->pid = getpid();
    self->closed = 1;
    pthread_mutex_init(&self->logs_lock, NULL);
    if (!open_client(self, options)) {
        Py_DECREF(self);
        return NULL;
    }
    self->closed = 0;
    return (PyObject *)self;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef client_methods[] = {
    {"send", FAST(client_send), METH_FASTCALL, "send(topic, value, key, sequence, id_prefix) -> the id, or None"},
    {"produce", FAST(client_produce), METH_FASTCALL,
     "produce(topic, values, key, first, id_prefix) -> how many were queued"},
    {"produce_record", client_produce_record, METH_VARARGS,
     "produce_record(topic, value, key, partition, timestamp_ms, headers, sequence)"},
    {"poll", client_poll, METH_O, "poll(timeout_ms) -> outcomes; waits for the first"},
    {"flush", client_flush, METH_O, "flush(timeout_ms) -> outcomes; waits until nothing is queued"},
    {"wake", client_wake, METH_NOARGS, "End the current or next poll."},
    {"queued", client_queued, METH_NOARGS, "How many messages have no outcome that poll or flush returned."},
    {"count", client_count, METH_O, "count(bucket_seconds): count what is delivered from now on."},
    {"purge", client_purge, METH_NOARGS, "Give up all messages, without waiting."},
    {"logs", client_logs, METH_NOARGS, "Take the lines of the log, and how many more there were."},
    {"close", client_close, METH_NOARGS, "Destroy the client, or have the calls that use it do so."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot client_slots[] = {
    {Py_tp_new, client_new},
    {Py_tp_dealloc, client_dealloc},
    {Py_tp_methods, client_methods},
    {Py_tp_doc, "Client(options): a producing client; options are librdkafka's, from str to str."},
    {0, NULL},
};

static PyType_Spec client_spec = {
    .name = "monasca_common.kafka.transport.native._librdkafka.Client",
    .basicsize = sizeof(client_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = client_slots,
};

/* ---- 6. The functions of librdkafka, and the module ---- */

#define RD_KAFKA_SYMBOL(name, result, parameters) "rd_kafka_" #name,
static const char *const symbols[] = {RD_KAFKA_FUNCTIONS(RD_KAFKA_SYMBOL)};
#define SYMBOL_COUNT (sizeof symbols / sizeof symbols[0])
_Static_assert(sizeof rd == SYMBOL_COUNT * sizeof(void *), "a pointer for each symbol");

/* Fills `rd` if the library has all functions. */
static int look_up_symbols(void *library) {
    void *functions[SYMBOL_COUNT];
    int (*version)(void);
    const char *(*version_str)(void);
    for (size_t i = 0; i < SYMBOL_COUNT; i++) {
        functions[i] = dlsym(library, symbols[i]);
        if (!functions[i]) {
            PyErr_Format(PyExc_ImportError, "the library has no function %s", symbols[i]);
            return 0;
        }
    }
    memcpy(&version, &functions[0], sizeof version);
    memcpy(&version_str, &functions[1], sizeof version_str);
    if (version() < OLDEST_VERSION) {
        PyErr_Format(PyExc_ImportError, "librdkafka %s is too old: use 2.3.0 or a later version", version_str());
        return 0;
    }
    memcpy(&rd, functions, sizeof rd);
    return 1;
}

/* Uses the librdkafka that confluent-kafka uses. Raises ImportError. */
static int load_librdkafka(void) {
    PyObject *client = PyImport_ImportModule("confluent_kafka.cimpl");
    PyObject *path = client ? PyObject_GetAttrString(client, "__file__") : NULL;
    const char *name = path ? PyUnicode_AsUTF8AndSize(path, NULL) : NULL;
    void *library = name ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    int loaded = library && look_up_symbols(library);
    if (name && !library)
        PyErr_Format(PyExc_ImportError, "%s is not loaded", name);
    if (library && !loaded)
        dlclose(library); /* otherwise it stays loaded */
    Py_XDECREF(path);
    Py_XDECREF(client);
    return loaded;
}

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_librdkafka",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__librdkafka(void) {
    if (!load_librdkafka())
        return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *client = module ? PyType_FromSpec(&client_spec) : NULL;
    Error = client ? PyErr_NewException("monasca_common.kafka.transport.native._librdkafka.Error", NULL, NULL) : NULL;
    if (Error && !PyModule_AddObjectRef(module, "Client", client) && !PyModule_AddObjectRef(module, "Error", Error)) {
        Py_DECREF(client);
        return module;
    }
    Py_XDECREF(client);
    Py_XDECREF(module);
    return NULL;
}
