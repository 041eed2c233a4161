/* SPDX-License-Identifier: Apache-2.0 */
/* A consuming client that returns the messages of a poll as columns, partition by partition.
 *
 * 1. Columns: each column is built on first use, from messages that are kept until all columns are built.
 * 2. Polling: waits for the first message, and takes all other available ones.
 * 3. Rebalances: librdkafka's callback runs within `poll` and `close`, and calls Python.
 * 4. Partitions with offsets, and the calls that take and return them.
 * 5. The type. */

#include "client.h"

#include <unistd.h>

#define MOST_POLLED 100000   /* maximum messages of a poll, independent of its argument */
#define LONGEST_CALL_MS 5000 /* maximum wait of a close, because a commit may never end */

enum { COLUMNS = 5 };

/* Messages of one partition. They keep the client and the memory of their fetch responses alive. */
typedef struct {
    PyObject_HEAD
    client_t *client; /* NULL: all columns are built, and the messages are released */
    array_t messages;
    PyObject *columns[COLUMNS];
} rows_t;

typedef struct {
    client_t client;
    PyObject *on_rebalance;
    PyObject *raised[3];           /* the exception of `on_rebalance`, for PyErr_Restore */
    rd_kafka_message_t **messages; /* of this poll; room for MOST_POLLED */
    size_t count, wanted;
} consumer_t;

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
    const char *name;
    bytes_t value;
    if (rd.header_get_all(from, index, &name, (const void **)&value.start, &value.size))
        return Py_NewRef(Py_None);
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

/* Also called in a forked child, where no message may be destroyed. */
static void release_messages(rows_t *self) {
    client_t *client = self->client;
    size_t count = client && client->pid == getpid() ? self->messages.count : 0;
    self->client = NULL;
    for (size_t i = 0; i < count; i++)
        rd.message_destroy((rd_kafka_message_t *)message_at(self->messages.items, i));
    Py_XDECREF((PyObject *)client);
}

typedef struct {
    const void *messages;
    const char *name;
} named_t;

static PyObject *named_header_at(const void *from, size_t index) {
    const named_t *named = from;
    rd_kafka_headers_t *headers;
    bytes_t value = {0};
    if (!rd.message_headers(message_at(named->messages, index), &headers))
        rd.header_get_last(headers, named->name, (const void **)&value.start, &value.size);
    return bytes_or_none(value);
}

/* No garbage collection runs while a column is built, because a finalizer could release the messages. */
static PyObject *build_column(build_item_t *build_item, const void *from, size_t count) {
    int collects = PyGC_Disable();
    PyObject *column = build_list(build_item, from, count);
    if (collects)
        PyGC_Enable();
    return column;
}

static PyObject *rows_get(PyObject *object, void *column) {
    rows_t *self = (rows_t *)object;
    PyObject **built = self->columns + (intptr_t)column;
    if (!*built) {
        int left = 0;
        *built = build_column(builders[(intptr_t)column], self->messages.items, self->messages.count);
        for (int i = 0; i < COLUMNS; i++)
            left += !self->columns[i];
        if (!left)
            release_messages(self);
    }
    return Py_XNewRef(*built);
}

static PyObject *rows_header(PyObject *object, PyObject *name) {
    rows_t *self = (rows_t *)object;
    named_t named = {self->messages.items, as_text("the name of a header", name)};
    if (!named.name)
        return NULL;
    return self->client ? build_column(named_header_at, &named, self->messages.count) : Py_NewRef(Py_None);
}

static Py_ssize_t rows_length(PyObject *self) { return ((rows_t *)self)->messages.count; }

static void rows_dealloc(PyObject *object) {
    rows_t *self = (rows_t *)object;
    release_messages(self);
    for (int i = 0; i < COLUMNS; i++)
        Py_XDECREF(self->columns[i]);
    free(self->messages.items);
    free_object(object);
}

/* ---- 2. Polling ---- */

static void take_queued(consumer_t *self) {
    size_t left = self->wanted - self->count;
    ssize_t taken = left ? rd.consume_batch_queue(self->client.queue, 0, self->messages + self->count, left) : 0;
    self->count += taken > 0 ? taken : 0;
}

static void poll(client_t *client, int timeout_ms) {
    consumer_t *self = (consumer_t *)client;
    take_queued(self);
    if (!self->count && !self->raised[0]) {
        *self->messages = rd.consumer_poll(client->rk, timeout_ms);
        self->count = *self->messages != NULL;
        if (self->count)
            take_queued(self);
    }
}

/* Adds the message to the tuple (topic, partition, rows) of its partition. If it returns 0 with an exception, it does
 * not own the message. */
