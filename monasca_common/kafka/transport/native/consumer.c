/* SPDX-License-Identifier: Apache-2.0 */
/* A consuming client that returns the messages of a poll as columns, partition by partition.
 *
 * 1. Columns: each is built when it is first asked for, from messages that are kept until then.
 * 2. Polling: waits for the first message, and takes what else there is.
 * 3. Rebalances: librdkafka calls us back within `poll` and `close`, and we call Python.
 * 4. Partitions with offsets, and the calls that take and return them.
 * 5. The type. */

#include "client.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Messages keep the memory of the answers that they came in. What exceeds these is copied, the oldest first. */
#define MOST_KEPT_ROWS 64
#define MOST_KEPT_BYTES (16 << 20)
#define LONGEST_CALL_MS 5000 /* that a close waits for; a commit may never end */

enum { COLUMNS = 5 };

typedef struct consumer consumer_t;

/* Messages of one partition. */
typedef struct rows {
    PyObject_HEAD
    consumer_t *consumer; /* NULL: all columns are built, and the messages released */
    struct rows *older, *newer;
    rd_kafka_topic_t *topic;
    int32_t partition;
    array_t messages;
    size_t bytes;
    PyObject *columns[COLUMNS];
} rows_t;

struct consumer {
    client_t client;
    rd_kafka_queue_t *queue; /* of messages and callbacks */
    PyObject *on_rebalance;
    int answered;         /* whether the callback took the partitions that it was called for */
    PyObject *raised[3];  /* what `on_rebalance` raised, for PyErr_Restore */
    rd_kafka_message_t **messages; /* of this poll */
    size_t count, wanted, room;
    rows_t *oldest, *newest; /* those that keep messages */
    size_t kept_rows, kept_bytes;
};

PyTypeObject *rows_type;

/* ---- 1. Columns ---- */

static const rd_kafka_message_t *message_at(const void *from, size_t index) {
    return ((rd_kafka_message_t *const *)from)[index];
}

static PyObject *offset_at(const void *from, size_t index) {
    return PyLong_FromLongLong(message_at(from, index)->offset);
}

static PyObject *key_at(const void *from, size_t index) {
    const rd_kafka_message_t *message = message_at(from, index);
    return bytes_or_none((bytes_t){message->key, message->key_len});
}

static PyObject *value_at(const void *from, size_t index) {
    const rd_kafka_message_t *message = message_at(from, index);
    return bytes_or_none((bytes_t){message->payload, message->len});
}

static PyObject *timestamp_at(const void *from, size_t index) {
    int kind;
    int64_t timestamp_ms = rd.message_timestamp(message_at(from, index), &kind);
    return kind == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE ? Py_NewRef(Py_None) : PyLong_FromLongLong(timestamp_ms);
}

static PyObject *header_at(const void *from, size_t index) {
    bytes_t name, value;
    if (rd.header_get_all(from, index, &name.start, (const void **)&value.start, &value.size))
        return Py_NewRef(Py_None);
    name.size = strlen(name.start);
    return Py_BuildValue("(NN)", decoded(name), bytes_or_none(value));
}

