package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/ddbseq/ddbseq"
	"github.com/ddbseq/ddbseq/internal/emulator"
	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

var (
	// errViolated is returned when the checks, or the run itself, failed.
	errViolated    = errors.New("chaos: violations found")
	errInterrupted = errors.New("chaos: interrupted")
)

// chaos is a run.
type chaos struct {
	settings
	specs  []spec
	dir    string
	begun  time.Time
	server *emulator.Server
	gate   *gate
	proxy  *faultproxy.Proxy

	mu         sync.Mutex
	log        io.Writer // nil: say nothing
	processes  []*process
	violations []string // of the run itself
	kills      int
	closes     int
	restarts   int
}

// run is the program. It returns errViolated when something was violated, after
// having printed what.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	set, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	c := &chaos{settings: set, specs: specs(set.length), begun: time.Now()}
	if set.verbose {
		c.log = stderr
	}
	if c.dir, err = os.MkdirTemp("", "chaos-"); err != nil {
		return err
	}
	defer func() {
		nothing := err == nil || errors.Is(err, errInterrupted) || errors.Is(err, emulator.ErrNotInstalled)
		if c.keep || !nothing {
			fmt.Fprintln(stderr, "chaos: histories and logs are in", c.dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(c.dir))
	}()
	if err := c.up(ctx); err != nil {
		return errors.Join(err, c.down())
	}
	c.play(ctx)
	if ctx.Err() != nil {
		// The server may have been interrupted as well: there is nothing to check.
		_ = c.down()
		return errInterrupted
	}
	final, err := c.settle()
	if err := errors.Join(err, c.down()); err != nil {
		return err
	}
	return c.report(final, stdout, stderr)
}

// up starts everything but the processes.
func (c *chaos) up(ctx context.Context) (err error) {
	c.server, err = emulator.Start(ctx, emulator.Dynoxide, emulator.WithDBPath(filepath.Join(c.dir, "table.db")))
	if err != nil {
		return fmt.Errorf("chaos: this needs the emulator dynoxide: %w", err)
	}
	if err := c.create(ctx); err != nil {
		return err
	}
	if c.gate, err = newGate(c.server.Endpoint(), c.specs); err != nil {
		return err
	}
	// Aim above the share that is asked for: what comes out is random.
	rules := faultRules(min(1, c.faults*1.12))
	c.proxy, err = faultproxy.New(c.gate.url, func(o *faultproxy.Options) { o.Seed, o.Rules = c.seed, rules })
	return err
}

// create makes the table and the sequences, undisturbed.
func (c *chaos) create(ctx context.Context) (err error) {
	client := dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(c.server.Endpoint()),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
	all, err := ddbseq.New(ddbseq.DynamoDB(client, table), func(o *ddbseq.Options) { o.KeyPrefix = keyPrefix })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close(ctx)) }()
	if err := all.CreateTable(ctx); err != nil {
		return err
	}
	for _, s := range c.specs {
		if err := all.Create(ctx, s.name, s.clauses...); err != nil {
			return err
		}
	}
	return nil
}

func (c *chaos) down() error {
	var err error
	if c.proxy != nil {
		err = c.proxy.Close()
	}
	if c.gate != nil {
		c.gate.close()
	}
	if c.server != nil {
		err = errors.Join(err, c.server.Stop())
	}
	return err
}

// play runs the processes until the time is up.
func (c *chaos) play(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.length)
	defer cancel()
	var slots, others sync.WaitGroup
	for i := range c.procs {
		slots.Go(func() { c.slot(ctx, rand.New(rand.NewPCG(c.seed, uint64(i)))) })
	}
	if c.serverRestart {
		others.Go(func() { c.restartServer(ctx, rand.New(rand.NewPCG(c.seed, 1<<32))) })
	}
	others.Go(func() { c.release(ctx, rand.New(rand.NewPCG(c.seed, 1<<33))) })
	// The server is back before the last ones close: their give-backs are a
	// part of it. Faults go on.
	others.Wait()
	slots.Wait()
}

// slot keeps one process running: one after the other, each for a while.
func (c *chaos) slot(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		// Lives end on a grid of half seconds, so that several often end at once.
		life := time.Duration(1+rng.IntN(12)) * 500 * time.Millisecond
		end := time.Since(c.begun) + life
		life += end.Round(500*time.Millisecond) - end
		if err := c.child(ctx, life, c.kill && rng.IntN(100) < 55); err != nil {
			c.violate("%v", err)
			return
		}
	}
}