static int add_message(consumer_t *self, PyObject *parts, rd_kafka_message_t *message) {
    rows_t *rows = NULL;
    for (Py_ssize_t i = PyList_Size(parts); i > 0 && !rows; i--) { /* usually the last tuple */
        rows_t *other = (rows_t *)PyTuple_GetItem(PyList_GetItem(parts, i - 1), 2);
        const rd_kafka_message_t *first = message_at(other->messages.items, 0);
        if (first->rkt == message->rkt && first->partition == message->partition)
            rows = other;
    }
    if (!rows) {
        rows = (rows_t *)PyType_GenericNew(rows_type, NULL, NULL);
        PyObject *part = Py_BuildValue("(siN)", rd.topic_name(message->rkt), message->partition, rows);
        int added = part && !PyList_Append(parts, part);
        Py_XDECREF(part);
        if (!added)
            return 0;
        rows->client = (client_t *)Py_NewRef((PyObject *)self);
    }
    *(rd_kafka_message_t **)append(&rows->messages, sizeof(rd_kafka_message_t *)) = message;
    return 1;
}

/* Raises the exception of `on_rebalance`. Returns 0 with an exception. */
static int restore(consumer_t *self) {
    if (!self->raised[0])
        return 1;
    PyErr_Restore(self->raised[0], self->raised[1], self->raised[2]);
    memset(self->raised, 0, sizeof self->raised);
    return 0;
}

/* Returns (parts, notices), or None. After an exception, the next poll returns the errors of partitions, because
 * librdkafka reports some only once. The caller reads messages, and ends of logs, again from its position. */
static PyObject *take_fetched(client_t *client) {
    consumer_t *self = (consumer_t *)client;
    if (restore(self) && !self->count && !client->notices.count)
        Py_RETURN_NONE;
    PyObject *parts = PyErr_Occurred() ? NULL : PyList_New(0);
    for (size_t i = 0; i < self->count; i++) {
        rd_kafka_message_t *message = self->messages[i];
        if (message->err && (parts || message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF))
            add_client_notice(client, PARTITION_EVENT, message->err, rd.message_errstr(message), message);
        if (!message->err && parts && add_message(self, parts, message))
            continue;
        if (!message->err)
            Py_CLEAR(parts);
        rd.message_destroy(message);
    }
    self->count = 0;
    return parts ? Py_BuildValue("(NN)", parts, take_notices(client)) : NULL;
}

static PyObject *consumer_poll(PyObject *object, PyObject *arguments) {
    consumer_t *self = (consumer_t *)object;
    Py_ssize_t wanted;
    long long timeout_ms;
    if (!PyArg_ParseTuple(arguments, "nL:poll", &wanted, &timeout_ms))
        return NULL;
    if (wanted <= 0)
        return PyErr_Format(PyExc_ValueError, "poll at least 1 message, not %zd", wanted);
    if (!self->client.serving) /* otherwise `serve` refuses the call */
        self->wanted = wanted < MOST_POLLED ? wanted : MOST_POLLED;
    return serve(&self->client, poll, timeout_ms, take_fetched);
}

/* ---- 3. Rebalances ---- */

static int code_of(rd_kafka_error_t *error) {
    int code = error ? rd.error_code(error) : 0;
    if (error)
        rd.error_destroy(error);
    return code;
}

/* librdkafka needs one of these calls to continue. */
static void answer(rd_kafka_t *rk, int is_assignment, rd_kafka_partitions_t *partitions) {
    const char *protocol = rd.rebalance_protocol(rk);
    if (!protocol) /* another thread has closed the client */
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
    int is_answered, is_assignment = code == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
    const char *kind = is_assignment ? "assign" : rd.assignment_lost(rk) ? "lost" : "revoke";
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *list = build_list(partition_tuple, partitions->elems, partitions->cnt);
    PyObject *result = list ? PyObject_CallFunction(self->on_rebalance, "sN", kind, list) : NULL;
    is_answered = result == Py_True;
    if (!result && !self->raised[0])
        PyErr_Fetch(&self->raised[0], &self->raised[1], &self->raised[2]);
    PyErr_Clear();
    Py_XDECREF(result);
    PyGILState_Release(state);
    if (!is_answered)
        answer(rk, is_assignment, partitions);
}

/* ---- 4. Partitions with offsets ---- */

/* A converter for PyArg_ParseTuple: builds a list of partitions from tuples (topic, partition, offset). The caller owns
 * the list, even if a tuple is invalid. */
