/* SPDX-License-Identifier: Apache-2.0 */
/* The part of librdkafka's binary interface that this extension uses, unchanged since librdkafka 1.6.
 *
 * It uses the library that confluent-kafka has loaded: the build needs no header, and functions are resolved at run
 * time and stored in the table `rd`. */

#ifndef MONASCA_RDKAFKA_ABI_H
#define MONASCA_RDKAFKA_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_consumer_group_metadata_s rd_kafka_consumer_group_metadata_t;

/* Values of librdkafka's enumerations, in librdkafka's order. */
enum { RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };
enum { RD_KAFKA_CONF_OK = 0 };
enum {
    RD_KAFKA_RESP_ERR__DESTROY = -197,
    RD_KAFKA_RESP_ERR__PARTITION_EOF = -191,
    RD_KAFKA_RESP_ERR__INVALID_ARG = -186,
    RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS = -175,
    RD_KAFKA_RESP_ERR__FATAL = -150,
};
enum { RD_KAFKA_TIMESTAMP_NOT_AVAILABLE = 0 };
enum {
    RD_KAFKA_VTYPE_END = 0,
    RD_KAFKA_VTYPE_RKT = 2,       /* rd_kafka_topic_t * */
    RD_KAFKA_VTYPE_PARTITION = 3, /* int32_t */
    RD_KAFKA_VTYPE_VALUE = 4,     /* void *, size_t */
    RD_KAFKA_VTYPE_KEY = 5,       /* void *, size_t */
    RD_KAFKA_VTYPE_OPAQUE = 6,    /* void * */
    RD_KAFKA_VTYPE_MSGFLAGS = 7,  /* int */
    RD_KAFKA_VTYPE_TIMESTAMP = 8, /* int64_t */
    RD_KAFKA_VTYPE_HEADER = 9,    /* const char *, const void *, ssize_t */
    RD_KAFKA_VTYPE_HEADERS = 10,  /* rd_kafka_headers_t *, which the message then owns */
};

#define RD_KAFKA_MSG_F_COPY 0x2
#define RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE 0x8
#define RD_KAFKA_PURGE_F_QUEUE 0x1
#define RD_KAFKA_PURGE_F_INFLIGHT 0x2
#define RD_KAFKA_PURGE_F_NON_BLOCKING 0x4

typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque; /* `_private` in librdkafka */
} rd_kafka_message_t;

typedef struct rd_kafka_topic_partition_s {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *reserved; /* `_private` in librdkafka */
} rd_kafka_topic_partition_t;

typedef struct {
    int cnt, size;
    rd_kafka_topic_partition_t *elems;
} rd_kafka_partitions_t; /* `rd_kafka_topic_partition_list_t` in librdkafka */

typedef void rd_kafka_dr_msg_cb_t(rd_kafka_t *, const rd_kafka_message_t *, void *opaque);
typedef void rd_kafka_rebalance_cb_t(rd_kafka_t *, int err, rd_kafka_partitions_t *, void *opaque); /* and commits */
typedef void rd_kafka_error_cb_t(rd_kafka_t *, int err, const char *reason, void *opaque);
typedef void rd_kafka_log_cb_t(const rd_kafka_t *, int level, const char *facility, const char *text);

