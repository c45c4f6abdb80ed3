// Package faultproxy is an HTTP proxy in front of a DynamoDB endpoint that
// fails requests on purpose and knows which of them were applied.
//
// Emulators neither throttle nor fail, and the faults that matter most to a
// caller of DynamoDB happen between it and the table: a reply lost after the
// write, a reply cut short, a request that arrives after its sender gave up. A
// [Proxy] makes them, by [Rule]s that match an operation and a key, and its
// [Entry] log is the truth against which a test checks what the caller believes:
//
//	p, err := faultproxy.New(endpoint)
//	defer p.Close()
//	err = p.SetRules(faultproxy.Rule{
//		Op: "UpdateItem", Skip: 1, Count: 3,
//		Action: faultproxy.Drop(faultproxy.RST), // applied, the reply is lost
//	})
//	... dynamodb.Options{BaseEndpoint: aws.String(p.URL())} ...
//	for _, e := range p.Log() { ... e.Applied ... }
//
// # Which rule decides
//
// Rules are tried in order and the first one that fires decides; a rule fires
// when it matches and its Skip, Count and Probability (and, for a limit, the
// bucket of the key) say so. A request for which none fires passes unharmed.
// Draws depend only on the seed, the place of the rule, the operation, the key
// and how often the rule has matched that operation and key, so that the order
// in which concurrent callers arrive does not change what happens to any one
// key.
//
// # What is applied
//
// A request is forwarded with a context of the proxy's own, never the
// client's, so a client that goes away changes nothing upstream, and a request
// that is held back may still be applied long after its client has given up, as
// on a real network. [Proxy.Wait] returns when no such request is left. The log
// knows what upstream said before the client hears anything.
//
// Bodies pass byte for byte and headers as net/http spells them, X-Amz-Crc32
// included; that header is computed anew where the proxy writes the body.
package faultproxy