static int as_partitions(PyObject *object, void *to) {
    PyObject *tuple = PySequence_Tuple(object);
    Py_ssize_t read = 0, count = tuple ? PyTuple_Size(tuple) : 0;
    rd_kafka_partitions_t *list = *(rd_kafka_partitions_t **)to = rd.topic_partition_list_new(count);
    for (; read < count; read++) {
        const char *topic;
        int partition;
        long long offset;
        PyObject *item = PyTuple_GetItem(tuple, read);
        if (!has_type("each partition", item, PyTuple_Check(item), "a tuple (topic, partition, offset)") ||
            !PyArg_ParseTuple(item, "siL", &topic, &partition, &offset))
            break;
        rd.topic_partition_list_add(list, topic, partition)->offset = offset;
    }
    Py_XDECREF(tuple);
    return tuple && read == count;
}

/* The arguments of a librdkafka call, and then its result: partitions or bytes. */
typedef struct {
    rd_kafka_partitions_t *partitions;
    bytes_t bytes;
    int timeout_ms;
} question_t;

/* The arguments are partitions, and a time-out in milliseconds if the call has one. Returns the result: tuples (topic,
 * partition, offset, code of an error), or bytes. */
static PyObject *ask(client_t *self, PyObject *arguments, int run(rd_kafka_t *, void *)) {
    PyObject *answer = NULL;
    question_t asked = {0};
    int given = PyArg_ParseTuple(arguments, "O&|i", as_partitions, &asked.partitions, &asked.timeout_ms);
    if (given && call(self, run, &asked)) {
        answer = asked.bytes.start ? bytes_or_none(asked.bytes)
                                   : build_list(partition_tuple, asked.partitions->elems, asked.partitions->cnt);
        rd.mem_free(NULL, (void *)asked.bytes.start);
    }
    if (asked.partitions)
        rd.topic_partition_list_destroy(asked.partitions);
    return answer;
}

static void on_committed(rd_kafka_t *rk, int code, rd_kafka_partitions_t *answer, void *opaque) {
    question_t *asked = opaque;
    if (!answer)
        return;
    rd.topic_partition_list_destroy(asked->partitions);
    asked->partitions = rd.topic_partition_list_copy(answer);
}

static int get_assignment(rd_kafka_t *rk, question_t *asked) {
    rd.topic_partition_list_destroy(asked->partitions);
    asked->partitions = NULL;
    return rd.assignment(rk, &asked->partitions);
}

/* Gets the end of each log as of its last fetch, which is negative if nothing was fetched yet. */
static int get_fetched_ends(rd_kafka_t *rk, rd_kafka_partitions_t *partitions) {
    for (int i = 0; i < partitions->cnt; i++) {
        int64_t first;
        rd_kafka_topic_partition_t *of = partitions->elems + i;
        of->err = rd.get_watermark_offsets(rk, of->topic, of->partition, &first, &of->offset);
    }
    return 0;
}

/* Gets bytes that confluent-kafka's producer also accepts. */
static int get_group_metadata(rd_kafka_t *rk, question_t *asked) {
    rd_kafka_consumer_group_metadata_t *metadata = rd.consumer_group_metadata(rk);
    if (!metadata) /* another thread closes the client */
        return RD_KAFKA_RESP_ERR__DESTROY;
    int code = code_of(rd.consumer_group_metadata_write(metadata, (void **)&asked->bytes.start, &asked->bytes.size));
    rd.consumer_group_metadata_destroy(metadata);
    return code;
}

#define CALLS(F)                                                                                                       \
    F(subscribe, rd.subscribe(rk, asked->partitions))                                                                  \
    F(unsubscribe, rd.unsubscribe(rk))                                                                                 \
    F(assign, rd.assign(rk, asked->partitions))                                                                        \
    F(incremental_assign, code_of(rd.incremental_assign(rk, asked->partitions)))                                       \
    F(incremental_unassign, code_of(rd.incremental_unassign(rk, asked->partitions)))                                   \
    F(assignment, get_assignment(rk, asked))                                                                           \
    F(pause, rd.pause_partitions(rk, asked->partitions))                                                               \
    F(resume, rd.resume_partitions(rk, asked->partitions))                                                             \
    F(seek, code_of(rd.seek_partitions(rk, asked->partitions, asked->timeout_ms)))                                     \
    F(position, rd.position(rk, asked->partitions))                                                                    \
    F(commit, rd.commit_queue(rk, asked->partitions, NULL, on_committed, asked))                                       \
    F(committed, rd.committed(rk, asked->partitions, asked->timeout_ms))                                               \
    F(offsets_for_times, rd.offsets_for_times(rk, asked->partitions, asked->timeout_ms))                               \
    F(fetched_ends, get_fetched_ends(rk, asked->partitions))                                                           \
    F(group_metadata, get_group_metadata(rk, asked))

