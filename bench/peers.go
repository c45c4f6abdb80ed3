package main

import (
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/dgraph-io/badger/v4"
	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"
	"github.com/rs/xid"
	"github.com/segmentio/ksuid"
	"github.com/sony/sonyflake/v2"
)

// lease is the block that everything takes that leases blocks and can be told
// how large: large, so that leasing weighs nothing.
const lease = 1_000_000

// The IDs of some peers are larger than an int64. They are stored too, or the
// compiler would leave out the work.
var (
	wide16 [256]struct {
		id [16]byte
		_  [112]byte
	}
	wide20 [256]struct {
		id [20]byte
		_  [108]byte
	}
)

// peers are libraries that make IDs in the process.
func peers() []contender {
	return []contender{
		{name: "badger v4 Sequence", kind: peer, open: openBadger},
		// It makes 256 IDs in 10 ms, and snowflake 4,096 in 1 ms.
		{name: "sonyflake v2", kind: peer, slice: 40 * time.Millisecond, open: func() (loop, func(), error) {
			s, err := sonyflake.New(sonyflake.Settings{MachineID: func() (int, error) { return 1, nil }})
			if err != nil {
				return nil, nil, err
			}
			return func(w *worker, n int) error {
				for range n {
					id, err := s.NextID()
					if err != nil {
						return err
					}
					w.out = id
				}
				return nil
			}, noEnd, nil
		}},
		{name: "bwmarrin/snowflake", kind: peer, slice: 5 * time.Millisecond, open: func() (loop, func(), error) {
			node, err := snowflake.NewNode(1)
			if err != nil {
				return nil, nil, err
			}
			return func(w *worker, n int) error {
				for range n {
					w.out = node.Generate().Int64()
				}
				return nil
			}, noEnd, nil
		}},
		{name: "rs/xid", kind: peer, open: func() (loop, func(), error) {
			return func(w *worker, n int) error {
				out := &wide16[w.index].id
				for range n {
					id := xid.New()
					copy(out[:], id[:])
				}
				return nil
			}, noEnd, nil
		}},
		{name: "google/uuid v7", kind: peer, open: func() (loop, func(), error) {
			return func(w *worker, n int) error {
				out := &wide16[w.index].id
				for range n {
					id, err := uuid.NewV7()
					if err != nil {
						return err
					}
					*out = id
				}
				return nil
			}, noEnd, nil
		}},
		{name: "oklog/ulid v2", kind: peer, open: func() (loop, func(), error) {
			return func(w *worker, n int) error {
				out := &wide16[w.index].id
				for range n {
					*out = ulid.Make()
				}
				return nil
			}, noEnd, nil
		}},
		{name: "segmentio/ksuid", kind: peer, open: func() (loop, func(), error) {
			return func(w *worker, n int) error {
				out := &wide20[w.index].id
				for range n {
					id, err := ksuid.NewRandom()
					if err != nil {
						return err
					}
					*out = id
				}
				return nil
			}, noEnd, nil
		}},
	}
}

func openBadger() (loop, func(), error) {
	db, err := badger.Open(badger.DefaultOptions("").WithInMemory(true).WithLoggingLevel(badger.ERROR))
	if err != nil {
		return nil, nil, err
	}
	seq, err := db.GetSequence([]byte("orders"), lease)
	if err != nil {
		return nil, nil, err
	}
	return func(w *worker, n int) error {
		for range n {
			id, err := seq.Next()
			if err != nil {
				return err
			}
			w.out = int64(id)
		}
		return nil
	}, func() { _ = db.Close() }, nil // in memory: nothing to lose
}
