/* SPDX-License-Identifier: Apache-2.0 */
/* A producing client that identifies messages by sequence numbers and returns their outcomes in columns.
 *
 * 1. Delivery reports: librdkafka's callback runs in the one thread that serves it, and collects them in arrays.
 * 2. The arrays as Python objects: `poll` and `flush` return them all, or raise and keep them for the next call.
 * 3. Producing: with the GIL for few messages, without it for many.
 * 4. Serving, and the type. */

#include "client.h"

#include <stdatomic.h>

#if UINTPTR_MAX < INT64_MAX
#error "a message's sequence number is its opaque pointer, which needs 64 bits"
#endif

#define ID_HEADER "message-id"
#define ID_DIGITS 12
#define MOST_PREFIX_BYTES 64
#define ANY_PARTITION -1
/* Below this size, a call takes less time than reacquiring the GIL can take. */
#define GIL_RELEASED_FROM_MESSAGES 64
#define GIL_RELEASED_FROM_BYTES 65536
/* Messages that one thread allocates and another frees make both threads wait for malloc's lock. */
#define SENDS_BETWEEN_POLLS 100

/* Python reads the array of them: see `Outcomes` in _librdkafka.pyi. */
typedef struct {
    int64_t sequence, offset;
    int64_t size; /* bytes of value and key; `take_outcomes` makes them cumulative */
    int64_t partition;
} delivered_t;

/* Python adds those of the same topic and bucket. */
typedef struct {
    char *topic;
    int64_t bucket_ms; /* start of the bucket */
    int64_t messages;
} count_t;

/* The memory of a `NativeReservation`. */
typedef struct {
    int64_t next, end, left, largest, overhead, prefix_size;
    char prefix[MOST_PREFIX_BYTES];
} reservation_t;

typedef struct {
    client_t client;
    rd_kafka_topic_t *topic; /* the topic that `send` used last, or NULL */
    Py_buffer room;          /* of the reservation that `send` used last */
    int64_t queued;          /* queued, and not returned as an outcome */
    _Atomic int64_t bucket_ms;
    array_t delivered, undelivered, counts; /* written by callbacks; the second one has notices */
} producer_t;

/* ---- 1. Delivery reports ---- */

static void count_delivered(producer_t *self, const rd_kafka_message_t *message, int64_t length_ms) {
    int kind;
    int64_t sent_ms = rd.message_timestamp(message, &kind), bucket_ms = sent_ms - sent_ms % length_ms;
    const char *topic = rd.topic_name(message->rkt);
    count_t *count = self->counts.count ? (count_t *)self->counts.items + self->counts.count - 1 : NULL;
    if (!count || count->bucket_ms != bucket_ms || strcmp(count->topic, topic)) {
        count = append(&self->counts, sizeof(count_t));
        count->topic = required(strdup(topic));
        count->bucket_ms = bucket_ms;
    }
    count->messages++;
}

static void on_delivery_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    producer_t *self = opaque;
    int64_t bucket_ms = self->bucket_ms;
    if (message->err) {
        const char *text = rd.message_produce_errstr(message);
        add_notice(&self->undelivered, UNDELIVERED, message->err, text ? text : rd.err2str(message->err), message);
        return;
    }
    if (bucket_ms)
        count_delivered(self, message, bucket_ms);
    *(delivered_t *)append(&self->delivered, sizeof(delivered_t)) =
        (delivered_t){(intptr_t)message->opaque, message->offset, message->len + message->key_len, message->partition};
}

static void clear_outcomes(producer_t *self) {
    for (size_t i = 0; i < self->counts.count; i++)
        free(((count_t *)self->counts.items)[i].topic);
    self->delivered.count = self->counts.count = 0; /* the arrays keep their memory for the next reports */
    free_notices(&self->undelivered);
}

/* ---- 2. The arrays as Python objects ---- */

/* Returns the end of the ascending run from `start`. */
static size_t run_end(const delivered_t *items, size_t start, size_t count) {
    size_t end = start + 1;
    while (end < count && items[end - 1].sequence <= items[end].sequence)
        end++;
    return end < count ? end : count;
}

