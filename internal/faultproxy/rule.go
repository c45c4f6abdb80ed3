package faultproxy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Rule says which requests meet which fault.
type Rule struct {
	// Name stands in the log in place of the action's own description.
	Name string `json:"name,omitempty"`

	// Op, Table and Key are what the request must have: the operation's name
	// (such as UpdateItem), the table and the value of the partition key.
	// Empty matches all.
	Op    string `json:"op,omitempty"`
	Table string `json:"table,omitempty"`
	Key   string `json:"key,omitempty"`
	// Match narrows the match further. It runs under the proxy's lock, one
	// request at a time, so it may count, and must not call the proxy. Go only.
	Match func(*Request) bool `json:"-"`

	// Skip is how many matching requests the rule lets go first.
	Skip int `json:"skip,omitempty"`
	// Count is how many times the rule fires. Zero does not bound it.
	Count int `json:"count,omitempty"`
	// PerKey makes Skip and Count hold for each operation and key on its own.
	PerKey bool `json:"perKey,omitempty"`
	// Probability is how often a request that has passed all of the above
	// meets the fault. Zero means always: to inject nothing, leave the rule out.
	Probability float64 `json:"probability,omitempty"`

	Action Action `json:"action"`
}

// ParseRules reads rules from a JSON array. Unknown fields are errors, so that
// a misspelt one does not quietly match everything.
func ParseRules(data []byte) ([]Rule, error) {
	var rules []Rule
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rules); err != nil {
		return nil, fmt.Errorf("faultproxy: rules: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("faultproxy: rules: text after the array")
	}
	if _, err := newRuleSet(rules, 0); err != nil {
		return nil, err
	}
	return rules, nil
}

// scope is what rules and counters tell apart.
type scope struct{ op, table, key string }

// tally counts the matches and the firings of one rule.
type tally struct{ matched, fired int }

type ruleState struct {
	Rule
	total   tally
	scopes  map[scope]*tally
	buckets map[bucketKey]*bucket
}

// ruleSet is a list of rules and what they remember. The proxy's lock guards it.
type ruleSet struct {
	seed  uint64
	rules []*ruleState
}

func newRuleSet(rules []Rule, seed uint64) (*ruleSet, error) {
	rs := &ruleSet{seed: seed}
	for i, r := range rules {
		err := r.Action.complete()
		switch {
		case err != nil:
		case r.Skip < 0 || r.Count < 0:
			err = errors.New("skip and count must not be negative")
		case !(r.Probability >= 0 && r.Probability <= 1): // refuses NaN too
			err = fmt.Errorf("probability %v is not in [0, 1]", r.Probability)
		}
		if err != nil {
			return nil, fmt.Errorf("faultproxy: rule %d %s: %w", i, r.Name, err)
		}
		rs.rules = append(rs.rules, &ruleState{
			Rule:    r,
			scopes:  make(map[scope]*tally),
			buckets: make(map[bucketKey]*bucket),
		})
	}
	return rs, nil
}

// plain returns the rules as they were given, defaults filled in.
func (rs *ruleSet) plain() []Rule {
	rules := make([]Rule, len(rs.rules))
	for i, r := range rs.rules {
		rules[i] = r.Rule
	}
	return rules
}

// fault is the outcome for one request.
type fault struct {
	rule   *Rule // nil: no rule fired
	action Action
	// draw gives the random part of the action: same request, same draw.
	draw func(salt string) float64
}

// decide finds the rule that fires for req at now.
func (rs *ruleSet) decide(req *Request, now time.Time) fault {
	sc := scope{req.Op, req.Table, req.Key}
	for i, r := range rs.rules {
		if !r.matches(req) {
			continue
		}
		t := r.scopes[sc]
		if t == nil {
			t = new(tally)
			r.scopes[sc] = t
		}
		t.matched++
		r.total.matched++
		nth := t.matched
		bounds := &r.total
		if r.PerKey {
			bounds = t
		}
		if bounds.matched <= r.Skip || (r.Count > 0 && bounds.fired >= r.Count) {
			continue
		}
		draw := func(salt string) float64 { return uniform(rs.seed, i, sc, nth, salt) }
		if r.Probability > 0 && draw("fire") >= r.Probability {
			continue
		}
		action := r.Action
		if action.Kind == KindLimit && !r.exceeds(req, now, &action) {
			continue
		}
		t.fired++
		r.total.fired++
		return fault{rule: &r.Rule, action: action, draw: draw}
	}
	return fault{action: Pass(), draw: func(string) float64 { return 0 }}
}

func (r *ruleState) matches(req *Request) bool {
	return (r.Op == "" || r.Op == req.Op) &&
		(r.Table == "" || r.Table == req.Table) &&
		(r.Key == "" || r.Key == req.Key) &&
		(r.Match == nil || r.Match(req))
}

// uniform returns a number in [0, 1) that is a pure function of its arguments.
// A generator shared by all requests would make the faults of one key depend on
// when the requests for the others arrive. The table is left out: tests make up
// its name.
func uniform(seed uint64, rule int, sc scope, nth int, salt string) float64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %q %q %d %s", seed, rule, sc.op, sc.key, nth, salt))
	return float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53)
}
