package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// report checks the run and prints what it amounts to.
func (c *chaos) report(final []state, stdout, stderr io.Writer) error {
	entries := c.proxy.Log()
	wrong, unknown := compare(entries, c.gate.writes, c.specs)
	result := check(c.specs, c.gate.writes, c.processes, final)
	violations := append(append(c.violations, c.gate.problems...), wrong...)
	violations = append(violations, result.violations...)

	calls := c.proxy.Count("", "")
	percent := 100 * float64(calls.Faulted) / float64(max(calls.Requests, 1))
	violations = append(violations, c.idle(percent, result.totals)...)
	resolved := 0
	for _, w := range c.gate.writes {
		if w.unanswered {
			resolved++
		}
	}
	t := result.totals
	if c.verbose {
		fmt.Fprintf(stdout, "gaps by cause: killed=%d reply_lost=%d abandoned=%d %+v less given_back_unanswered=%d\n",
			t.killed, t.unheard, t.abandoned.Total(), t.abandoned, t.silently)
		for i, s := range c.specs {
			fmt.Fprintf(stdout, "sequence %s: leased up to position %d, %d leases\n",
				s.name, len(result.tables[i].owner), len(result.tables[i].blocks))
		}
	}
	for _, v := range violations {
		fmt.Fprintln(stderr, "VIOLATION:", v)
	}
	if result.more > 0 {
		fmt.Fprintf(stderr, "and %d more\n", result.more)
	}
	fmt.Fprintf(stdout, "ids=%d leases=%d kills=%d faults=%d recovered=%d gaps=%d duplicates=%d "+
		"violations=%d processes=%d closes=%d server_restarts=%d leased=%d give_backs=%d returned=%d calls=%d faulty_calls_percent=%.1f "+
		"unknown=%d unknown_applied=%d seed=%d\n",
		t.ids, t.leases, c.kills, calls.Faulted, t.recovered, t.gaps, t.duplicates,
		len(violations)+result.more, len(c.processes), c.closes, c.restarts, t.leased, t.giveBacks, t.returned, calls.Requests, percent,
		unknown, resolved, c.seed)
	if len(violations) == 0 {
		if c.keep {
			return c.dump(entries)
		}
		return nil
	}
	return errors.Join(fmt.Errorf("%w, with %v", errViolated, c.settings), c.dump(entries))
}

// idle says what the run did not do although it was asked to: then it proves
// less than it seems to. Short runs may miss something by chance.
func (c *chaos) idle(percent float64, t totals) (out []string) {
	miss := func(missed bool, what string) {
		if missed {
			out = append(out, "the run did not do what it is for: "+what)
		}
	}
	miss(t.ids == 0, "no ID was handed out")
	if c.length.Seconds() < 20 {
		return out
	}
	miss(percent < 100*c.faults, fmt.Sprintf("%.1f %% of the calls failed", percent))
	miss(c.kill && c.kills == 0, "nobody was killed")
	miss(c.closes == 0, "nobody closed")
	miss(c.serverRestart && c.restarts == 0, "the server was never restarted")
	miss(t.giveBacks == 0, "nothing was given back")
	miss(c.faults > 0 && t.recovered == 0, "no lease was recovered")
	return out
}

// compare holds the gate's writes against the proxy's log: each write that the
// log shows as applied is one of the gate's, and each of the gate's is in the
// log as applied, unless the server was killed under it, in which case the proxy
// cannot know. It returns the number of writes whose fate the proxy does not
// know. It notes at the writes which fault they met.
func compare(entries []faultproxy.Entry, writes []write, specs []spec) (wrong []string, unknown int) {
	type mark struct{ key, state string }
	open := map[mark][]*write{}
	for i := range writes {
		w := &writes[i]
		if w.unanswered {
			w.fault = "server killed"
			continue
		}
		m := mark{specs[w.seq].key(), w.after.String()}
		open[m] = append(open[m], w)
	}
	for _, e := range entries {
		if e.Op != "UpdateItem" {
			continue
		}
		switch {
		case e.Settled.IsZero():
			wrong = append(wrong, fmt.Sprintf("request %d never settled", e.Seq))
		case e.Applied == faultproxy.Unknown:
			unknown++
		case e.Applied == faultproxy.Yes:
			x, err := decode([]byte(e.UpstreamBody))
			var st state
			if err == nil {
				st, err = parseState(x.Attributes)
			}
			m := mark{e.Key, st.String()}
			if err == nil && len(open[m]) > 0 {
				open[m][0].fault = e.Fault
				open[m] = open[m][1:]
			} else {
				wrong = append(wrong, fmt.Sprintf("request %d is applied, says the proxy, and the gate has no such write: %s %v (%v)", e.Seq, e.Key, st, err))
			}
		}
	}
	for m, left := range open {
		if len(left) > 0 {
			wrong = append(wrong, fmt.Sprintf("the gate let a write through that the proxy's log does not show as applied: %s %s", m.key, m.state))
		}
	}
	return wrong, unknown
}

// dump writes the ledger and the proxy's log beside the histories.
func (c *chaos) dump(entries []faultproxy.Entry) error {
	var errs []error
	file := func(name string, lines func(put func(any) error) error) {
		f, err := os.Create(filepath.Join(c.dir, name))
		if err != nil {
			errs = append(errs, err)
			return
		}
		errs = append(errs, lines(json.NewEncoder(f).Encode), f.Close())
	}
	file("proxy.jsonl", func(put func(any) error) error {
		for _, e := range entries {
			if err := put(e); err != nil {
				return err
			}
		}
		return nil
	})
	file("writes.jsonl", func(put func(any) error) error {
		for i, w := range c.gate.writes {
			err := put(map[string]any{"write": i, "process": w.process, "sequence": c.specs[w.seq].name, "item": w.after.String(), "fault": w.fault, "unanswered": w.unanswered})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(errs...)
}
