package faultproxy

import "time"

type bucketKey struct {
	table, key string
	write      bool
}

// bucket is a token bucket: it fills at a rate up to a depth.
type bucket struct {
	tokens float64
	last   time.Time
}

// take removes cost tokens at now, or nothing and reports false. A clock that
// goes back adds nothing.
func (b *bucket) take(now time.Time, rate, depth, cost float64) bool {
	if d := now.Sub(b.last); d > 0 {
		b.tokens = min(depth, b.tokens+rate*d.Seconds())
		b.last = now
	}
	if b.tokens < cost {
		return false
	}
	b.tokens -= cost
	return true
}

// exceeds takes what req costs from the bucket of its key and reports whether
// there was too little. Then it completes action with the reason for it.
func (r *ruleState) exceeds(req *Request, now time.Time, action *Action) bool {
	write, cost := req.cost()
	rate, reason := action.Reads, "TableReadKeyRangeThroughputExceeded"
	if write {
		rate, reason = action.Writes, "TableWriteKeyRangeThroughputExceeded"
	}
	if cost == 0 || rate == 0 || req.Key == "" {
		return false
	}
	// A bucket holds one whole request at least, else a rate below one unit a
	// second would never grant any.
	depth := max(rate*action.Burst.Min.Seconds(), 1)
	k := bucketKey{req.Table, req.Key, write}
	b := r.buckets[k]
	if b == nil {
		b = &bucket{tokens: depth, last: now}
		r.buckets[k] = b
	}
	if b.take(now, rate, depth, cost) {
		return false
	}
	if action.Reasons == nil {
		action.Reasons = []Reason{{Reason: reason}}
	}
	return true
}

// cost returns what req takes from the limit of its key, 0 for an operation
// that has none. Items are taken to be small: one unit each.
func (req *Request) cost() (write bool, units float64) {
	switch req.Op {
	case "UpdateItem", "PutItem", "DeleteItem":
		return true, 1
	case "GetItem", "Query":
		if req.consistent {
			return false, 1
		}
		return false, 0.5
	default:
		return false, 0
	}
}
