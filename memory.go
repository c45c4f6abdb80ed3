package ddbseq

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
)

// Memory returns a Store in the memory of this process, for tests and trials.
// It keeps the same promises as a DynamoDB table, except that its content ends
// with the process. Allocators made on it have [Options.CreateMissing] on by
// default.
func Memory() *Store {
	return &Store{backend: &memory{items: map[string]item{}}}
}

type memory struct {
	mu    sync.Mutex
	items map[string]item // values; never shared with callers
}

func (m *memory) table() string                     { return "memory" }
func (m *memory) check() error                      { return nil }
func (m *memory) createTable(context.Context) error { return nil }

func (m *memory) get(ctx context.Context, key string) (*item, error) {
	if err := ctx.Err(); err != nil {
		return nil, m.canceled("GetItem", key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	it, ok := m.items[key]
	if !ok {
		return nil, nil
	}
	return &it, it.sane(m.table())
}

func (m *memory) apply(ctx context.Context, ch *change) (*item, error) {
	if err := ctx.Err(); err != nil {
		return nil, m.canceled("UpdateItem", ch.key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var old *item
	if it, ok := m.items[ch.key]; ok {
		old = &it
	}
	if ch.judge(old) != verdictOK {
		if old != nil {
			if err := old.sane(m.table()); err != nil {
				return nil, err
			}
		}
		return nil, &conditionError{old: old}
	}
	it := item{key: ch.key}
	if old != nil {
		it = *old
	}
	if err := ch.effect(&it); err != nil {
		return nil, err
	}
	m.items[ch.key] = it
	return &it, nil
}

func (m *memory) canceled(op, key string, err error) error {
	return &LeaseError{Sequence: key, Table: m.table(), Op: op, Err: err}
}

// effect carries out what ch does to the item, in the way of an UpdateItem:
// every expression sees the item as it was before.
func (ch *change) effect(it *item) error {
	switch {
	case ch.move != nil:
		from := ch.origin()
		if it.lastID != nil {
			from = bigOf(*it.lastID)
		}
		sum := new(big.Int).Add(from, ch.move)
		if !sum.IsInt64() {
			return &corruptError{key: ch.key, table: "memory", what: fmt.Sprintf("lastID would be %s", sum)}
		}
		v := sum.Int64()
		it.lastID, it.at, it.from = &v, &v, nil
	case ch.set != nil:
		v := *ch.set
		it.lastID, it.at, it.from = &v, &v, nil
	case ch.clear != nil:
		v := *ch.clear
		it.lastID, it.at, it.from = nil, nil, &v
	case ch.follow:
		it.at = it.lastID
	}
	if ch.touches() {
		it.n, it.tok = ch.n, ch.token
	} else if ch.create {
		it.tok = ch.token
	}
	if ch.epoch > 0 {
		it.epoch = ch.epoch
	}
	if ch.def != nil {
		it.def, it.ver, it.v = *ch.def, ch.ver, layoutVersion
	}
	if it.born == "" {
		it.born = ch.born
	}
	if ch.pin != nil {
		v := *ch.pin
		it.from = &v
	}
	return nil
}

func (m *memory) list(ctx context.Context, prefix string) iter.Seq2[*item, error] {
	return func(yield func(*item, error) bool) {
		m.mu.Lock()
		keys := slices.Sorted(maps.Keys(m.items))
		m.mu.Unlock()
		for _, key := range keys {
			if !below(prefix, key) {
				continue
			}
			it, err := m.get(ctx, key)
			if it == nil && err == nil {
				continue // deleted since
			}
			if !yield(it, err) {
				return
			}
		}
	}
}

func below(prefix, key string) bool { return len(key) > len(prefix) && strings.HasPrefix(key, prefix) }