/* Sorts by sequence: reports come batch by batch of a partition, each ascending. Merges the runs two by two. */
static void sort_delivered(array_t *array) {
    size_t count = array->count;
    delivered_t *items = (delivered_t *)array->items, *to = NULL;
    while (run_end(items, 0, count) < count) {
        if (!to)
            to = required(malloc(array->room * sizeof(delivered_t)));
        for (size_t start = 0, end; start < count; start = end) {
            size_t middle = run_end(items, start, count);
            end = run_end(items, middle, count);
            for (size_t left = start, right = middle, i = start; i < end; i++) {
                int is_left = right == end || (left < middle && items[left].sequence <= items[right].sequence);
                to[i] = items[is_left ? left++ : right++];
            }
        }
        array->items = (char *)to;
        to = items;
        items = (delivered_t *)array->items;
    }
    free(to);
}

/* (topic, start of the bucket, messages) */
static PyObject *count_tuple(const void *from, size_t index) {
    const count_t *count = (const count_t *)from + index;
    return Py_BuildValue("(sLL)", count->topic, (long long)count->bucket_ms, (long long)count->messages);
}

/* Returns the collected outcomes, or None; clears the arrays only on success. */
static PyObject *take_outcomes(client_t *client, int unused) {
    producer_t *self = (producer_t *)client;
    size_t count = self->delivered.count + self->undelivered.count;
    if (!count && !client->notices.count)
        Py_RETURN_NONE;
    sort_delivered(&self->delivered);
    PyObject *columns = PyBytes_FromStringAndSize(self->delivered.items, self->delivered.count * sizeof(delivered_t));
    delivered_t *delivered = columns ? (delivered_t *)PyBytes_AsString(columns) : NULL;
    for (size_t i = 1; columns && i < self->delivered.count; i++)
        delivered[i].size += delivered[i - 1].size;
    PyObject *outcomes = Py_BuildValue("(NNNN)", columns,
                                       build_list(count_tuple, self->counts.items, self->counts.count),
                                       list_notices(&self->undelivered), take_notices(client));
    if (outcomes) {
        self->queued -= count;
        clear_outcomes(self);
    }
    return outcomes;
}

/* ---- 3. Producing ---- */

/* Converters for PyArg_ParseTuple: they return 0 with an exception. */

static int as_bytes(PyObject *object, void *to) {
    char *start;
    Py_ssize_t size;
    if (!has_type("a value, key or prefix", object, PyBytes_Check(object), "bytes") ||
        PyBytes_AsStringAndSize(object, &start, &size))
        return 0;
    *(bytes_t *)to = (bytes_t){start, size};
    return 1;
}

static int as_optional_bytes(PyObject *object, void *to) {
    *(bytes_t *)to = (bytes_t){NULL, 0};
    return object == Py_None || as_bytes(object, to);
}

static int as_prefix(PyObject *object, void *to) {
    if (!as_optional_bytes(object, to))
        return 0;
    if (((bytes_t *)to)->size <= MOST_PREFIX_BYTES)
        return 1;
    PyErr_Format(PyExc_ValueError, "id_prefix must have at most %d bytes", MOST_PREFIX_BYTES);
    return 0;
}

/* The result is NULL if there are no pairs; the caller owns the headers. */
static int as_headers(PyObject *object, void *to) {
    rd_kafka_headers_t **headers = to;
    PyObject *pairs = PySequence_Tuple(object);
    Py_ssize_t read = 0, count = pairs ? PyTuple_Size(pairs) : 0;
    *headers = count ? rd.headers_new(count) : NULL;
    for (; read < count; read++) {
        const char *name;
        bytes_t value;
        PyObject *pair = PyTuple_GetItem(pairs, read);
        if (!has_type("each header", pair, PyTuple_Check(pair), "a tuple (name, value)") ||
            !PyArg_ParseTuple(pair, "sO&;each header must be a tuple (str, bytes or None)", &name, as_optional_bytes,
                              &value))
            break;
        rd.header_add(*headers, name, -1, value.start, value.size);
    }
    if (read < count) {
        rd.headers_destroy(*headers);
        *headers = NULL;
    }
    Py_XDECREF(pairs);
    return pairs && read == count;
}

