package faultproxy_test

import (
	"encoding/json"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// refuse is an action by which a test sees that a rule fired.
var refuse = faultproxy.Error(http.StatusTeapot, "Refused", "")

// fired sends requests for op and key and returns which met refuse, as a
// string of x and dots.
func fired(t *testing.T, p *faultproxy.Proxy, n int, op, key string) string {
	t.Helper()
	var b strings.Builder
	for range n {
		resp, body, err := send(t.Context(), p, op, key)
		switch {
		case err != nil:
			t.Fatal(err)
		case resp.StatusCode == http.StatusTeapot:
			b.WriteByte('x')
		case resp.StatusCode == http.StatusOK:
			b.WriteByte('.')
		default:
			t.Fatalf("%d %s", resp.StatusCode, body)
		}
	}
	return b.String()
}

func TestRulesMatch(t *testing.T) {
	tests := []struct {
		name string
		rule faultproxy.Rule
		op   string
		key  string
		want string
	}{
		{"everything", faultproxy.Rule{}, "GetItem", "a", "xxxx"},
		{"the operation", faultproxy.Rule{Op: "GetItem"}, "GetItem", "a", "xxxx"},
		{"another operation", faultproxy.Rule{Op: "UpdateItem"}, "GetItem", "a", "...."},
		{"the key", faultproxy.Rule{Key: "a"}, "UpdateItem", "a", "xxxx"},
		{"another key", faultproxy.Rule{Key: "a"}, "UpdateItem", "b", "...."},
		{"the table", faultproxy.Rule{Table: "t"}, "UpdateItem", "a", "xxxx"},
		{"another table", faultproxy.Rule{Table: "u"}, "UpdateItem", "a", "...."},
		{"skip", faultproxy.Rule{Skip: 3}, "UpdateItem", "a", "...x"},
		{"count", faultproxy.Rule{Count: 2}, "UpdateItem", "a", "xx.."},
		{"skip and count", faultproxy.Rule{Skip: 1, Count: 2}, "UpdateItem", "a", ".xx."},
		{"certainty", faultproxy.Rule{Probability: 1}, "UpdateItem", "a", "xxxx"},
		{"function", faultproxy.Rule{Match: func(r *faultproxy.Request) bool { return r.Seq%2 == 0 }}, "UpdateItem", "a", ".x.x"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newProxy(t, newUpstream(t))
			test.rule.Action = refuse
			setRules(t, p, test.rule)
			if got := fired(t, p, 4, test.op, test.key); got != test.want {
				t.Errorf("fired %s, want %s", got, test.want)
			}
			if got, want := p.Count(test.op, test.key).Faulted, strings.Count(test.want, "x"); got != want {
				t.Errorf("counted %d faults, want %d", got, want)
			}
		})
	}
}

func TestCountsHoldForAllKeysOrForEach(t *testing.T) {
	p := newProxy(t, newUpstream(t))
	for _, perKey := range []bool{false, true} {
		setRules(t, p, faultproxy.Rule{Skip: 1, Count: 1, PerKey: perKey, Action: refuse})
		a, b := fired(t, p, 3, "UpdateItem", "a"), fired(t, p, 3, "UpdateItem", "b")
		want := ".x. ..."
		if perKey {
			want = ".x. .x."
		}
		if got := a + " " + b; got != want {
			t.Errorf("PerKey %v: fired %s, want %s", perKey, got, want)
		}
	}
}

func TestTheFirstRuleThatFiresDecides(t *testing.T) {
	p := newProxy(t, newUpstream(t))
	setRules(t, p,
		faultproxy.Rule{Key: "spared", Action: faultproxy.Pass()},
		faultproxy.Rule{Name: "first", Count: 1, Action: refuse},
		faultproxy.Rule{Action: faultproxy.Error(418, "Other", "")},
	)
	if got := fired(t, p, 2, "UpdateItem", "spared"); got != ".." {
		t.Errorf("exempted key: %s", got)
	}
	fired(t, p, 2, "UpdateItem", "a")
	log := p.Log()
	if log[0].Fault != "pass" || log[2].Fault != "first" || log[3].Fault != "reply 418 Other" {
		t.Errorf("faults: %q, %q, %q", log[0].Fault, log[2].Fault, log[3].Fault)
	}
	if n := p.Count("", "spared").Faulted; n != 0 {
		t.Errorf("%d faults counted for a pass", n)
	}
}

