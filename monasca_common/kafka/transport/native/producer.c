/* SPDX-License-Identifier: Apache-2.0 */
/* A producing client that identifies messages by sequence numbers and returns their outcomes in columns.
 *
 * 1. Delivery reports: librdkafka's callback runs in the one thread that serves it, and collects them in arrays.
 * 2. The arrays as Python objects: `poll` and `flush` return them all, or raise and keep them for the next call.
 * 3. Producing.
 * 4. Serving, and the type. */

#include "client.h"

#include <stdatomic.h>
#include <structmember.h>

#if UINTPTR_MAX < INT64_MAX
#error "a message's sequence number is its opaque pointer, which needs 64 bits"
#endif

#define ID_HEADER "message-id"
#define ID_DIGITS 12
#define MOST_PREFIX_BYTES 64
#define ANY_PARTITION -1
/* Messages that one thread allocates and another frees make both threads wait for malloc's lock. */
#define SENDS_BETWEEN_POLLS 100

/* Python reads an array of these: see `Outcomes` in _librdkafka.pyi. */
typedef struct {
    int64_t sequence, offset;
    int64_t size; /* bytes of value and key; `take_outcomes` makes them cumulative */
    int64_t partition;
} delivered_t;

/* The memory of a `NativeReservation`. */
typedef struct {
    int64_t next, end, left, largest, overhead, prefix_size;
    char prefix[MOST_PREFIX_BYTES];
} reservation_t;

typedef struct {
    client_t client;
    Py_buffer room;            /* of the reservation that `send` used last */
    int64_t queued;            /* queued, and not returned as an outcome */
    _Atomic int64_t bucket_ms; /* 0: no counts */
    array_t delivered, undelivered, counts; /* written by callbacks; the last two have notices */
} producer_t;

/* ---- 1. Delivery reports ---- */

/* Python adds up the counts of the same topic and bucket. */
static void count_delivered(producer_t *self, const rd_kafka_message_t *message, int64_t length_ms) {
    int kind;
    int64_t sent_ms = rd.message_timestamp(message, &kind), bucket_ms = sent_ms - sent_ms % length_ms;
    const char *topic = rd.topic_name(message->rkt);
    notice_t *count = self->counts.count ? ((notice_t **)self->counts.items)[self->counts.count - 1] : NULL;
    if (!count || count->number != bucket_ms || strcmp(count->text, topic))
        count = add_notice(&self->counts, COUNT, 0, topic, bucket_ms, &no_message);
    count->code++;
}

static void on_delivery_report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    producer_t *self = opaque;
    int64_t bucket_ms = self->bucket_ms;
    if (message->err) {
        const char *text = rd.message_produce_errstr(message);
        add_notice(&self->undelivered, UNDELIVERED, message->err, text ? text : rd.err2str(message->err),
                   (intptr_t)message->opaque, message);
        return;
    }
    if (bucket_ms)
        count_delivered(self, message, bucket_ms);
    *(delivered_t *)append(&self->delivered, sizeof(delivered_t)) =
        (delivered_t){(intptr_t)message->opaque, message->offset, message->len + message->key_len, message->partition};
}

static void clear_outcomes(producer_t *self) {
    self->delivered.count = 0; /* the array keeps its memory for the next reports */
    free_notices(&self->undelivered);
    free_notices(&self->counts);
}

/* ---- 2. The arrays as Python objects ---- */

/* Sorts by sequence. Reports arrive in batches of a partition, each in ascending order, so most halves are sorted. */
static void sort_delivered(delivered_t *items, size_t count) {
    size_t half = count / 2, left = 0, right = half;
    if (count < 2)
        return;
    sort_delivered(items, half);
    sort_delivered(items + half, count - half);
    if (items[half - 1].sequence <= items[half].sequence)
        return;
    delivered_t *first_half = required(malloc(half * sizeof(delivered_t)));
    memcpy(first_half, items, half * sizeof(delivered_t));
    for (size_t to = 0; left < half; to++) {
        int is_left = right == count || first_half[left].sequence <= items[right].sequence;
        items[to] = is_left ? first_half[left++] : items[right++];
    }
    free(first_half);
}

