// Command faultproxy puts a faultproxy.Proxy in front of a DynamoDB endpoint:
//
//	go run ./internal/faultproxy/cmd/faultproxy -upstream http://127.0.0.1:8000 -rules rules.json -log log.jsonl
//
// It prints its URL and runs until it is interrupted. A file of rules is a JSON
// array of faultproxy.Rule, for example
//
//	[{"op": "UpdateItem", "probability": 0.3, "action": {"kind": "close", "apply": true, "ending": "rst"}},
//	 {"op": "UpdateItem", "action": {"kind": "limit", "writes": 1000}}]
//
// and may be replaced at run time:
//
//	curl -T rules.json URL/__faults
//
// The log has a line of JSON (a faultproxy.Entry) for each request, in the
// order in which they were settled.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("faultproxy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		listen    = flags.String("listen", "127.0.0.1:0", "`address` to listen on")
		upstream  = flags.String("upstream", "http://127.0.0.1:8000", "`URL` of the DynamoDB endpoint")
		rulesFile = flags.String("rules", "", "JSON `file` of rules")
		logFile   = flags.String("log", "", "`file` for a line of JSON per request; - is standard output")
		seed      = flags.Uint64("seed", 0, "seed of the draws")
		keyAttr   = flags.String("key", "", "`name` of the partition key (default: the only string in a request's Key)")
		bodies    = flags.Bool("bodies", false, "log the bodies of requests")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("faultproxy: unexpected arguments %q", flags.Args())
	}

	var rules []faultproxy.Rule
	if *rulesFile != "" {
		data, err := os.ReadFile(*rulesFile)
		if err != nil {
			return err
		}
		if rules, err = faultproxy.ParseRules(data); err != nil {
			return err
		}
	}

	var onEntry func(faultproxy.Entry)
	switch *logFile {
	case "":
	case "-":
		onEntry = writeTo(stdout, stderr)
	default:
		file, err := os.Create(*logFile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		onEntry = writeTo(file, stderr)
	}

	p, err := faultproxy.New(*upstream, func(o *faultproxy.Options) {
		o.Listen = *listen
		o.Rules = rules
		o.Seed = *seed
		o.KeyAttribute = *keyAttr
		o.OmitBodies = !*bodies
		o.DiscardLog = true
		o.OnEntry = onEntry
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, p.URL())
	<-ctx.Done()
	return p.Close()
}

// writeTo encodes entries to w, unbuffered: a log that is behind is of no use
// to whoever has just seen a fault.
func writeTo(w, stderr io.Writer) func(faultproxy.Entry) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return func(e faultproxy.Entry) {
		if err := enc.Encode(e); err != nil {
			fmt.Fprintln(stderr, "faultproxy: log:", err)
		}
	}
}
