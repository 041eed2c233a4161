/* SPDX-License-Identifier: Apache-2.0 */
/* The module, and the common part of its clients.
 *
 * 1. Errors and logs: librdkafka calls back without the GIL; the next call returns what the callbacks stored.
 * 2. Arguments and results.
 * 3. Waiting, without the GIL.
 * 4. A client's lifetime: its last reference destroys it, except in a forked child. Calls and rows hold references.
 * 5. The functions of librdkafka, and the module. */

#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#define MOST_NOTICES 1000 /* kept until the next call takes them; further log lines are dropped */

struct rd_kafka_functions rd;
const rd_kafka_message_t no_message;

static PyObject *Error; /* (code, text, fatal): an error that librdkafka returns */

/* ---- 1. Errors and logs ---- */

/* Aborts the process if memory is exhausted, like librdkafka. */
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

static bytes_t copied(char **to, const void *from, size_t size) {
    bytes_t copy = {from ? *to : NULL, size};
    if (from && size)
        memcpy(*to, from, size);
    *to += size;
    return copy;
}

notice_t *add_notice(array_t *notices, int kind, int code, const char *text, int64_t number,
                     const rd_kafka_message_t *message) {
    const char *topic = message->rkt ? rd.topic_name(message->rkt) : NULL;
    size_t text_size = strlen(text) + 1, topic_size = topic ? strlen(topic) + 1 : 0;
    notice_t *notice = required(malloc(sizeof(notice_t) + text_size + topic_size + message->len + message->key_len));
    char *to = notice->bytes;
    notice->kind = kind;
    notice->code = code;
    notice->number = number;
    notice->partition = message->partition;
    notice->text = copied(&to, text, text_size).start;
    notice->topic = copied(&to, topic, topic_size).start;
    notice->value = copied(&to, message->payload, message->len);
    notice->key = copied(&to, message->key, message->key_len);
    return *(notice_t **)append(notices, sizeof(notice_t *)) = notice;
}

void add_client_notice(client_t *self, int kind, int code, const char *text, const rd_kafka_message_t *message) {
    pthread_mutex_lock(&self->notices_lock);
    if (self->notices.count < MOST_NOTICES || kind != LOG_LINE) /* librdkafka repeats an error once every 30 s */
        add_notice(&self->notices, kind, code, text, message->offset, message);
    pthread_mutex_unlock(&self->notices_lock);
}

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque) {
    char text[512];
    int fatal = code == RD_KAFKA_RESP_ERR__FATAL; /* it replaces the error that made the client unusable */
    if (fatal)
        code = rd.fatal_error(rk, text, sizeof text);
    add_client_notice(opaque, fatal ? FATAL_ERROR : ERROR, code, fatal ? text : reason, &no_message);
}

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text) {
    char line[2560];
    if (!rk || !rd.opaque(rk))
        return;
    snprintf(line, sizeof line, "%s [%s] %s", facility, rd.name(rk), text);
    add_client_notice(rd.opaque(rk), LOG_LINE, level, line, &no_message);
}

/* (kind, code, text, topic, partition, number, value, key) */
static PyObject *notice_tuple(const void *from, size_t index) {
    const notice_t *notice = ((notice_t *const *)from)[index];
    return Py_BuildValue("(iiNziLNN)", notice->kind, notice->code, decoded(notice->text), notice->topic,
                         notice->partition, (long long)notice->number, bytes_or_none(notice->value),
                         bytes_or_none(notice->key));
}

PyObject *list_notices(const array_t *notices) { return build_list(notice_tuple, notices->items, notices->count); }

void free_notices(array_t *notices) {
    for (size_t i = 0; i < notices->count; i++)
        free(((notice_t **)notices->items)[i]);
    free(notices->items);
    *notices = (array_t){0};
}

PyObject *take_notices(client_t *self) {
    pthread_mutex_lock(&self->notices_lock);
    array_t notices = self->notices;
    self->notices = (array_t){0};
    pthread_mutex_unlock(&self->notices_lock);
    PyObject *taken = list_notices(&notices);
    free_notices(&notices);
    return taken;
}

/* ---- 2. Arguments and results ---- */

PyObject *decoded(const char *text) { return PyUnicode_DecodeUTF8(text, strlen(text), "replace"); }

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
    PyObject *arguments = Py_BuildValue("(iNO)", code, decoded(text), fatal ? Py_True : Py_False);
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

const char *as_text(const char *what, PyObject *object) {
    Py_ssize_t size;
    int is_text = has_type(what, object, PyUnicode_Check(object), "str");
    const char *text = is_text ? PyUnicode_AsUTF8AndSize(object, &size) : NULL;
    if (!text || (Py_ssize_t)strlen(text) == size)
        return text;
    PyErr_Format(PyExc_ValueError, "%s must not contain a null character", what);
    return NULL;
}

/* ---- 3. Waiting ---- */

PyObject *serve(client_t *self, void run(client_t *, int), int64_t timeout_ms, PyObject *take(client_t *)) {
    if (PyErr_Occurred() || !is_open(self))
        return NULL;
    if (self->serving) {
        PyErr_SetString(PyExc_RuntimeError, "another call waits for this client");
        return NULL;
    }
    self->serving = PyThread_get_thread_ident();
    Py_BEGIN_ALLOW_THREADS
    run(self, timeout_ms < 0 ? 0 : timeout_ms < MOST_WAIT_MS ? timeout_ms : MOST_WAIT_MS);
    Py_END_ALLOW_THREADS
    PyObject *taken = take(self);
    self->serving = 0;
    return taken;
}