#define DEFINE_CALL(name, expression)                                                                                  \
    static int run_##name(rd_kafka_t *rk, void *argument) {                                                            \
        question_t *asked = argument;                                                                                  \
        (void)asked;                                                                                                   \
        return expression;                                                                                             \
    }                                                                                                                  \
    static PyObject *consumer_##name(PyObject *self, PyObject *arguments) {                                            \
        return ask((client_t *)self, arguments, run_##name);                                                           \
    }
CALLS(DEFINE_CALL)

/* ---- 5. The type ---- */

static void set_callbacks(rd_kafka_conf_t *conf) { rd.conf_set_rebalance_cb(conf, on_rebalance); }

static PyObject *consumer_new(PyTypeObject *type, PyObject *arguments, PyObject *unused) {
    PyObject *options, *rebalance;
    if (!PyArg_ParseTuple(arguments, "O!O:Consumer", &PyDict_Type, &options, &rebalance))
        return NULL;
    consumer_t *self = (consumer_t *)new_client(type, options, RD_KAFKA_CONSUMER, set_callbacks);
    if (!self)
        return NULL;
    self->on_rebalance = Py_NewRef(rebalance);
    self->messages = required(malloc(MOST_POLLED * sizeof *self->messages)); /* unused pages use no memory */
    rd.poll_set_consumer(self->client.rk);
    self->client.queue = rd.queue_get_consumer(self->client.rk);
    if (self->client.queue)
        return (PyObject *)self;
    raise_error(RD_KAFKA_RESP_ERR__INVALID_ARG, "group.id must not be empty", 0);
    Py_DECREF(self);
    return NULL;
}

/* Leaves the group, which calls `on_rebalance`. First waits for the calls of other threads, except a poll, because
 * while it leaves, librdkafka serves no requests, such as one for the assignment. */
static PyObject *consumer_close(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    if (self->closed || self->closing)
        Py_RETURN_NONE;
    self->closing = PyThread_get_thread_ident();
    for (int waited_ms = 0; self->calls && waited_ms < LONGEST_CALL_MS; waited_ms++) {
        Py_BEGIN_ALLOW_THREADS
        usleep(1000);
        Py_END_ALLOW_THREADS
    }
    if (self->closed) /* another thread has abandoned it */
        Py_RETURN_NONE;
    Py_BEGIN_ALLOW_THREADS
    rd.consumer_close(self->rk);
    Py_END_ALLOW_THREADS
    self->closed = 1;
    return restore((consumer_t *)self) ? Py_NewRef(Py_None) : NULL;
}

static void consumer_dealloc(PyObject *object) {
    consumer_t *self = (consumer_t *)object;
    destroy_client(&self->client);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(self->raised[i]);
    Py_XDECREF(self->on_rebalance);
    free(self->messages);
    free_client(&self->client);
}

#define CALL_METHOD(name, expression) {#name, consumer_##name, METH_VARARGS, NULL},

/* _librdkafka.pyi describes them. */
static PyMethodDef consumer_methods[] = {
    {"poll", consumer_poll, METH_VARARGS, NULL},
    CALLS(CALL_METHOD)
    {"add_brokers", add_brokers, METH_O, NULL},
    {"close", consumer_close, METH_NOARGS, NULL},
    {"abandon", close_client, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot consumer_slots[] = {
    {Py_tp_new, consumer_new},
    {Py_tp_dealloc, consumer_dealloc},
    {Py_tp_methods, consumer_methods},
    {0, NULL},
};

PyType_Spec consumer_spec = {MODULE ".Consumer", sizeof(consumer_t), 0, Py_TPFLAGS_DEFAULT, consumer_slots};

static PyGetSetDef rows_columns[] = {
    {"offsets", rows_get, NULL, NULL, (void *)0}, {"keys", rows_get, NULL, NULL, (void *)1},
    {"values", rows_get, NULL, NULL, (void *)2},  {"timestamps", rows_get, NULL, NULL, (void *)3},
    {"headers", rows_get, NULL, NULL, (void *)4}, {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef rows_methods[] = {{"header", rows_header, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static PyType_Slot rows_slots[] = {
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods},
    {Py_tp_getset, rows_columns},
    {Py_sq_length, rows_length},
    {0, NULL},
};

PyType_Spec rows_spec = {MODULE ".Rows", sizeof(rows_t), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         rows_slots};