static PyObject *headers_at(const void *from, size_t index) {
    rd_kafka_headers_t *headers;
    if (rd.message_headers(message_at(from, index), &headers))
        return PyTuple_New(0);
    PyObject *list = build_list(header_at, headers, rd.header_cnt(headers));
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static build_item_t *const builders[COLUMNS] = {offset_at, key_at, value_at, timestamp_at, headers_at};

/* Also for the child of a fork, where no message may be destroyed. */
static void release_messages(rows_t *self) {
    consumer_t *consumer = self->consumer;
    if (!consumer)
        return;
    *(self->older ? &self->older->newer : &consumer->oldest) = self->newer;
    *(self->newer ? &self->newer->older : &consumer->newest) = self->older;
    consumer->kept_rows--;
    consumer->kept_bytes -= self->bytes;
    self->consumer = NULL;
    size_t count = consumer->client.pid == getpid() ? self->messages.count : 0;
    for (size_t i = 0; i < count; i++)
        rd.message_destroy((rd_kafka_message_t *)message_at(self->messages.items, i));
}

/* Returns a borrowed reference. Nothing else runs meanwhile: no finalizer may release the messages. */
static PyObject *column(rows_t *self, int kind) {
    int collects = PyGC_Disable();
    if (!self->columns[kind] && self->consumer)
        self->columns[kind] = build_list(builders[kind], self->messages.items, self->messages.count);
    if (collects)
        PyGC_Enable();
    if (!self->columns[kind] && !PyErr_Occurred())
        PyErr_NoMemory(); /* as there was when the messages were released */
    return self->columns[kind];
}

static void copy_columns(rows_t *self) {
    PyObject *raised[3];
    PyErr_Fetch(&raised[0], &raised[1], &raised[2]);
    for (int kind = 0; kind < COLUMNS; kind++)
        if (!column(self, kind))
            PyErr_Clear();
    release_messages(self);
    PyErr_Restore(raised[0], raised[1], raised[2]);
}

static PyObject *rows_get(PyObject *self, void *kind) { return Py_XNewRef(column((rows_t *)self, (intptr_t)kind)); }

static Py_ssize_t rows_length(PyObject *self) { return ((rows_t *)self)->messages.count; }

static void rows_dealloc(PyObject *object) {
    rows_t *self = (rows_t *)object;
    release_messages(self);
    for (int kind = 0; kind < COLUMNS; kind++)
        Py_XDECREF(self->columns[kind]);
    free(self->messages.items);
    free_object(object);
}

static rows_t *new_rows(consumer_t *consumer, const rd_kafka_message_t *message) {
    rows_t *self = (rows_t *)new_object(rows_type);
    if (!self)
        return NULL;
    self->consumer = consumer;
    self->topic = message->rkt;
    self->partition = message->partition;
    self->older = consumer->newest;
    *(consumer->newest ? &consumer->newest->newer : &consumer->oldest) = self;
    consumer->newest = self;
    consumer->kept_rows++;
    return self;
}

/* ---- 2. Polling ---- */

static void take_queued(consumer_t *self) {
    size_t left = self->wanted > self->count ? self->wanted - self->count : 0;
    ssize_t taken = left ? rd.consume_batch_queue(self->queue, 0, self->messages + self->count, left) : 0;
    self->count += taken > 0 ? taken : 0;
}

static int poll_slice(client_t *client, int timeout_ms) {
    consumer_t *self = (consumer_t *)client;
    take_queued(self);
    if (!self->count && !self->raised[0]) {
        *self->messages = rd.consumer_poll(client->rk, timeout_ms);
        self->count = *self->messages != NULL;
        if (self->count)
            take_queued(self);
    }
    return self->count || self->raised[0] || client->has_errors;
}

/* (code, text, topic, partition, offset) */
static PyObject *event_tuple(const rd_kafka_message_t *message) {
    const char *text = rd.message_errstr(message);
    return Py_BuildValue("(iNziL)", message->err, decoded((bytes_t){text, strlen(text)}),
                         message->rkt ? rd.topic_name(message->rkt) : NULL, message->partition,
                         (long long)message->offset);
}

/* Adds the message to the rows of its partition. Returns 0 with an exception, and does not own the message then. */
static int add_message(consumer_t *self, PyObject *parts, array_t *found, rd_kafka_message_t *message) {
    rows_t *rows = NULL;
    for (size_t i = found->count; i > 0 && !rows; i--) { /* most often the last */
        rows_t *other = ((rows_t **)found->items)[i - 1];
        if (other->topic == message->rkt && other->partition == message->partition)
            rows = other;
    }
    if (!rows) {
        rows = new_rows(self, message);
        PyObject *part = Py_BuildValue("(siN)", rd.topic_name(message->rkt), message->partition, rows);
        if (!part || PyList_Append(parts, part)) {
            Py_XDECREF(part);
            return 0;
        }
        Py_DECREF(part);
        *(rows_t **)append(found, sizeof(rows_t *)) = rows;
    }
    *(rd_kafka_message_t **)append(&rows->messages, sizeof(rd_kafka_message_t *)) = message;
    rows->bytes += message->len + message->key_len;
    self->kept_bytes += message->len + message->key_len;
    return 1;
}

/* Raises what `on_rebalance` raised, unless a signal handler raised something: then the next call does. Returns 0 with
 * an exception. */
static int restore(consumer_t *self) {
    if (!PyErr_Occurred() && self->raised[0]) {
        PyErr_Restore(self->raised[0], self->raised[1], self->raised[2]);
        memset(self->raised, 0, sizeof self->raised);
    }
    return !PyErr_Occurred();
}

/* After an exception the next poll returns the events again, because librdkafka reports some errors only once. A caller
 * reads messages, and ends of logs, again from its position. */
static void keep_events(consumer_t *self, size_t from) {
    size_t kept = 0;
    for (size_t i = from; i < self->count; i++) {
        int code = self->messages[i]->err;
        if (code && code != RD_KAFKA_RESP_ERR__PARTITION_EOF)
            self->messages[kept++] = self->messages[i];
        else
            rd.message_destroy(self->messages[i]);
    }
    self->count = kept;
}

/* Returns (parts, events, notices), or None. */
static PyObject *take_fetched(client_t *client) {
    consumer_t *self = (consumer_t *)client;
    size_t i = 0;
    array_t found = {0};
    PyObject *parts = NULL, *events = NULL, *event;
    if (restore(self)) {
        if (!self->count && !client->notices.count)
            Py_RETURN_NONE;
        parts = PyList_New(0);
        events = PyList_New(0);
    }
    for (; parts && events && i < self->count; i++) {
        rd_kafka_message_t *message = self->messages[i];
        if (!message->err && !add_message(self, parts, &found, message))
            break;
        if (!message->err)
            continue;
        event = event_tuple(message);
        if (!event || PyList_Append(events, event))
            break;
        Py_DECREF(event);
        rd.message_destroy(message);
    }
    PyObject *fetched = NULL;
    if (i == self->count && !PyErr_Occurred())
        fetched = Py_BuildValue("(OON)", parts, events, take_notices(client));
    keep_events(self, i);
    free(found.items);
    Py_XDECREF(parts);
    Py_XDECREF(events);
    while (self->kept_rows > MOST_KEPT_ROWS || (self->kept_bytes > MOST_KEPT_BYTES && self->oldest != self->newest))
        copy_columns(self->oldest);
    return fetched;
}

static PyObject *consumer_poll(PyObject *object, PyObject *arguments) {
    consumer_t *self = (consumer_t *)object;
    Py_ssize_t wanted;
    long long timeout_ms;
    if (!PyArg_ParseTuple(arguments, "nL:poll", &wanted, &timeout_ms))
        return NULL;
    if (wanted <= 0 || wanted > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "a poll is for 1 to %d messages, not %zd", INT_MAX, wanted);
    if (!self->client.serving) {
        self->wanted = wanted;
        if (self->room < self->wanted)
            self->messages = required(realloc(self->messages, wanted * sizeof *self->messages));
        self->room = self->room < self->wanted ? self->wanted : self->room;
    }
    return serve(&self->client, poll_slice, timeout_ms, take_fetched);
}

/* ---- 3. Rebalances ---- */

static int code_of(rd_kafka_error_t *error) {
    int code = error ? rd.error_code(error) : 0;
    if (error)
        rd.error_destroy(error);
    return code;
}

/* What librdkafka needs to go on. */
static void answer(rd_kafka_t *rk, int is_assignment, rd_kafka_partitions_t *partitions) {
    const char *protocol = rd.rebalance_protocol(rk);
    if (!protocol) /* another thread has closed the client meanwhile */
        return;
    if (strcmp(protocol, "COOPERATIVE"))
        rd.assign(rk, is_assignment ? partitions : NULL);
    else if (is_assignment)
        code_of(rd.incremental_assign(rk, partitions));
    else
        code_of(rd.incremental_unassign(rk, partitions));
}

static PyObject *partition_tuple(const void *from, size_t index) {
    const rd_kafka_topic_partition_t *partition = (const rd_kafka_topic_partition_t *)from + index;
    return Py_BuildValue("(siLi)", partition->topic, partition->partition, (long long)partition->offset,
                         partition->err);
}

static void on_rebalance(rd_kafka_t *rk, int code, rd_kafka_partitions_t *partitions, void *opaque) {
    consumer_t *self = opaque;
    int is_assignment = code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
    const char *kind = is_assignment ? "assign" : rd.assignment_lost(rk) ? "lost" : "revoke";
    PyGILState_STATE state = PyGILState_Ensure();
    self->answered = 0;
    PyObject *list = build_list(partition_tuple, partitions->elems, partitions->cnt);
    PyObject *result = list ? PyObject_CallFunction(self->on_rebalance, "sN", kind, list) : NULL;
    if (!result && !self->raised[0])
        PyErr_Fetch(&self->raised[0], &self->raised[1], &self->raised[2]);
    PyErr_Clear();
    Py_XDECREF(result);
    PyGILState_Release(state);
    if (!is_assignment || !self->answered)
        answer(rk, is_assignment, partitions);
}

/* ---- 4. Partitions with offsets ---- */

/* From tuples (topic, partition, offset). Returns NULL with an exception. */
static rd_kafka_partitions_t *as_partitions(PyObject *object) {
    PyObject *tuple = PySequence_Tuple(object);
    if (!tuple)
        return NULL;
    rd_kafka_partitions_t *list = rd.topic_partition_list_new(PyTuple_Size(tuple));
    for (Py_ssize_t i = 0; list && i < PyTuple_Size(tuple); i++) {
        const char *topic;
        int partition;
        long long offset;
        PyObject *item = PyTuple_GetItem(tuple, i);
        if (has_type("each partition", item, PyTuple_Check(item), "a tuple (topic, partition, offset)") &&
            PyArg_ParseTuple(item, "siL", &topic, &partition, &offset)) {
            rd.topic_partition_list_add(list, topic, partition)->offset = offset;
        } else {
            rd.topic_partition_list_destroy(list);
            list = NULL;
        }
    }
    Py_DECREF(tuple);
    return list;
}

/* `partitions`: those that were asked for, and then the answer. */
typedef int call_t(rd_kafka_t *rk, rd_kafka_partitions_t **partitions, int timeout_ms);

/* The arguments are partitions, and a time-out in milliseconds if the call has one. Returns the answer: tuples (topic,
 * partition, offset, code of an error). */
static PyObject *call(PyObject *object, PyObject *arguments, call_t *run) {
    consumer_t *self = (consumer_t *)object;
    PyObject *given, *answered = NULL;
    int timeout_ms = 0, code;
    if (!PyArg_ParseTuple(arguments, "O|i", &given, &timeout_ms))
        return NULL;
    rd_kafka_partitions_t *partitions = as_partitions(given);
    if (partitions && is_open(&self->client)) {
        begin_use(&self->client);
        Py_BEGIN_ALLOW_THREADS
        code = run(self->client.rk, &partitions, timeout_ms);
        Py_END_ALLOW_THREADS
        if (code)
            raise_refused(&self->client, code);
        else
            answered = build_list(partition_tuple, partitions->elems, partitions->cnt);
        end_use(&self->client);
    }
    if (partitions)
        rd.topic_partition_list_destroy(partitions);
    return answered;
}

static void on_committed(rd_kafka_t *rk, int code, rd_kafka_partitions_t *answer, void *opaque) {
    rd_kafka_partitions_t **partitions = opaque;
    (void)rk, (void)code;
    if (!answer)
        return;
    rd.topic_partition_list_destroy(*partitions);
    *partitions = rd.topic_partition_list_copy(answer);
}

static int get_assignment(rd_kafka_t *rk, rd_kafka_partitions_t **partitions) {
    rd.topic_partition_list_destroy(*partitions);
    *partitions = NULL;
    return rd.assignment(rk, partitions);
}

static int answered(rd_kafka_t *rk, int code) {
    ((consumer_t *)rd.opaque(rk))->answered |= !code;
    return code;
}

#define CALLS(F)                                                                                                       \
    F(subscribe, rd.subscribe(rk, *partitions))                                                                        \
    F(unsubscribe, rd.unsubscribe(rk))                                                                                 \
    F(assign, answered(rk, rd.assign(rk, *partitions)))                                                                \
    F(incremental_assign, answered(rk, code_of(rd.incremental_assign(rk, *partitions))))                               \
    F(incremental_unassign, answered(rk, code_of(rd.incremental_unassign(rk, *partitions))))                           \
    F(assignment, get_assignment(rk, partitions))                                                                      \
    F(pause, rd.pause_partitions(rk, *partitions))                                                                     \
    F(resume, rd.resume_partitions(rk, *partitions))                                                                   \
    F(seek, code_of(rd.seek_partitions(rk, *partitions, timeout_ms)))                                                  \
    F(position, rd.position(rk, *partitions))                                                                          \
    F(commit, rd.commit_queue(rk, *partitions, NULL, on_committed, partitions))                                        \
    F(committed, rd.committed(rk, *partitions, timeout_ms))                                                            \
    F(offsets_for_times, rd.offsets_for_times(rk, *partitions, timeout_ms))

#define DEFINE_CALL(name, expression)                                                                                  \
    static int run_##name(rd_kafka_t *rk, rd_kafka_partitions_t **partitions, int timeout_ms) {              \
        (void)rk, (void)partitions, (void)timeout_ms;                                                                  \
        return expression;                                                                                             \
    }                                                                                                                  \
    static PyObject *consumer_##name(PyObject *self, PyObject *arguments) { return call(self, arguments, run_##name); }