func TestDrawsDependOnTheSeedAndTheKeysOwnRequests(t *testing.T) {
	const n = 100
	run := func(seed uint64, keys ...string) map[string]string {
		p := newProxy(t, newUpstream(t), func(o *faultproxy.Options) { o.Seed = seed })
		setRules(t, p, faultproxy.Rule{Probability: 0.3, Action: refuse})
		got := make(map[string]string)
		for range n { // key by key in turn
			for _, key := range keys {
				got[key] += fired(t, p, 1, "UpdateItem", key)
			}
		}
		return got
	}
	alone, both, other := run(1, "a"), run(1, "b", "a"), run(2, "a")
	if alone["a"] != both["a"] {
		t.Errorf("the requests for b changed the faults of a:\n%s\n%s", alone["a"], both["a"])
	}
	if alone["a"] == other["a"] || both["a"] == both["b"] {
		t.Error("another seed or key makes no difference")
	}
	for _, s := range []string{alone["a"], both["b"], other["a"]} {
		if k := strings.Count(s, "x"); k < 15 || k > 45 { // 30 ± 3.3 standard deviations
			t.Errorf("%d of %d fired at probability 0.3", k, n)
		}
	}
}

func TestLimitIsATokenBucketForEachKey(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	p := newProxy(t, newUpstream(t), func(o *faultproxy.Options) { o.Now = func() time.Time { return now } })
	limit := faultproxy.Limit(4, 2)
	limit.Status = http.StatusTeapot
	always(t, p, limit)
	steps := []struct {
		after time.Duration
		op    string
		key   string
		n     int
		want  string
	}{
		{0, "UpdateItem", "a", 6, "....xx"},                  // a full bucket: one second's worth
		{0, "UpdateItem", "b", 5, "....x"},                   // another key has its own
		{0, "GetItem", "a", 5, "....x"},                      // so have reads, at half a unit each
		{250 * time.Millisecond, "UpdateItem", "a", 2, ".x"}, // a quarter of a second: one unit
		{time.Hour, "DeleteItem", "a", 5, "....x"},           // never more than the burst
		{-time.Hour, "UpdateItem", "a", 1, "x"},              // a clock that goes back adds nothing
		{0, "DescribeTable", "a", 3, "..."},                  // not an item's operation
	}
	for i, step := range steps {
		now = now.Add(step.after)
		if got := fired(t, p, step.n, step.op, step.key); got != step.want {
			t.Errorf("step %d, %s %s: %s, want %s", i, step.op, step.key, got, step.want)
		}
	}

	now = now.Add(48 * time.Hour)
	limit = faultproxy.Limit(4, 2)
	limit.Burst = faultproxy.Exactly(500 * time.Millisecond)
	always(t, p, limit)
	for range 2 {
		mustPass(t, p, "a")
	}
	_, body, err := update(t, p, "a")
	if err != nil || !strings.Contains(body, "#ThrottlingException") ||
		!strings.Contains(body, `"throttlingReasons":[{"reason":"TableWriteKeyRangeThroughputExceeded"`) {
		t.Errorf("%v %s", err, body)
	}
	if e := last(t, p); e.Applied != faultproxy.No {
		t.Errorf("throttled and applied: %+v", e)
	}
}

