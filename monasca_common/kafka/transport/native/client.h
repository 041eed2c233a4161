/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the clients; the GIL protects their fields, unless a comment states otherwise. */

#ifndef MONASCA_CLIENT_H
#define MONASCA_CLIENT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "rdkafka_abi.h"

#define MODULE "monasca_common.kafka.transport.native._librdkafka"
#define INTERFACE 4 /* increase it when _librdkafka.pyi changes; the package has the same number, and compares them */

#define MOST_WAIT_MS 100 /* the maximum delay of a signal handler */

#pragma GCC visibility push(hidden)

typedef struct {
    const char *start; /* NULL: None */
    size_t size;
} bytes_t;

typedef struct {
    char *items;
    size_t count, room;
} array_t;

enum { LOG_LINE, ERROR, FATAL_ERROR, UNDELIVERED, PARTITION_EVENT, COUNT };

/* A report of librdkafka, kept until the next call returns it. */
typedef struct {
    int kind, code; /* code: of an error, the syslog level of a log line, or the messages of a count */
    int64_t number; /* sequence of an undelivered message, offset of an event, start of a count's bucket */
    int partition;
    const char *text, *topic; /* the text of a count is its topic */
    bytes_t value, key;
    char bytes[]; /* the memory that the pointers refer to */
} notice_t;

typedef struct {
    PyObject_HEAD
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic; /* of a producer, or NULL */
    rd_kafka_queue_t *queue; /* of a consumer, or NULL */
    pid_t pid;
    int closed;            /* calls are refused; the last reference destroys `rk` */
    int calls;             /* number of calls in progress, without the GIL */
    unsigned long serving; /* the thread in `serve`, or 0 */
    unsigned long closing; /* the thread that closes a consumer, or 0 */

    pthread_mutex_t notices_lock; /* locked, because any thread of librdkafka can log */
    array_t notices;              /* errors, events of partitions, and log lines */
} client_t;

extern struct rd_kafka_functions rd;
extern PyType_Spec producer_spec, consumer_spec, rows_spec;
extern PyTypeObject *rows_type;
extern const rd_kafka_message_t no_message;

void *required(void *memory);
void *append(array_t *array, size_t item_size);

notice_t *add_notice(array_t *notices, int kind, int code, const char *text, int64_t number,
                     const rd_kafka_message_t *message);
void add_client_notice(client_t *self, int kind, int code, const char *text, const rd_kafka_message_t *message);
PyObject *list_notices(const array_t *notices);
void free_notices(array_t *notices);
PyObject *take_notices(client_t *self);

PyObject *decoded(const char *text); /* librdkafka can cut the text within a character */
PyObject *bytes_or_none(bytes_t bytes);

/* Builds the item at `index` of the array at `from`. */
typedef PyObject *build_item_t(const void *from, size_t index);
PyObject *build_list(build_item_t *build_item, const void *from, size_t count);

/* These functions return 0 or NULL with an exception. */
const char *as_text(const char *what, PyObject *object);
int has_type(const char *what, PyObject *object, int matches, const char *wanted);
int is_open(const client_t *self);
void raise_error(int code, const char *text, int fatal);
void raise_refused(client_t *self, int code);

/* Calls librdkafka without the GIL. Returns 0 with the exception for the code that `run` returns. */
int call(client_t *self, int run(rd_kafka_t *, void *argument), void *argument);
PyObject *add_brokers(PyObject *self, PyObject *servers);

/* Calls `run` without the GIL, for at most MOST_WAIT_MS, so that Python can handle signals between two calls; then
 * returns the result of `take`. One call at a time. */
PyObject *serve(client_t *self, void run(client_t *, int timeout_ms), int64_t timeout_ms, PyObject *take(client_t *));

client_t *new_client(PyTypeObject *type, PyObject *options, int kind, void set_callbacks(rd_kafka_conf_t *));
PyObject *close_client(PyObject *self, PyObject *unused);
void destroy_client(client_t *self);
void free_client(client_t *self);
void free_object(PyObject *self);

#pragma GCC visibility pop

#endif
