/* SPDX-License-Identifier: Apache-2.0 */
/* The module, and what its clients share.
 *
 * 1. Errors and logs: librdkafka calls us back without the GIL, and we keep them until the next call takes them.
 * 2. Arguments and results.
 * 3. Waiting: in slices, between which signals are handled.
 * 4. The life of a client: it is destroyed by the last call that uses it, and never in the child of a fork.
 * 5. The functions of librdkafka, and the module. */

#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OLDEST_VERSION 0x020300ff /* the first that describes topics with their ids, which a producer asks for */
#define SLICE_MS 100              /* how long a signal may wait for its handler */
#define MOST_NOTICES 1000         /* until the next call that takes them; further log lines are dropped */

enum { LOG_LINE, ERROR, FATAL_ERROR };

typedef struct {
    int number; /* the code of an error, the syslog level of a log line */
    int kind;
    char *text;
} notice_t;

struct rd_kafka_functions rd;

static PyObject *Error; /* (code, text, fatal): librdkafka refuses something */

/* ---- 1. Errors and logs ---- */

/* Aborts the process without memory, as librdkafka does. */
void *required(void *memory) {
    if (!memory)
        abort();
    return memory;
}

/* Returns the next item, zeroed. */
void *append(array_t *array, size_t item_size) {
    if (array->count == array->room) {
        array->room = array->room ? array->room * 2 : 64;
        array->items = required(realloc(array->items, array->room * item_size));
    }
    return memset(array->items + array->count++ * item_size, 0, item_size);
}

static void add_notice(client_t *self, int number, int kind, const char *text) {
    pthread_mutex_lock(&self->notices_lock);
    if (self->notices.count < MOST_NOTICES || kind != LOG_LINE) /* librdkafka repeats an error once in 30 s */
        *(notice_t *)append(&self->notices, sizeof(notice_t)) = (notice_t){number, kind, required(strdup(text))};
    self->has_errors |= kind != LOG_LINE;
    pthread_mutex_unlock(&self->notices_lock);
}

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque) {
    char text[512];
    int fatal = code == RD_KAFKA_RESP_ERR__FATAL; /* it stands for the error that made the client unusable */
    if (fatal)
        code = rd.fatal_error(rk, text, sizeof text);
    add_notice(opaque, code, fatal ? FATAL_ERROR : ERROR, fatal ? text : reason);
}

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text) {
    char line[2560];
    if (!rk || !rd.opaque(rk))
        return;
    snprintf(line, sizeof line, "%s [%s] %s", facility, rd.name(rk), text);
    add_notice(rd.opaque(rk), level, LOG_LINE, line);
}

/* (code or level, text, kind) */
static PyObject *notice_tuple(const void *from, size_t index) {
    const notice_t *notice = (const notice_t *)from + index;
    return Py_BuildValue("(iNi)", notice->number, decoded((bytes_t){notice->text, strlen(notice->text)}), notice->kind);
}

static void free_notices(array_t *notices) {
    for (size_t i = 0; i < notices->count; i++)
        free(((notice_t *)notices->items)[i].text);
    free(notices->items);
}

PyObject *take_notices(client_t *self) {
    pthread_mutex_lock(&self->notices_lock);
    array_t notices = self->notices;
    self->notices = (array_t){0};
    self->has_errors = 0;
    pthread_mutex_unlock(&self->notices_lock);
    PyObject *taken = build_list(notice_tuple, notices.items, notices.count);
    free_notices(&notices);
    return taken;
}

/* ---- 2. Arguments and results ---- */

PyObject *decoded(bytes_t text) { return PyUnicode_DecodeUTF8(text.start, text.size, "replace"); }

PyObject *bytes_or_none(bytes_t bytes) {
    return bytes.start ? PyBytes_FromStringAndSize(bytes.start, bytes.size) : Py_NewRef(Py_None);
}