/* Returns the collected outcomes, or None; clears the arrays only on success. */
static PyObject *take_outcomes(client_t *client) {
    producer_t *self = (producer_t *)client;
    size_t count = self->delivered.count + self->undelivered.count;
    if (!count && !client->notices.count)
        Py_RETURN_NONE;
    sort_delivered((delivered_t *)self->delivered.items, self->delivered.count);
    PyObject *columns = PyBytes_FromStringAndSize(self->delivered.items, self->delivered.count * sizeof(delivered_t));
    delivered_t *delivered = columns ? (delivered_t *)PyBytes_AsString(columns) : NULL;
    for (size_t i = 1; columns && i < self->delivered.count; i++)
        delivered[i].size += delivered[i - 1].size;
    PyObject *outcomes = Py_BuildValue("(NNNN)", columns, list_notices(&self->counts),
                                       list_notices(&self->undelivered), take_notices(client));
    if (outcomes) {
        self->queued -= count;
        clear_outcomes(self);
    }
    return outcomes;
}

/* ---- 3. Producing ---- */

typedef struct {
    bytes_t value, key, id; /* id: NULL without an id; with a prefix, `queue_message` sets it */
    bytes_t prefix;         /* of a generated id, or NULL */
    PyObject *ids;          /* of a bulk, a list, or NULL */
    int partition;
    long long timestamp_ms;
    rd_kafka_headers_t *headers; /* of a message without an id */
    char digits[MOST_PREFIX_BYTES + 16];
} message_t;

/* Converters for PyArg_ParseTuple: they return 0 with an exception. */

static int as_bytes(PyObject *object, void *to) {
    char *start;
    Py_ssize_t size;
    if (!has_type("a value, key, id or prefix", object, PyBytes_Check(object), "bytes") ||
        PyBytes_AsStringAndSize(object, &start, &size))
        return 0;
    *(bytes_t *)to = (bytes_t){start, size};
    return 1;
}

static int as_optional_bytes(PyObject *object, void *to) {
    *(bytes_t *)to = (bytes_t){NULL, 0};
    return object == Py_None || as_bytes(object, to);
}

