package ddbseq

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"
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
func (m *memory) clock() time.Time                  { return time.Now() }

func (m *memory) peek(ctx context.Context, key string) (*item, error) { return m.get(ctx, key) }

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
		var from *big.Int
		if it.lastID != nil {
			from = bigOf(*it.lastID)
		} else {
			from = ch.origin()
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
		it.def, it.ver, it.v = ch.def.stored(), ch.ver, layoutVersion
	}
	if it.born == "" {
		it.born = ch.born
	}
	if ch.pin != nil {
		v := *ch.pin
		it.from = &v
	}
	if l := ch.limit; l != nil && l.roll {
		it.day, it.used = l.day, l.n
		if l.from != "" {
			it.days = l.days
		}
	} else if l != nil {
		if l.max == 0 && it.day == "" {
			it.day = l.day
		}
		it.used = addSat(it.used, l.n)
	}
	it.used -= ch.unuse
	it.totals.leased += ch.add.leased
	it.totals.issued += ch.add.issued
	it.totals.returned += ch.add.returned
	if ch.tune != nil {
		it.tune, it.paused = ch.tune, ch.tune.paused()
	}
	return nil
}

func (m *memory) page(ctx context.Context, prefix string, _ cursor) (out []listed, _ cursor, _ error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, m.canceled("Scan", "", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(m.items)) {
		if below(prefix, key) {
			it := m.items[key]
			out = append(out, listed{&it, it.sane(m.table())})
		}
	}
	return out, nil, nil
}

func below(prefix, key string) bool { return len(key) > len(prefix) && strings.HasPrefix(key, prefix) }