CALLS(DEFINE_CALL)

/* With time-out 0 from the last fetch. */
static PyObject *consumer_watermarks(PyObject *object, PyObject *arguments) {
    client_t *self = (client_t *)object;
    const char *topic;
    int partition, timeout_ms, code;
    int64_t low, high;
    if (!PyArg_ParseTuple(arguments, "sii:watermarks", &topic, &partition, &timeout_ms) || !is_open(self))
        return NULL;
    begin_use(self);
    Py_BEGIN_ALLOW_THREADS
    if (timeout_ms > 0)
        code = rd.query_watermark_offsets(self->rk, topic, partition, &low, &high, timeout_ms);
    else
        code = rd.get_watermark_offsets(self->rk, topic, partition, &low, &high);
    Py_END_ALLOW_THREADS
    if (code)
        raise_refused(self, code);
    end_use(self);
    return code ? NULL : Py_BuildValue("(LL)", (long long)low, (long long)high);
}

/* In the form that confluent-kafka's producer takes, which is of bytes as well. */
static PyObject *consumer_group_metadata(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    rd_kafka_consumer_group_metadata_t *metadata;
    PyObject *written = NULL;
    void *buffer;
    size_t size;
    (void)unused;
    if (!is_open(self))
        return NULL;
    begin_use(self);
    Py_BEGIN_ALLOW_THREADS
    metadata = rd.consumer_group_metadata(self->rk);
    Py_END_ALLOW_THREADS
    int code = RD_KAFKA_RESP_ERR__DESTROY; /* without metadata: another thread closes the client */
    if (metadata)
        code = code_of(rd.consumer_group_metadata_write(metadata, &buffer, &size));
    if (code)
        raise_refused(self, code);
    else {
        written = PyBytes_FromStringAndSize(buffer, size);
        rd.mem_free(NULL, buffer);
    }
    if (metadata)
        rd.consumer_group_metadata_destroy(metadata);
    end_use(self);
    return written;
}