int call(client_t *self, int run(rd_kafka_t *, void *), void *argument) {
    int code;
    if (!is_open(self))
        return 0;
    self->calls++;
    Py_BEGIN_ALLOW_THREADS
    code = run(self->rk, argument);
    Py_END_ALLOW_THREADS
    self->calls--;
    if (code)
        raise_refused(self, code);
    return !code;
}

static int run_add_brokers(rd_kafka_t *rk, void *servers) { return rd.brokers_add(rk, servers) < 0; }

PyObject *add_brokers(PyObject *self, PyObject *servers) {
    const char *list = as_text("servers", servers);
    return list && call((client_t *)self, run_add_brokers, (void *)list) ? Py_NewRef(Py_None) : NULL;
}

/* ---- 4. A client's lifetime ---- */

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* In callbacks, the thread that closes or polls a consumer may use it. */
int is_open(const client_t *self) {
    unsigned long thread = PyThread_get_thread_ident();
    if (!self->closed && (!self->closing || self->closing == thread || self->serving == thread))
        return 1;
    raise_error(RD_KAFKA_RESP_ERR__DESTROY, "the client is closed", 0);
    return 0;
}

void destroy_client(client_t *self) {
    if (!self->rk || self->pid != getpid()) /* its threads exist only in the parent; destroying it waits for them */
        return;
    if (self->topic)
        rd.topic_destroy(self->topic);
    if (self->queue)
        rd.queue_destroy(self->queue);
    Py_BEGIN_ALLOW_THREADS
    rd.destroy_flags(self->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    Py_END_ALLOW_THREADS
}

PyObject *close_client(PyObject *self, PyObject *unused) {
    ((client_t *)self)->closed = 1;
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
    char text[512];
    while (PyDict_Next(options, &position, &name_object, &value_object)) {
        const char *name = as_text("an option's name", name_object);
        const char *value = name ? as_text("an option's value", value_object) : NULL;
        if (!value)
            return 0;
        if (rd.conf_set(conf, name, value, text, sizeof text) != RD_KAFKA_CONF_OK) {
            raise_error(RD_KAFKA_RESP_ERR__INVALID_ARG, text, 0);
            return 0;
        }
    }
    return 1;
}

client_t *new_client(PyTypeObject *type, PyObject *options, int kind, void set_callbacks(rd_kafka_conf_t *)) {
    char text[512];
    client_t *self = (client_t *)PyType_GenericNew(type, NULL, NULL);
    if (!self)
        return NULL;
    self->pid = getpid();
    pthread_mutex_init(&self->notices_lock, NULL);
    rd_kafka_conf_t *conf = rd.conf_new();
    if (set_options(conf, options)) {
        rd.conf_set_opaque(conf, self);
        rd.conf_set_error_cb(conf, on_error);
        rd.conf_set_log_cb(conf, on_log);
        set_callbacks(conf);
        Py_BEGIN_ALLOW_THREADS
        self->rk = rd.new(kind, conf, text, sizeof text);
        Py_END_ALLOW_THREADS
        if (self->rk)
            return self;
        raise_error(rd.last_error(), text, 0);
    }
    rd.conf_destroy(conf);
    Py_DECREF(self);
    return NULL;
}

/* ---- 5. The functions of librdkafka, and the module ---- */

#define RD_KAFKA_SYMBOL(name, result, parameters) "rd_kafka_" #name,
static const char *const symbols[] = {RD_KAFKA_FUNCTIONS(RD_KAFKA_SYMBOL)};
#define SYMBOL_COUNT (sizeof symbols / sizeof symbols[0])
_Static_assert(sizeof rd == SYMBOL_COUNT * sizeof(void *), "a pointer for each symbol");

/* Fills `rd` from the librdkafka that confluent-kafka uses. Returns 0 with ImportError. */
static int load_librdkafka(void) {
    void *functions[SYMBOL_COUNT];
    PyObject *client = PyImport_ImportModule("confluent_kafka.cimpl");
    PyObject *path = client ? PyObject_GetAttrString(client, "__file__") : NULL;
    const char *name = path ? PyUnicode_AsUTF8AndSize(path, NULL) : NULL;
    void *library = name ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL; /* the library remains loaded */
    if (name && !library)
        PyErr_Format(PyExc_ImportError, "%s is not loaded", name);
    for (size_t i = 0; library && i < SYMBOL_COUNT; i++) {
        functions[i] = dlsym(library, symbols[i]);
        if (!functions[i]) {
            PyErr_Format(PyExc_ImportError, "the library has no function %s", symbols[i]);
            library = NULL;
        }
    }
    if (library)
        memcpy(&rd, functions, sizeof rd);
    Py_XDECREF(path);
    Py_XDECREF(client);
    return library != NULL;
}

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_librdkafka",
    .m_size = -1,
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    return type && PyModule_AddType(module, type) ? NULL : type;
}

PyMODINIT_FUNC PyInit__librdkafka(void) {
    PyObject *module = load_librdkafka() ? PyModule_Create(&module_definition) : NULL;
    Error = module ? PyErr_NewException(MODULE ".Error", NULL, NULL) : NULL;
    if (Error && !PyModule_AddObjectRef(module, "Error", Error) &&
        !PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) && (rows_type = add_type(module, &rows_spec)) &&
        add_type(module, &producer_spec) && add_type(module, &consumer_spec))
        return module;
    Py_XDECREF(module);
    return NULL;
}