// child runs one process to its end: by SIGKILL after life, or by itself after
// that, or because the run is over.
func (c *chaos) child(ctx context.Context, life time.Duration, kill bool) error {
	c.mu.Lock()
	p := &process{number: len(c.processes) + 1}
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	todo := plan{
		Process: p.number, Endpoint: c.proxy.URL(), File: c.file(p.number), Seed: c.seed, Length: c.length, Life: life,
	}
	if kill {
		todo.Life = c.length + closePatience
	}
	text, err := json.Marshal(todo)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	gone := make(chan error, 1)
	go func() { gone <- cmd.Wait() }()

	err = errAlive
	select {
	case err = <-gone:
	case <-ctx.Done():
	case <-time.After(life):
		if kill {
			p.killed = true
			_ = cmd.Process.Kill() // it may be gone already, which shows
			err = <-gone
		}
	}
	if errors.Is(err, errAlive) {
		c.say("process %d is to close", p.number)
		stdin.Close()
		select {
		case err = <-gone:
		case <-time.After(4 * closePatience):
			_ = cmd.Process.Kill()
			err = fmt.Errorf("it did not end by itself: %w", <-gone)
		}
	}
	c.ended(p, err, output.String())
	return nil
}

var errAlive = errors.New("alive")

func (c *chaos) file(number int) string {
	return filepath.Join(c.dir, fmt.Sprintf("process-%03d", number))
}

// ended reads the history of a process that is gone.
func (c *chaos) ended(p *process, err error, output string) {
	f, openErr := os.Open(c.file(p.number))
	switch {
	case openErr == nil:
		var readErr error
		p.history, readErr = readHistory(f)
		f.Close()
		if readErr != nil {
			c.violate("process %d: history: %v", p.number, readErr)
		}
	case !p.killed:
		c.violate("process %d: history: %v", p.number, openErr)
	}
	// One that had finished when the signal came was not killed.
	p.killed = p.killed && !p.history.ended
	if !p.killed && (err != nil && !p.history.ended || output != "") {
		c.violate("process %d ended with %v: %s", p.number, err, output)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.killed {
		c.kills++
	} else {
		c.closes++
	}
	c.sayLocked("process %d is gone (killed: %t)", p.number, p.killed)
}

// restartServer kills the server now and then and brings it back.
func (c *chaos) restartServer(ctx context.Context, rng *rand.Rand) {
	for {
		if !sleep(ctx, time.Duration(1000+rng.IntN(6000))*time.Millisecond) {
			return
		}
		c.say("the server is killed")
		if rng.IntN(2) == 0 {
			c.server.Kill()
		} else {
			c.killUnderWrite(ctx)
		}
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
		// While it was down the kernel may have lent its port to a connection.
		var err error
		for range 100 {
			if err = c.server.Restart(context.Background()); err == nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err == nil {
			err = c.gate.verify(context.Background())
		}
		if err != nil {
			c.violate("the server did not come back: %v", err)
			return
		}
		c.mu.Lock()
		c.restarts++
		c.mu.Unlock()
		c.say("the server is back")
	}
}

// killUnderWrite kills the server at the worst moment: a write is applied, and
// nobody has been told.
func (c *chaos) killUnderWrite(ctx context.Context) {
	killed := make(chan struct{})
	c.gate.setAmbush(func() {
		c.server.Kill()
		close(killed)
	})
	select {
	case <-killed:
	case <-ctx.Done():
		if !c.gate.setAmbush(nil) {
			<-killed
			return
		}
		c.server.Kill()
	}
}

// release delivers, now and then, the late requests that wait for it.
func (c *chaos) release(ctx context.Context, rng *rand.Rand) {
	for sleep(ctx, time.Duration(200+rng.IntN(4000))*time.Millisecond) {
		held := c.proxy.Held()
		rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		for _, e := range held[:len(held)/2] {
			c.proxy.Release(e.Seq)
		}
	}
}

// settle delivers what is still on its way, and reads the items at the end.
func (c *chaos) settle() ([]state, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 3 { // a request may just have been read
		c.proxy.Release()
		if err := c.proxy.Wait(ctx); err != nil {
			return nil, fmt.Errorf("chaos: requests that never settle: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	var final []state
	for _, s := range c.specs {
		st, err := c.gate.read(ctx, s.key())
		if err != nil {
			return nil, fmt.Errorf("chaos: reading %s at the end: %w", s.name, err)
		}
		final = append(final, st)
	}
	return final, nil
}

func (c *chaos) violate(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (c *chaos) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sayLocked(format, args...)
}

// requires mu.
func (c *chaos) sayLocked(format string, args ...any) {
	if c.log != nil {
		fmt.Fprintf(c.log, "%7.3f  %s\n", time.Since(c.begun).Seconds(), fmt.Sprintf(format, args...))
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