/* ---- 5. The type ---- */

static void set_callbacks(rd_kafka_conf_t *conf) { rd.conf_set_rebalance_cb(conf, on_rebalance); }

static void release(client_t *client) {
    consumer_t *self = (consumer_t *)client;
    while (self->oldest)
        copy_columns(self->oldest);
    if (self->queue)
        rd.queue_destroy(self->queue);
    self->queue = NULL;
    Py_CLEAR(self->on_rebalance);
}

static PyObject *consumer_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    PyObject *options, *rebalance;
    if (names && PyDict_Size(names))
        return PyErr_Format(PyExc_TypeError, "Consumer takes no keyword arguments");
    if (!PyArg_ParseTuple(arguments, "O!O:Consumer", &PyDict_Type, &options, &rebalance))
        return NULL;
    consumer_t *self = (consumer_t *)new_client(type, options, RD_KAFKA_CONSUMER, set_callbacks, release);
    if (!self)
        return NULL;
    self->on_rebalance = Py_NewRef(rebalance);
    rd.poll_set_consumer(self->client.rk);
    self->queue = rd.queue_get_consumer(self->client.rk);
    if (self->queue)
        return (PyObject *)self;
    raise_error(RD_KAFKA_RESP_ERR__INVALID_ARG, "group.id must not be empty", 0);
    Py_DECREF(self);
    return NULL;
}