PyObject *build_list(build_item_t *build_item, const void *from, size_t count) {
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

void raise_error(int code, const char *text, int fatal) {
    bytes_t shown = {text, strlen(text)}; /* librdkafka may cut it within a character */
    PyObject *arguments = Py_BuildValue("(iNO)", code, decoded(shown), fatal ? Py_True : Py_False);
    if (arguments)
        PyErr_SetObject(Error, arguments);
    Py_XDECREF(arguments);
}

void raise_refused(client_t *self, int code) {
    char text[512];
    if (code == RD_KAFKA_RESP_ERR__FATAL) { /* as in `on_error` */
        code = rd.fatal_error(self->rk, text, sizeof text);
        raise_error(code, text, 1);
    } else
        raise_error(code, rd.err2str(code), 0);
}

int has_type(const char *what, PyObject *object, int matches, const char *wanted) {
    if (!matches)
        PyErr_Format(PyExc_TypeError, "%s must be %s, not %R", what, wanted, Py_TYPE(object));
    return matches;
}

int as_text(const char *what, PyObject *object, bytes_t *text) {
    Py_ssize_t size;
    if (!has_type(what, object, PyUnicode_Check(object), "str"))
        return 0;
    text->start = PyUnicode_AsUTF8AndSize(object, &size);
    text->size = size;
    if (text->start && strlen(text->start) != text->size)
        PyErr_Format(PyExc_ValueError, "%s must not contain a null character", what);
    return text->start && strlen(text->start) == text->size;
}

/* ---- 3. Waiting ---- */

static int64_t monotonic_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A thread that closes a consumer goes on using it, as one does that polls it: in callbacks. */
static int is_closed(const client_t *self) {
    unsigned long thread = PyThread_get_thread_ident();
    return self->closed || (self->closing && self->closing != thread && self->serving != thread);
}

/* Returns with an exception if a signal handler raised one. */
static void wait_in_slices(client_t *self, int slice(client_t *, int), int64_t timeout_ms) {
    int64_t until_ms = monotonic_ms() + timeout_ms;
    for (;;) {
        int64_t left_ms = until_ms - monotonic_ms();
        int over, slice_ms = left_ms < 0 ? 0 : left_ms < SLICE_MS ? left_ms : SLICE_MS;
        Py_BEGIN_ALLOW_THREADS
        over = slice(self, slice_ms);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals() || over || is_closed(self) || left_ms <= SLICE_MS)
            return;
    }
}

PyObject *serve(client_t *self, int slice(client_t *, int), int64_t timeout_ms, PyObject *take(client_t *)) {
    PyObject *taken;
    if (PyErr_Occurred() || !is_open(self))
        return NULL;
    if (self->serving) {
        PyErr_SetString(PyExc_RuntimeError, "one call that waits for this client at a time");
        return NULL;
    }
    self->serving = PyThread_get_thread_ident();
    begin_use(self);
    wait_in_slices(self, slice, timeout_ms);
    taken = take(self);
    self->serving = 0;
    end_use(self);
    return taken;
}

/* ---- 4. The life of a client ---- */