/* Selects the topic to produce to. Its handle is kept until another is selected, which saves the search by name.
 * The last check of a call: Python code that runs after it, such as a finalizer, may select another topic or close the
 * client. All code that may run Python code or allocate an object that is garbage-collected is before it. */
static int select_topic(producer_t *self, PyObject *object) {
    const char *name = is_open(&self->client) ? as_text("topic", object) : NULL;
    if (!name)
        return 0;
    if (self->topic && !strcmp(rd.topic_name(self->topic), name))
        return 1;
    rd_kafka_topic_t *topic = rd.topic_new(self->client.rk, name, NULL);
    if (!topic) {
        raise_refused(&self->client, rd.last_error());
        return 0;
    }
    if (self->topic)
        rd.topic_destroy(self->topic);
    self->topic = topic;
    return 1;
}

/* Writes the digits of the sequence as "%012x" does, and returns their number. */
static size_t write_digits(char *to, uint64_t sequence) {
    size_t count = ID_DIGITS;
    while (count < 16 && sequence >> 4 * count)
        count++;
    for (size_t i = count; i > 0; sequence >>= 4)
        to[--i] = "0123456789abcdef"[sequence & 15];
    return count;
}

typedef struct {
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic;
    const bytes_t *values;
    Py_ssize_t count, taken;
    size_t bytes; /* of all values */
    bytes_t key, prefix;
    long long first; /* sequence */
    int partition;
    long long timestamp_ms;
    rd_kafka_headers_t *headers; /* of a single message without a prefix */
    bytes_t id;                  /* of the last message; NULL without a prefix */
    char digits[MOST_PREFIX_BYTES + 16];
    int error; /* the reason why no more messages were accepted */
} bulk_t;

static int queue_message(bulk_t *bulk, bytes_t value, int64_t sequence) {
#define MESSAGE                                                                                                        \
    bulk->rk, RD_KAFKA_VTYPE_RKT, bulk->topic, RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY, RD_KAFKA_VTYPE_VALUE,     \
        value.start, value.size, RD_KAFKA_VTYPE_KEY, bulk->key.start, bulk->key.size, RD_KAFKA_VTYPE_OPAQUE,           \
        (void *)(intptr_t)sequence, RD_KAFKA_VTYPE_PARTITION, bulk->partition, RD_KAFKA_VTYPE_TIMESTAMP,               \
        (int64_t)bulk->timestamp_ms
    if (bulk->prefix.start) {
        bulk->id.start = bulk->digits;
        bulk->id.size = bulk->prefix.size + write_digits(bulk->digits + bulk->prefix.size, sequence);
        return rd.producev(MESSAGE, RD_KAFKA_VTYPE_HEADER, ID_HEADER, bulk->id.start, (ssize_t)bulk->id.size,
                           RD_KAFKA_VTYPE_END);
    }
    return rd.producev(MESSAGE, bulk->headers ? RD_KAFKA_VTYPE_HEADERS : RD_KAFKA_VTYPE_END, bulk->headers,
                       RD_KAFKA_VTYPE_END);
}

static void queue_bulk(bulk_t *bulk) {
    if (bulk->prefix.start)
        memcpy(bulk->digits, bulk->prefix.start, bulk->prefix.size);
    while (!bulk->error && bulk->taken < bulk->count) {
        bulk->error = queue_message(bulk, bulk->values[bulk->taken], bulk->first + bulk->taken);
        bulk->taken += !bulk->error;
    }
}

static void queue_without_gil(producer_t *self, bulk_t *bulk) {
    /* A separate handle, because another thread may select another topic. */
    bulk->topic = rd.topic_new(bulk->rk, rd.topic_name(bulk->topic), NULL);
    begin_use(&self->client);
    Py_BEGIN_ALLOW_THREADS
    queue_bulk(bulk);
    rd.topic_destroy(bulk->topic);
    Py_END_ALLOW_THREADS
    end_use(&self->client);
}