/* Leaves the group, which calls `on_rebalance`, and then destroys the client. Calls of other threads, but for a poll,
 * end before: librdkafka does not answer what comes while it leaves, such as a request for the assignment. */
static PyObject *consumer_close(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    (void)unused;
    if (self->closed || self->closing)
        Py_RETURN_NONE;
    self->closing = PyThread_get_thread_ident();
    for (int waited_ms = 0; self->users > !!self->serving && waited_ms < LONGEST_CALL_MS; waited_ms++) {
        Py_BEGIN_ALLOW_THREADS
        usleep(1000);
        Py_END_ALLOW_THREADS
    }
    begin_use(self);
    Py_BEGIN_ALLOW_THREADS
    rd.consumer_close(self->rk);
    Py_END_ALLOW_THREADS
    self->closed = 1;
    end_use(self);
    return restore((consumer_t *)self) ? Py_NewRef(Py_None) : NULL;
}

static void consumer_dealloc(PyObject *object) {
    consumer_t *self = (consumer_t *)object;
    destroy_client(&self->client);
    while (self->oldest) /* in the child of a fork */
        release_messages(self->oldest);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(self->raised[i]);
    Py_XDECREF(self->on_rebalance);
    free(self->messages);
    free_client(&self->client);
}

#define CALL_METHOD(name, expression) {#name, consumer_##name, METH_VARARGS, NULL},

