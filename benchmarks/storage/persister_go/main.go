// SPDX-License-Identifier: Apache-2.0

// A persister in Go: consume, parse, COPY the rows in one transaction, then commit their offsets to Kafka.
//
// It stores each row at least once while one process owns the topic. Redelivered rows violate the primary key, which
// ends the program; with -conflict they are ignored. It checks only types, and the first error ends it.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"log"
	"maps"
	"math"
	"slices"

	"github.com/bytedance/sonic"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	batchSize    = 20_000
	ahead        = 2 // maximum number of batches between the parsing and the storing goroutine
	rowBytes     = 62
	header       = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	trailer      = "\xff\xff"
	insertSeries = "INSERT INTO series VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
	createStaged = "CREATE TEMPORARY TABLE staged (LIKE measurements) ON COMMIT DELETE ROWS"
	insertStaged = "INSERT INTO measurements SELECT * FROM staged ON CONFLICT DO NOTHING"
)

type envelope struct {
	Metric struct {
		Name       string                 `json:"name"`
		Dimensions sonic.NoCopyRawMessage `json:"dimensions"`
		Timestamp  int64                  `json:"timestamp"`
		Value      float64                `json:"value"`
	} `json:"metric"`
	Meta         sonic.NoCopyRawMessage `json:"meta"`
	CreationTime int64                  `json:"creation_time"`
}

type batch struct {
	rows   [][]byte // encoded
	series pgx.Batch
	last   map[int32]*kgo.Record // by partition
}

func main() {
	conflict := flag.Bool("conflict", false, "ignore rows that exist")
	flag.Parse()
	servers, topic, group, url := flag.Arg(0), flag.Arg(1), flag.Arg(2), flag.Arg(3)
	ctx := context.Background()
	connection := must(pgx.Connect(ctx, url))
	table := "measurements"
	if *conflict {
		table = "staged"
		must(connection.Exec(ctx, createStaged))
	}
	client := must(kgo.NewClient(kgo.SeedBrokers(servers), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit()))
	batches := make(chan *batch, ahead)
	go parseAll(ctx, client, batches)
	for parsed := range batches {
		source := bytes.NewReader(slices.Concat([]byte(header), bytes.Join(parsed.rows, nil), []byte(trailer)))
		transaction := must(connection.Begin(ctx))
		check(transaction.SendBatch(ctx, &parsed.series).Close())
		must(connection.PgConn().CopyFrom(ctx, source, "COPY "+table+" FROM STDIN (FORMAT BINARY)"))
		if *conflict {
			must(transaction.Exec(ctx, insertStaged))
		}
		check(transaction.Commit(ctx))
		check(client.CommitRecords(ctx, slices.Collect(maps.Values(parsed.last))...))
	}
}

func parseAll(ctx context.Context, client *kgo.Client, batches chan<- *batch) {
	known := map[string][]byte{} // the ids of series
	var key []byte
	for {
		parsed := &batch{last: map[int32]*kgo.Record{}}
		fetches := client.PollRecords(ctx, batchSize)
		check(fetches.Err())
		for _, record := range fetches.Records() {
			var message envelope
			check(sonic.ConfigFastest.Unmarshal(record.Value, &message))
			key = append(append(key[:0], message.Metric.Name...), 0)
			key = append(append(key, message.Metric.Dimensions...), message.Meta...)
			id := known[string(key)]
			if id == nil {
				id = parsed.addSeries(&message)
				known[string(key)] = id
			}
			parsed.rows = append(parsed.rows, encode(id, &message))
			parsed.last[record.Partition] = record
		}
		slices.SortFunc(parsed.rows, bytes.Compare)
		batches <- parsed
	}
}

func (b *batch) addSeries(message *envelope) []byte {
	var meta struct{ TenantID, Region string }
	var dimensions map[string]string
	check(sonic.Unmarshal(message.Meta, &meta))
	check(sonic.Unmarshal(message.Metric.Dimensions, &dimensions))
	parts := []string{meta.TenantID, meta.Region, message.Metric.Name}
	for _, name := range slices.Sorted(maps.Keys(dimensions)) {
		parts = append(parts, name, dimensions[name])
	}
	digest := sha256.New()
	for _, part := range parts {
		digest.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(part))), part...))
	}
	id := digest.Sum(nil)[:16]
	b.series.Queue(insertSeries, id, parts[0], parts[1], parts[2], string(message.Metric.Dimensions))
	return id
}

// encode returns series_id, time, value, value_meta (NULL) and version, each after its length.
func encode(id []byte, message *envelope) []byte {
	order := binary.BigEndian
	row := append(order.AppendUint32(order.AppendUint16(make([]byte, 0, rowBytes), 5), 16), id...)
	row = order.AppendUint64(order.AppendUint32(row, 8), uint64(message.Metric.Timestamp))
	row = order.AppendUint64(order.AppendUint32(row, 8), math.Float64bits(message.Metric.Value))
	row = order.AppendUint32(row, math.MaxUint32)
	return order.AppendUint64(order.AppendUint32(row, 8), uint64(message.CreationTime*1000))
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