PyObject *new_object(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int is_open(const client_t *self) {
    if (!is_closed(self))
        return 1;
    raise_error(RD_KAFKA_RESP_ERR__DESTROY, "the client is closed", 0);
    return 0;
}

void destroy_client(client_t *self) {
    rd_kafka_t *rk = self->rk;
    if (!rk || self->pid != getpid()) /* its threads are in the parent: destroying it would wait for them */
        return;
    self->release(self);
    self->rk = NULL;
    Py_BEGIN_ALLOW_THREADS
    rd.destroy_flags(rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    Py_END_ALLOW_THREADS
}

void begin_use(client_t *self) { self->users++; }

void end_use(client_t *self) {
    if (!--self->users && self->closed)
        destroy_client(self);
}

/* Destroys the client, unless a call uses it: then that call does so at its end. */
PyObject *close_client(PyObject *object, PyObject *unused) {
    client_t *self = (client_t *)object;
    (void)unused;
    if (!self->closed) {
        self->closed = 1;
        if (!self->users)
            destroy_client(self);
    }
    Py_RETURN_NONE;
}

/* Frees an object whose client is destroyed. */
void free_client(client_t *self) {
    free_notices(&self->notices);
    free_object((PyObject *)self);
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

/* Opens the librdkafka client; `set_callbacks`: those of its kind. */
static int open_client(client_t *self, PyObject *options, int kind, void set_callbacks(rd_kafka_conf_t *)) {
    char text[512];
    rd_kafka_conf_t *conf = rd.conf_new();
    if (!set_options(conf, options)) {
        rd.conf_destroy(conf);
        return 0;
    }
    rd.conf_set_opaque(conf, self);
    rd.conf_set_error_cb(conf, on_error);
    rd.conf_set_log_cb(conf, on_log);
    set_callbacks(conf);
    Py_BEGIN_ALLOW_THREADS
    self->rk = rd.new(kind, conf, text, sizeof text);
    Py_END_ALLOW_THREADS
    if (self->rk)
        return 1;
    rd.conf_destroy(conf);
    raise_error(rd.last_error(), text, 0);
    return 0;
}

client_t *new_client(PyTypeObject *type, PyObject *options, int kind, void set_callbacks(rd_kafka_conf_t *),
                     void release(client_t *)) {
    client_t *self = (client_t *)new_object(type);
    if (!self)
        return NULL;
    self->pid = getpid();
    self->release = release;
    pthread_mutex_init(&self->notices_lock, NULL);
    self->closed = 1;
    if (!open_client(self, options, kind, set_callbacks)) {
        Py_DECREF(self);
        return NULL;
    }
    self->closed = 0;
    return self;
}

/* ---- 5. The functions of librdkafka, and the module ---- */

#define RD_KAFKA_SYMBOL(name, result, parameters) "rd_kafka_" #name,
static const char *const symbols[] = {RD_KAFKA_FUNCTIONS(RD_KAFKA_SYMBOL)};
#define SYMBOL_COUNT (sizeof symbols / sizeof symbols[0])
_Static_assert(sizeof rd == SYMBOL_COUNT * sizeof(void *), "a pointer for each symbol");

/* Fills `rd` from the librdkafka that confluent-kafka uses. Raises ImportError. */
static int load_librdkafka(void) {
    void *functions[SYMBOL_COUNT];
    PyObject *client = PyImport_ImportModule("confluent_kafka.cimpl");
    PyObject *path = client ? PyObject_GetAttrString(client, "__file__") : NULL;
    const char *name = path ? PyUnicode_AsUTF8AndSize(path, NULL) : NULL;
    void *library = name ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL; /* it stays loaded */
    if (name && !library)
        PyErr_Format(PyExc_ImportError, "%s is not loaded", name);
    for (size_t i = 0; library && i < SYMBOL_COUNT; i++) {
        functions[i] = dlsym(library, symbols[i]);
        if (!functions[i]) {
            PyErr_Format(PyExc_ImportError, "the library has no function %s", symbols[i]);
            library = NULL;
        }
    }
    Py_XDECREF(path);
    Py_XDECREF(client);
    if (!library)
        return 0;
    memcpy(&rd, functions, sizeof rd);
    if (rd.version() >= OLDEST_VERSION)
        return 1;
    PyErr_Format(PyExc_ImportError, "librdkafka %s is too old: use 2.3.0 or a later version", rd.version_str());
    return 0;
}

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_librdkafka",
    .m_size = -1,
};

static int add(PyObject *module, const char *name, PyObject *object) {
    int failed = !object || PyModule_AddObjectRef(module, name, object);
    Py_XDECREF(object);
    return !failed;
}

PyMODINIT_FUNC PyInit__librdkafka(void) {
    PyObject *module = load_librdkafka() ? PyModule_Create(&module_definition) : NULL;
    Error = module ? PyErr_NewException("monasca_common.kafka.transport.native._librdkafka.Error", NULL, NULL) : NULL;
    rows_type = Error ? (PyTypeObject *)PyType_FromSpec(&rows_spec) : NULL;
    reservation_type = rows_type ? (PyTypeObject *)PyType_FromSpec(&reservation_spec) : NULL;
    if (reservation_type && add(module, "Error", Py_NewRef(Error)) &&
        add(module, "Rows", Py_NewRef((PyObject *)rows_type)) &&
        add(module, "Reservation", Py_NewRef((PyObject *)reservation_type)) &&
        add(module, "Producer", PyType_FromSpec(&producer_spec)) &&
        add(module, "Consumer", PyType_FromSpec(&consumer_spec)))
        return module;
    Py_XDECREF(module);
    return NULL;
}
