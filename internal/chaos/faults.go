package main

import (
	"bytes"
	"time"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// faultRules returns rules that make the given share of all calls fail, each in
// one of the ways below. Weights say how often one is drawn, compared with the
// others.
func faultRules(share float64) []faultproxy.Rule {
	between := func(lo, hi int) faultproxy.Span {
		return faultproxy.Between(time.Duration(lo)*time.Millisecond, time.Duration(hi)*time.Millisecond)
	}
	at := func(after faultproxy.Span, a faultproxy.Action) faultproxy.Action {
		a.DelayAfter = after
		return a
	}
	refusal := faultproxy.Throttle("ThrottlingException")
	refusal.RetryAfter = between(1, 100)
	hangUp := faultproxy.Reset()
	hangUp.Ending = faultproxy.FIN
	hole := faultproxy.Blackhole()
	internal := faultproxy.Error(500, "InternalServerError", "chaos")
	unavailable := faultproxy.Error(503, "ServiceUnavailable", "chaos")
	faults := []struct {
		weight float64
		name   string
		action faultproxy.Action
	}{
		// The write is not made.
		{2, "throttle", faultproxy.Throttle("ProvisionedThroughputExceededException")},
		{2, "throttle with reasons", faultproxy.Throttle("ThrottlingException", "TableWriteKeyRangeThroughputExceeded")},
		{1, "request limit", faultproxy.Throttle("RequestLimitExceeded")},
		{1, "throttle with retry-after", refusal},
		{1, "500", internal},
		{1, "503", unavailable},
		{1, "502 HTML", faultproxy.Raw(502, "text/html", "<html>Bad Gateway</html>")},
		{1, "conflict", faultproxy.Error(400, "TransactionConflictException", "chaos")},
		{1, "replicated conflict", faultproxy.Error(400, "ReplicatedWriteConflictException", "chaos")},
		{1, "empty 200", faultproxy.Empty()},
		{2, "reset", faultproxy.Reset()},
		{1, "hang up", hangUp},
		{1, "blackhole", hole},
		// It is made, and the answer is lost.
		{2, "500 after apply", internal.AfterApply()},
		{1, "503 after apply", unavailable.AfterApply()},
		{2, "empty 200 after apply", faultproxy.Empty().AfterApply()},
		{1, "{} after apply", faultproxy.Raw(200, "", "{}").AfterApply()},
		{3, "drop FIN", faultproxy.Drop(faultproxy.FIN)},
		{3, "drop RST", faultproxy.Drop(faultproxy.RST)},
		{1, "cut FIN", faultproxy.Cut(40, faultproxy.FIN)},
		{1, "cut RST", faultproxy.Cut(120, faultproxy.RST)},
		{2, "blackhole after apply", hole.AfterApply()},
		{1, "late reply", faultproxy.Delay(faultproxy.Span{}, between(100, 800))},
		{1, "late 500", at(between(50, 500), internal.AfterApply())},
		// It is made later, perhaps after its sender gave up, or is gone.
		{2, "delay", faultproxy.Delay(between(50, 800), faultproxy.Span{})},
		{3, "late", faultproxy.Late(between(100, 3000))},
		{1, "late at a bad moment", faultproxy.Late(faultproxy.Span{})}, // until Release
	}
	// A read that is answered with {} is told that there is no item.
	writes := map[string]bool{"{} after apply": true}
	var sum float64
	for _, f := range faults {
		sum += f.weight
	}
	// Give-backs are few, and their lost and late ones the most dangerous: these
	// come on top.
	giveBack := func(r *faultproxy.Request) bool { return bytes.Contains(r.Body, []byte(`":holds"`)) }
	rules := []faultproxy.Rule{
		{Name: "give-back: blackhole after apply", Op: "UpdateItem", Match: giveBack, Probability: share / 2, Action: hole.AfterApply()},
		{Name: "give-back: late", Op: "UpdateItem", Match: giveBack, Probability: share / 2, Action: faultproxy.Late(between(100, 1500))},
	}
	if share == 0 {
		return nil
	}
	// The first rule that fires decides, so that each is drawn among those that
	// are left.
	left := 1.0
	for _, f := range faults {
		p := share * f.weight / sum
		rule := faultproxy.Rule{Name: f.name, Probability: p / left, Action: f.action}
		if writes[f.name] {
			rule.Op = "UpdateItem"
		}
		rules = append(rules, rule)
		left -= p
	}
	return rules
}