static PyMethodDef consumer_methods[] = {
    {"poll", consumer_poll, METH_VARARGS, "poll(most, timeout_ms) -> (parts, events, notices), or None"},
    CALLS(CALL_METHOD)
    {"watermarks", consumer_watermarks, METH_VARARGS, "watermarks(topic, partition, timeout_ms) -> (low, high)"},
    {"group_metadata", consumer_group_metadata, METH_NOARGS, "The metadata of the group, for a transaction."},
    {"close", consumer_close, METH_NOARGS, "Leave the group and destroy the client."},
    {"abandon", close_client, METH_NOARGS, "Destroy the client, or have the calls that use it do so."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot consumer_slots[] = {
    {Py_tp_new, consumer_new},
    {Py_tp_dealloc, consumer_dealloc},
    {Py_tp_methods, consumer_methods},
    {Py_tp_doc, "Consumer(options, on_rebalance): a consuming client; options are librdkafka's, from str to str."},
    {0, NULL},
};

PyType_Spec consumer_spec = {
    .name = "monasca_common.kafka.transport.native._librdkafka.Consumer",
    .basicsize = sizeof(consumer_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = consumer_slots,
};

static PyGetSetDef rows_columns[] = {
    {"offsets", rows_get, NULL, NULL, (void *)0}, {"keys", rows_get, NULL, NULL, (void *)1},
    {"values", rows_get, NULL, NULL, (void *)2},  {"timestamps", rows_get, NULL, NULL, (void *)3},
    {"headers", rows_get, NULL, NULL, (void *)4}, {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_getset, rows_columns},
    {Py_sq_length, rows_length},
    {0, NULL},
};

PyType_Spec rows_spec = {
    .name = "monasca_common.kafka.transport.native._librdkafka.Rows",
    .basicsize = sizeof(rows_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = rows_slots,
};