/* F(name without rd_kafka_, result, parameters) */
#define RD_KAFKA_FUNCTIONS(F)                                                                                          \
    F(conf_new, rd_kafka_conf_t *, (void))                                                                             \
    F(conf_destroy, void, (rd_kafka_conf_t *))                                                                         \
    F(conf_set, int, (rd_kafka_conf_t *, const char *name, const char *value, char *error, size_t error_size))         \
    F(conf_set_opaque, void, (rd_kafka_conf_t *, void *))                                                              \
    F(conf_set_dr_msg_cb, void, (rd_kafka_conf_t *, rd_kafka_dr_msg_cb_t *))                                           \
    F(conf_set_error_cb, void, (rd_kafka_conf_t *, rd_kafka_error_cb_t *))                                             \
    F(conf_set_log_cb, void, (rd_kafka_conf_t *, rd_kafka_log_cb_t *))                                                 \
    F(new, rd_kafka_t *, (int kind, rd_kafka_conf_t *, char *error, size_t error_size))                                \
    F(destroy_flags, void, (rd_kafka_t *, int flags))                                                                  \
    F(opaque, void *, (const rd_kafka_t *))                                                                            \
    F(name, const char *, (const rd_kafka_t *))                                                                        \
    F(brokers_add, int, (rd_kafka_t *, const char *servers))                                                           \
    F(poll, int, (rd_kafka_t *, int timeout_ms))                                                                       \
    F(flush, int, (rd_kafka_t *, int timeout_ms))                                                                      \
    F(purge, int, (rd_kafka_t *, int flags))                                                                           \
    F(producev, int, (rd_kafka_t *, ...))                                                                              \
    F(err2str, const char *, (int err))                                                                                \
    F(fatal_error, int, (rd_kafka_t *, char *error, size_t error_size))                                                \
    F(topic_new, rd_kafka_topic_t *, (rd_kafka_t *, const char *name, void *conf))                                     \
    F(topic_destroy, void, (rd_kafka_topic_t *))                                                                       \
    F(topic_name, const char *, (const rd_kafka_topic_t *))                                                            \
    F(last_error, int, (void))                                                                                         \
    F(headers_new, rd_kafka_headers_t *, (size_t count))                                                               \
    F(headers_destroy, void, (rd_kafka_headers_t *))                                                                   \
    F(header_add, int, (rd_kafka_headers_t *, const char *name, ssize_t name_size, const void *, ssize_t size))        \
    F(message_timestamp, int64_t, (const rd_kafka_message_t *, int *kind))                                             \
    F(message_produce_errstr, const char *, (const rd_kafka_message_t *))                                              \
    F(conf_set_rebalance_cb, void, (rd_kafka_conf_t *, rd_kafka_rebalance_cb_t *))                                     \
    F(poll_set_consumer, int, (rd_kafka_t *))                                                                          \
    F(queue_get_consumer, rd_kafka_queue_t *, (rd_kafka_t *))                                                          \
    F(queue_destroy, void, (rd_kafka_queue_t *))                                                                       \
    F(consumer_poll, rd_kafka_message_t *, (rd_kafka_t *, int timeout_ms))                                             \
    F(consume_batch_queue, ssize_t, (rd_kafka_queue_t *, int timeout_ms, rd_kafka_message_t **, size_t))               \
    F(consumer_close, int, (rd_kafka_t *))                                                                             \
    F(message_destroy, void, (rd_kafka_message_t *))                                                                   \
    F(message_errstr, const char *, (const rd_kafka_message_t *))                                                      \
    F(message_headers, int, (const rd_kafka_message_t *, rd_kafka_headers_t **))                                       \
    F(header_cnt, size_t, (const rd_kafka_headers_t *))                                                                \
    F(header_get_all, int, (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    F(header_get_last, int, (const rd_kafka_headers_t *, const char *name, const void **, size_t *))                   \
    F(assignment_lost, int, (rd_kafka_t *))                                                                            \
    F(rebalance_protocol, const char *, (rd_kafka_t *))                                                                \
    F(topic_partition_list_new, rd_kafka_partitions_t *, (int size))                                                   \
    F(topic_partition_list_copy, rd_kafka_partitions_t *, (const rd_kafka_partitions_t *))                             \
    F(topic_partition_list_add, rd_kafka_topic_partition_t *, (rd_kafka_partitions_t *, const char *, int32_t))        \
    F(topic_partition_list_destroy, void, (rd_kafka_partitions_t *))                                                   \
    F(subscribe, int, (rd_kafka_t *, const rd_kafka_partitions_t *))                                                   \
    F(unsubscribe, int, (rd_kafka_t *))                                                                                \
    F(assign, int, (rd_kafka_t *, const rd_kafka_partitions_t *))                                                      \
    F(incremental_assign, rd_kafka_error_t *, (rd_kafka_t *, const rd_kafka_partitions_t *))                           \
    F(incremental_unassign, rd_kafka_error_t *, (rd_kafka_t *, const rd_kafka_partitions_t *))                         \
    F(assignment, int, (rd_kafka_t *, rd_kafka_partitions_t **))                                                       \
    F(pause_partitions, int, (rd_kafka_t *, rd_kafka_partitions_t *))                                                  \
    F(resume_partitions, int, (rd_kafka_t *, rd_kafka_partitions_t *))                                                 \
    F(seek_partitions, rd_kafka_error_t *, (rd_kafka_t *, rd_kafka_partitions_t *, int timeout_ms))                    \
    F(position, int, (rd_kafka_t *, rd_kafka_partitions_t *))                                                          \
    F(committed, int, (rd_kafka_t *, rd_kafka_partitions_t *, int timeout_ms))                                         \
    F(offsets_for_times, int, (rd_kafka_t *, rd_kafka_partitions_t *, int timeout_ms))                                 \
    F(commit_queue, int, (rd_kafka_t *, rd_kafka_partitions_t *, void *queue, rd_kafka_rebalance_cb_t *, void *))      \
    F(get_watermark_offsets, int, (rd_kafka_t *, const char *, int32_t, int64_t *low, int64_t *high))                  \
    F(consumer_group_metadata, rd_kafka_consumer_group_metadata_t *, (rd_kafka_t *))                                   \
    F(consumer_group_metadata_write, rd_kafka_error_t *, (rd_kafka_consumer_group_metadata_t *, void **, size_t *))    \
    F(consumer_group_metadata_destroy, void, (rd_kafka_consumer_group_metadata_t *))                                   \
    F(mem_free, void, (rd_kafka_t *, void *))                                                                          \
    F(error_code, int, (const rd_kafka_error_t *))                                                                     \
    F(error_destroy, void, (rd_kafka_error_t *))

#define RD_KAFKA_MEMBER(name, result, parameters) result(*name) parameters;
struct rd_kafka_functions {
    RD_KAFKA_FUNCTIONS(RD_KAFKA_MEMBER)
};

#endif