func TestKeyAttribute(t *testing.T) {
	bodies := map[string]string{
		`{"TableName":"t","Key":{"pk":{"S":"a"}}}`:                    "a|a",
		`{"TableName":"t","Key":{"pk":{"S":"a"},"sk":{"N":"1"}}}`:     "a|a",
		`{"TableName":"t","Key":{"pk":{"S":"a"},"sk":{"S":"b"}}}`:     "|a", // ambiguous without a name
		`{"TableName":"t","Key":{"pk":{"N":"7"}}}`:                    "|7",
		`{"TableName":"t","Key":{"pk":{"B":"AAE="}}}`:                 "|AAE=",
		`{"TableName":"t","Item":{"pk":{"S":"a"},"x":{"NULL":true}}}`: "|a",
		`{"TableName":"t"}`: "|",
		`not JSON`:          "|",
	}
	for body, want := range bodies {
		var got []string
		for _, attr := range []string{"", "pk"} {
			p := newProxy(t, newUpstream(t), func(o *faultproxy.Options) { o.KeyAttribute = attr })
			req, err := http.NewRequest(http.MethodPost, p.URL(), strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			got = append(got, last(t, p).Key)
		}
		if got := strings.Join(got, "|"); got != want {
			t.Errorf("%s: keys %q, want %q", body, got, want)
		}
	}
}

func TestParseRules(t *testing.T) {
	const file = `[
	  {"name": "lost replies", "op": "UpdateItem", "key": "boards.item", "table": "t", "skip": 1, "count": 2, "perKey": true,
	   "probability": 0.3, "action": {"kind": "close", "apply": true, "ending": "rst", "delayBefore": "5ms..1s", "delayAfter": "2ms"}},
	  {"action": {"kind": "limit", "writes": 1000, "reads": 3000, "burst": "300s", "code": "ProvisionedThroughputExceededException"}},
	  {"action": {"kind": "reply", "code": "ThrottlingException", "retryAfter": "1.5s", "reasons": [{"reason": "R"}]}},
	  {"action": {"kind": "late", "hold": "100ms"}}
	]`
	rules, err := faultproxy.ParseRules([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	want := faultproxy.Rule{
		Name: "lost replies", Op: "UpdateItem", Key: "boards.item", Table: "t", Skip: 1, Count: 2, PerKey: true, Probability: 0.3,
		Action: faultproxy.Action{
			Kind: faultproxy.KindClose, Apply: true, Ending: faultproxy.RST,
			DelayBefore: faultproxy.Between(5*time.Millisecond, time.Second),
			DelayAfter:  faultproxy.Exactly(2 * time.Millisecond),
		},
	}
	if !reflect.DeepEqual(rules[0], want) {
		t.Errorf("parsed %+v, want %+v", rules[0], want)
	}
	encoded, err := json.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	again, err := faultproxy.ParseRules(encoded)
	if err != nil || !reflect.DeepEqual(again, rules) {
		t.Errorf("rules do not survive encoding: %v\n%s", err, encoded)
	}
}

func TestBadRulesAreRefused(t *testing.T) {
	pass := faultproxy.Pass()
	with := func(change func(*faultproxy.Action)) faultproxy.Rule {
		a := pass
		change(&a)
		return faultproxy.Rule{Action: a}
	}
	bad := []faultproxy.Rule{
		{},
		{Action: faultproxy.Action{Kind: "explode"}},
		{Action: faultproxy.Action{Kind: faultproxy.KindMutate}},
		{Action: faultproxy.Limit(0, 0)},
		{Action: faultproxy.Limit(-1, 5)},
		{Action: faultproxy.Limit(1, 1).AfterApply()},
		{Action: faultproxy.Cut(-1, faultproxy.FIN)},
		{Action: faultproxy.Error(99, "X", "")},
		{Action: pass, Skip: -1},
		{Action: pass, Count: -1},
		{Action: pass, Probability: -0.1},
		{Action: pass, Probability: 1.1},
		{Action: pass, Probability: math.NaN()},
		with(func(a *faultproxy.Action) { a.Ending = "bang" }),
		with(func(a *faultproxy.Action) { a.Code, a.Body = "X", "y" }),
	}
	p := newProxy(t, newUpstream(t))
	for _, rule := range bad {
		if err := p.SetRules(rule); err == nil {
			t.Errorf("accepted %+v", rule)
		}
	}
	for _, text := range []string{
		``, `{}`, `[] []`, `[{"action":{"kind":"pass"},"propability":0.3}]`, `[{"action":{"kind":"pass","dleayBefore":"1s"}}]`,
		`[{"action":{"kind":"pass","delayBefore":"2s..1s"}}]`, `[{"action":{"kind":"pass","delayBefore":5}}]`, `[{"action":{"kind":"mutate"}}]`,
	} {
		if rules, err := faultproxy.ParseRules([]byte(text)); err == nil {
			t.Errorf("accepted %s as %+v", text, rules)
		}
	}
	if _, err := faultproxy.New("127.0.0.1:8000"); err == nil {
		t.Error("accepted an upstream without a scheme")
	}
	if _, err := faultproxy.New("http://127.0.0.1:1", func(o *faultproxy.Options) { o.Rules = bad[:1] }); err == nil {
		t.Error("New accepted a bad rule")
	}
}

func TestControlPath(t *testing.T) {
	p := newProxy(t, newUpstream(t))
	do := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, p.URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Content-Type")
	}
	if code, _ := do(http.MethodPut, "/__faults", `[{"op":"UpdateItem","action":{"kind":"reply","status":418}}]`); code != http.StatusNoContent {
		t.Fatalf("PUT: %d", code)
	}
	if got := fired(t, p, 2, "UpdateItem", "a") + fired(t, p, 1, "GetItem", "a"); got != "xx." {
		t.Errorf("fired %s", got)
	}
	if code, typ := do(http.MethodGet, "/__faults", ""); code != http.StatusOK || typ != "application/json" {
		t.Errorf("GET: %d %s", code, typ)
	}
	if code, _ := do(http.MethodPut, "/__faults", `[{"action":{"kind":"explode"}}]`); code != http.StatusBadRequest {
		t.Errorf("PUT of nonsense: %d", code)
	}
	if code, _ := do(http.MethodPost, "/__faults", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	if code, _ := do(http.MethodPost, "/__faults/release", ""); code != http.StatusOK {
		t.Errorf("release: %d", code)
	}
	if log := p.Log(); len(log) != 3 {
		t.Errorf("the log has control requests: %+v", log)
	}
}