/* Returns 0 with an exception if the topic is refused; `bulk` has the reason why not all values were accepted. */
static int queue_values(producer_t *self, PyObject *topic, bulk_t *bulk) {
    if (!select_topic(self, topic))
        return 0;
    bulk->rk = self->client.rk;
    bulk->topic = self->topic;
    self->queued += bulk->count; /* before another thread sees outcomes */
    if (bulk->count < GIL_RELEASED_FROM_MESSAGES && bulk->bytes < GIL_RELEASED_FROM_BYTES)
        queue_bulk(bulk);
    else
        queue_without_gil(self, bulk);
    self->queued -= bulk->count - bulk->taken;
    return 1;
}

/* `given`: a list of values, or one value. Raises the reason if the first message is not accepted. */
static PyObject *producer_produce(PyObject *object, PyObject *arguments) {
    bytes_t value;
    bulk_t bulk = {.partition = ANY_PARTITION, .values = &value, .count = 1};
    PyObject *topic, *given, *held = NULL;
    int read = PyArg_ParseTuple(arguments, "OOO&LO&|iLO&:produce", &topic, &given, as_optional_bytes, &bulk.key,
                                &bulk.first, as_prefix, &bulk.prefix, &bulk.partition, &bulk.timestamp_ms, as_headers,
                                &bulk.headers);
    if (read && PyList_Check(given) && (held = PyList_AsTuple(given))) { /* another thread can change the list */
        bulk.count = PyTuple_Size(held);
        bytes_t *values = required(malloc((bulk.count + 1) * sizeof(bytes_t)));
        bulk.values = values;
        for (Py_ssize_t i = 0; i < bulk.count && read; i++) {
            read = as_optional_bytes(PyTuple_GetItem(held, i), &values[i]);
            bulk.bytes += values[i].size;
        }
    } else if (read && (read = as_optional_bytes(given, &value)))
        bulk.bytes = value.size;
    if (bulk.headers && (held || bulk.prefix.start)) /* the message will own them */
        PyErr_SetString(PyExc_ValueError, "headers need one value, not a list, and no id_prefix");
    else if (read && queue_values((producer_t *)object, topic, &bulk) && bulk.error && !bulk.taken)
        raise_refused((client_t *)object, bulk.error);
    if (bulk.headers && !bulk.taken)
        rd.headers_destroy(bulk.headers);
    if (held)
        free((void *)bulk.values);
    Py_XDECREF(held);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(bulk.taken);
}

/* Holds the GIL from the check of the reservation until the message is queued and counted, so that no other thread and
 * no signal handler interrupts it. A message that is large, or that librdkafka refuses, is not accepted. Collects
 * delivery reports from time to time, unless another thread does, because that frees the delivered messages. */
static PyObject *producer_send(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    producer_t *self = (producer_t *)object;
    bytes_t value;
    bulk_t bulk = {.partition = ANY_PARTITION, .values = &value, .count = 1};
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "send takes 4 arguments, not %zd", count);
    if (self->room.obj != arguments[3]) {
        Py_buffer room;
        if (PyObject_GetBuffer(arguments[3], &room, PyBUF_WRITABLE))
            return NULL;
        PyBuffer_Release(&self->room);
        self->room = room;
    }
    if (!as_bytes(arguments[1], &value) || !as_optional_bytes(arguments[2], &bulk.key))
        return NULL;
    reservation_t *from = self->room.buf;
    int64_t size = value.size + bulk.key.size;
    if (self->room.len == sizeof *from && from->next < from->end && size <= from->left - from->overhead &&
        size <= from->largest - from->overhead && value.size < GIL_RELEASED_FROM_BYTES &&
        (uint64_t)from->prefix_size <= MOST_PREFIX_BYTES) {
        bulk.first = from->next;
        bulk.prefix = (bytes_t){from->prefix_size ? from->prefix : NULL, from->prefix_size};
        if (!queue_values(self, arguments[0], &bulk))
            PyErr_Clear(); /* `produce` will raise it */
        from->next += bulk.taken;
        from->left -= bulk.taken * (size + from->overhead);
    }
    if (!bulk.taken)
        Py_RETURN_NONE;
    if (bulk.first % SENDS_BETWEEN_POLLS == 0 && !self->client.serving)
        rd.poll(self->client.rk, 0);
    return PyBytes_FromStringAndSize(bulk.id.start, bulk.id.size);
}