static int as_ids(PyObject *object, void *to) {
    message_t *message = to;
    message->ids = PyList_Check(object) ? object : NULL;
    if (!message->ids && !as_optional_bytes(object, &message->prefix))
        return 0;
    if (message->prefix.size <= MOST_PREFIX_BYTES)
        return 1;
    PyErr_Format(PyExc_ValueError, "the prefix of ids must have at most %d bytes", MOST_PREFIX_BYTES);
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

/* Selects the topic to produce to. Its handle is kept until another topic is selected, which avoids a search by name.
 * It must be the last check of a call, because Python code that runs after it, such as a finalizer, may select another
 * topic or close the client. All code that may run Python code, or allocate a garbage-collected object, precedes it. */
static int select_topic(client_t *self, PyObject *object) {
    const char *name = is_open(self) ? as_text("topic", object) : NULL;
    if (!name)
        return 0;
    if (self->topic && !strcmp(rd.topic_name(self->topic), name))
        return 1;
    rd_kafka_topic_t *topic = rd.topic_new(self->rk, name, NULL);
    if (!topic) {
        raise_refused(self, rd.last_error());
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

/* Queues a message to the selected topic. Returns the code of an error, or 0. */
static int queue_message(producer_t *self, message_t *message, int64_t sequence) {
#define MESSAGE                                                                                                        \
    self->client.rk, RD_KAFKA_VTYPE_RKT, self->client.topic, RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY,             \
        RD_KAFKA_VTYPE_VALUE, message->value.start, message->value.size, RD_KAFKA_VTYPE_KEY, message->key.start,       \
        message->key.size, RD_KAFKA_VTYPE_OPAQUE, (void *)(intptr_t)sequence, RD_KAFKA_VTYPE_PARTITION,                \
        message->partition, RD_KAFKA_VTYPE_TIMESTAMP, (int64_t)message->timestamp_ms
    int code;
    if (message->prefix.start) {
        char *digits = message->digits + message->prefix.size;
        memcpy(message->digits, message->prefix.start, message->prefix.size);
        message->id = (bytes_t){message->digits, message->prefix.size + write_digits(digits, sequence)};
    }
    if (message->id.start)
        code = rd.producev(MESSAGE, RD_KAFKA_VTYPE_HEADER, ID_HEADER, message->id.start, (ssize_t)message->id.size,
                           RD_KAFKA_VTYPE_END);
    else
        code = rd.producev(MESSAGE, message->headers ? RD_KAFKA_VTYPE_HEADERS : RD_KAFKA_VTYPE_END, message->headers,
                           RD_KAFKA_VTYPE_END);
    self->queued += !code;
    return code;
}

/* Sets the value and the id of a message from the lists. Returns 0 with an exception for a wrong type. */
static int select_message(message_t *message, PyObject *values, Py_ssize_t place) {
    return as_optional_bytes(PyList_GetItem(values, place), &message->value) &&
           (!message->ids || as_bytes(PyList_GetItem(message->ids, place), &message->id));
}

/* Raises the reason if the first message is not accepted. Like `send`, it holds the GIL, because queueing a message
 * takes less time than reacquiring the GIL can take. Therefore, the lists do not change. */
static PyObject *producer_produce(PyObject *object, PyObject *arguments) {
    producer_t *self = (producer_t *)object;
    message_t message = {.partition = ANY_PARTITION};
    PyObject *topic, *values;
    long long first;
    int code = 0, read = PyArg_ParseTuple(arguments, "OO!O&LO&|iLO&:produce", &topic, &PyList_Type, &values,
                                          as_optional_bytes, &message.key, &first, as_ids, &message,
                                          &message.partition, &message.timestamp_ms, as_headers, &message.headers);
    Py_ssize_t taken = 0, count = read ? PyList_Size(values) : 0;
    if (read && message.ids && PyList_Size(message.ids) != count) {
        PyErr_Format(PyExc_ValueError, "%zd ids for %zd values", PyList_Size(message.ids), count);
        read = 0;
    }
    for (Py_ssize_t i = 0; read && i < count; i++)
        read = select_message(&message, values, i);
    if (read && message.headers && (count != 1 || message.prefix.start || message.ids)) /* the message will own them */
        PyErr_SetString(PyExc_ValueError, "headers need one value, and no ids");
    else if (read && select_topic(&self->client, topic)) {
        for (; !code && taken < count; taken += !code) {
            select_message(&message, values, taken);
            code = queue_message(self, &message, first + taken);
        }
        if (code && !taken)
            raise_refused(&self->client, code);
    }
    if (message.headers && !taken)
        rd.headers_destroy(message.headers);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(taken);
}

/* Holds the GIL from the check of the reservation until the message is queued and counted, so that neither another
 * thread nor a signal handler interrupts it. A message that librdkafka refuses is not accepted. Collects delivery
 * reports from time to time, unless another thread does, because that frees the delivered messages. */
static PyObject *producer_send(PyObject *object, PyObject *const *arguments, Py_ssize_t count) {
    producer_t *self = (producer_t *)object;
    message_t message = {.partition = ANY_PARTITION};
    int is_queued = 0;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "send takes 4 arguments, not %zd", count);
    if (self->room.obj != arguments[3]) {
        Py_buffer room;
        if (PyObject_GetBuffer(arguments[3], &room, PyBUF_WRITABLE))
            return NULL;
        PyBuffer_Release(&self->room);
        self->room = room;
    }
    if (!as_bytes(arguments[1], &message.value) || !as_optional_bytes(arguments[2], &message.key))
        return NULL;
    reservation_t *from = self->room.buf;
    int64_t size = message.value.size + message.key.size;
    if (self->room.len == sizeof *from && from->next < from->end && size <= from->left - from->overhead &&
        size <= from->largest - from->overhead && (uint64_t)from->prefix_size <= MOST_PREFIX_BYTES) {
        message.prefix = (bytes_t){from->prefix_size ? from->prefix : NULL, from->prefix_size};
        is_queued = select_topic(&self->client, arguments[0]) && !queue_message(self, &message, from->next);
    }
    if (!is_queued) {
        PyErr_Clear(); /* `produce` will raise it */
        Py_RETURN_NONE;
    }
    from->left -= size + from->overhead;
    if (from->next++ % SENDS_BETWEEN_POLLS == 0 && !self->client.serving)
        rd.poll(self->client.rk, 0);
    return PyBytes_FromStringAndSize(message.id.start, message.id.size);
}

/* ---- 4. Serving, and the type ---- */

static void poll(client_t *client, int timeout_ms) {
    producer_t *self = (producer_t *)client;
    size_t collected = self->delivered.count + self->undelivered.count + client->notices.count;
    rd.poll(client->rk, collected ? 0 : timeout_ms); /* `send` collects outcomes, too */
}

static PyObject *producer_poll(PyObject *self, PyObject *timeout) {
    return serve((client_t *)self, poll, PyLong_AsLongLong(timeout), take_outcomes);
}

static void flush(client_t *client, int timeout_ms) { rd.flush(client->rk, timeout_ms); }

static PyObject *producer_flush(PyObject *self, PyObject *timeout) {
    return serve((client_t *)self, flush, PyLong_AsLongLong(timeout), take_outcomes);
}

static int purge(rd_kafka_t *rk, void *unused) {
    return rd.purge(rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
}

static PyObject *producer_purge(PyObject *self, PyObject *unused) {
    return call((client_t *)self, purge, NULL) ? Py_NewRef(Py_None) : NULL;
}

static void set_callbacks(rd_kafka_conf_t *conf) { rd.conf_set_dr_msg_cb(conf, on_delivery_report); }

static PyObject *producer_new(PyTypeObject *type, PyObject *arguments, PyObject *unused) {
    PyObject *options;
    if (!PyArg_ParseTuple(arguments, "O!:Producer", &PyDict_Type, &options))
        return NULL;
    return (PyObject *)new_client(type, options, RD_KAFKA_PRODUCER, set_callbacks);
}

static void producer_dealloc(PyObject *object) {
    producer_t *self = (producer_t *)object;
    destroy_client(&self->client);
    clear_outcomes(self);
    PyBuffer_Release(&self->room);
    free(self->delivered.items);
    free_client(&self->client);
}

/* _librdkafka.pyi describes them. */
static PyMethodDef producer_methods[] = {
    {"send", (PyCFunction)(void (*)(void))producer_send, METH_FASTCALL, NULL},
    {"produce", producer_produce, METH_VARARGS, NULL},
    {"poll", producer_poll, METH_O, NULL},
    {"flush", producer_flush, METH_O, NULL},
    {"purge", producer_purge, METH_NOARGS, NULL},
    {"add_brokers", add_brokers, METH_O, NULL},
    {"close", close_client, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef producer_members[] = {
    {"queued", T_LONGLONG, offsetof(producer_t, queued), READONLY, NULL},
    {"bucket_ms", T_LONGLONG, offsetof(producer_t, bucket_ms), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot producer_slots[] = {
    {Py_tp_new, producer_new},
    {Py_tp_dealloc, producer_dealloc},
    {Py_tp_methods, producer_methods},
    {Py_tp_members, producer_members},
    {0, NULL},
};

PyType_Spec producer_spec = {MODULE ".Producer", sizeof(producer_t), 0, Py_TPFLAGS_DEFAULT, producer_slots};
