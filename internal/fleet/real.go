package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/emulator"
	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

// tableName is the table of the real processes.
const tableName = "fleet"

func clientOf(endpoint string) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: &endpoint,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
}

// runReal runs child processes through a fault proxy that limits the key, and
// prints what became of them.
func runReal(ctx context.Context, s settings, out io.Writer) (err error) {
	began := time.Now()
	server, err := emulator.Start(ctx, emulator.Dynoxide)
	if err != nil {
		return fmt.Errorf("fleet: -real needs the emulator dynoxide: %w", err)
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := createTable(ctx, server.Endpoint()); err != nil {
		return err
	}
	proxy, err := faultproxy.New(server.Endpoint(), func(o *faultproxy.Options) {
		o.DiscardLog = true
		o.Rules = []faultproxy.Rule{{Key: sequenceName, Action: faultproxy.Limit(s.wcu, s.rcu)}}
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()

	results := make([]result, s.processes)
	errs := make([]error, s.processes)
	var children sync.WaitGroup
	plan := plan{
		Endpoint: proxy.URL(), Rate: s.rate, WarmUp: s.warmUp, Length: s.length,
		Runway: s.runway, LeaseEvery: s.leaseEvery, Splay: s.splay,
	}
	for i := range results {
		children.Go(func() { results[i], errs[i] = spawn(ctx, plan) })
	}
	children.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return sumUp(s, results, time.Since(began), out)
}

func createTable(ctx context.Context, endpoint string) (err error) {
	all, err := ddbseq.New(ddbseq.DynamoDB(clientOf(endpoint), tableName))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close(ctx)) }()
	if err := all.CreateTable(ctx); err != nil {
		return err
	}
	return all.Create(ctx, sequenceName)
}

func sumUp(s settings, results []result, wall time.Duration, out io.Writer) error {
	var sum ddbseq.Stats
	var maxWait time.Duration
	var ready []time.Duration
	var runs []run
	var warmUpWaits int64
	for _, r := range results {
		sum.Issued += r.Window.Issued
		sum.Waited += r.Window.Waited
		sum.Leases += r.Window.Leases
		sum.Attempts += r.Window.Attempts
		sum.Throttled.KeyRange += r.Window.Throttled.Total()
		warmUpWaits += r.Before.Waited
		maxWait = max(maxWait, r.MaxWait)
		ready = append(ready, r.Ready)
		for _, r := range r.Runs {
			runs = append(runs, run{r[0], r[1]})
		}
	}
	slices.Sort(ready)
	duplicates := overlap(runs)
	_, err := fmt.Fprintf(out, "processes=%d leases=%d throttled=%d waits_per_million=%.3g max_wait=%v last_ready=%v ideal_ready=%v p99_ready=%v "+
		"attempts_per_lease=%.2f writes_per_s=%.2f duplicates=%d issued=%d waits=%d warmup_waits=%d ids_per_s=%.0f wall=%v\n",
		s.processes, sum.Leases, sum.Throttled.Total(), 1e6*ratio(sum.Waited, sum.Issued), round(maxWait),
		round(ready[len(ready)-1]), round(s.ideal(s.processes)), round(percentile99(ready)),
		ratio(sum.Attempts, sum.Leases), float64(sum.Attempts)/s.length.Seconds(), duplicates,
		sum.Issued, sum.Waited, warmUpWaits, float64(sum.Issued)/s.length.Seconds(), round(wall))
	if err == nil && duplicates > 0 {
		err = fmt.Errorf("fleet: %d IDs were handed out twice", duplicates)
	}
	return err
}

// childEnv holds the plan of a child process.
const childEnv = "DDBSEQ_FLEET_CHILD"

// plan is what a child process is to do.
type plan struct {
	Endpoint                  string
	Rate                      float64
	WarmUp, Length            time.Duration
	Runway, LeaseEvery, Splay time.Duration
}

// result is what became of it.
type result struct {
	Before, Window ddbseq.Stats // of the warm-up, and of what came after
	MaxWait        time.Duration
	Ready          time.Duration // to the first ID
	Runs           [][2]int64    // from one ID up to before another
}

// spawn runs a child process. It ends with us: its stdin is closed then.
func spawn(ctx context.Context, p plan) (r result, err error) {
	text, err := json.Marshal(p)
	if err != nil {
		return r, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return r, err
	}
	defer func() { _ = stdin.Close() }()
	out, err := cmd.Output()
	if err != nil {
		return r, fmt.Errorf("fleet: a child process: %w", err)
	}
	return r, json.Unmarshal(out, &r)
}

func childMain(text string) int {
	var p plan
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(1) // the parent is gone
		}()
		err = live(p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		return 1
	}
	return 0
}

// live takes IDs every 10 ms, at the rate.
func live(p plan) error {
	ctx := context.Background()
	all, err := ddbseq.New(ddbseq.DynamoDB(clientOf(p.Endpoint), tableName), func(o *ddbseq.Options) {
		o.Runway, o.LeaseEvery, o.WarmSplay = p.Runway, p.LeaseEvery, p.Splay
	})
	if err != nil {
		return err
	}
	seq, err := all.Sequence(sequenceName)
	if err != nil {
		return err
	}
	var r result
	began := time.Now()
	if p.Splay > 0 {
		if err := all.Warm(ctx, sequenceName); err != nil {
			return err
		}
	}
	const every = 10 * time.Millisecond
	ids := make([]int64, max(1, int(p.Rate*every.Seconds())))
	beat := time.NewTicker(every)
	defer beat.Stop()
	for warm, last := true, time.Now(); last.Sub(began) < p.WarmUp+p.Length; last = <-beat.C {
		if warm && last.Sub(began) >= p.WarmUp {
			warm, r.Before, r.MaxWait = false, seq.Stats(), 0
		}
		asked := time.Now()
		if err := seq.Fill(ctx, ids); err != nil {
			return err
		}
		r.MaxWait = max(r.MaxWait, time.Since(asked)) // waiting for a processor counts as well
		if r.Ready == 0 {
			r.Ready = time.Since(began)
		}
		for _, id := range ids {
			if n := len(r.Runs); n > 0 && r.Runs[n-1][1] == id {
				r.Runs[n-1][1]++
			} else {
				r.Runs = append(r.Runs, [2]int64{id, id + 1})
			}
		}
	}
	r.Window = seq.Stats().Sub(r.Before)
	out := bufio.NewWriter(os.Stdout)
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return err
	}
	return out.Flush() // and no Close: 50 give-backs at once are another test's
}