/* ---- 4. Serving, and the type ---- */

static int has_outcomes(const producer_t *self) {
    return self->delivered.count || self->undelivered.count || self->client.has_errors;
}

static int poll(client_t *client, int timeout_ms) {
    producer_t *self = (producer_t *)client;
    rd.poll(client->rk, has_outcomes(self) ? 0 : timeout_ms); /* `send` and `flush` can leave outcomes */
    return has_outcomes(self);
}

static PyObject *producer_poll(PyObject *self, PyObject *timeout) {
    return serve((client_t *)self, poll, PyLong_AsLongLong(timeout), take_outcomes);
}

static int flush(client_t *client, int timeout_ms) {
    return rd.flush(client->rk, timeout_ms) && timeout_ms == MOST_WAIT_MS;
}

static PyObject *take_flushed(client_t *client, int is_cut_short) {
    return is_cut_short ? Py_NewRef(Py_False) : take_outcomes(client, 0);
}

static PyObject *producer_flush(PyObject *self, PyObject *timeout) {
    return serve((client_t *)self, flush, PyLong_AsLongLong(timeout), take_flushed);
}

static PyObject *producer_queued(PyObject *self, PyObject *unused) {
    return PyLong_FromLongLong(((producer_t *)self)->queued);
}

static PyObject *producer_count(PyObject *self, PyObject *bucket_ms) {
    long long length_ms = PyLong_AsLongLong(bucket_ms);
    if (PyErr_Occurred())
        return NULL;
    ((producer_t *)self)->bucket_ms = length_ms;
    Py_RETURN_NONE;
}

static int purge(rd_kafka_t *rk, void *unused) {
    return rd.purge(rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
}

static PyObject *producer_purge(PyObject *self, PyObject *unused) {
    return call((client_t *)self, purge, NULL) ? Py_NewRef(Py_None) : NULL;
}

static void set_callbacks(rd_kafka_conf_t *conf) { rd.conf_set_dr_msg_cb(conf, on_delivery_report); }

static void release(client_t *client) {
    producer_t *self = (producer_t *)client;
    if (self->topic)
        rd.topic_destroy(self->topic);
    self->topic = NULL;
}

static PyObject *producer_new(PyTypeObject *type, PyObject *arguments, PyObject *unused) {
    PyObject *options;
    if (!PyArg_ParseTuple(arguments, "O!:Producer", &PyDict_Type, &options))
        return NULL;
    return (PyObject *)new_client(type, options, RD_KAFKA_PRODUCER, set_callbacks, release);
}

static void producer_dealloc(PyObject *object) {
    producer_t *self = (producer_t *)object;
    destroy_client(&self->client);
    clear_outcomes(self);
    PyBuffer_Release(&self->room);
    free(self->delivered.items);
    free(self->counts.items);
    free_client(&self->client);
}

/* _librdkafka.pyi describes them. */
static PyMethodDef producer_methods[] = {
    {"send", (PyCFunction)(void (*)(void))producer_send, METH_FASTCALL, NULL},
    {"produce", producer_produce, METH_VARARGS, NULL},
    {"poll", producer_poll, METH_O, NULL},
    {"flush", producer_flush, METH_O, NULL},
    {"queued", producer_queued, METH_NOARGS, NULL},
    {"count", producer_count, METH_O, NULL},
    {"purge", producer_purge, METH_NOARGS, NULL},
    {"close", close_client, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_new, producer_new},
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_methods, producer_methods},
    {0, NULL},
};

PyType_Spec producer_spec = {MODULE ".Producer", sizeof(producer_t), 0, Py_TPFLAGS_DEFAULT, producer_slots};
