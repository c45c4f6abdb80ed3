// Chaos runs real processes against one table through faults, kills and
// restarts, and proves from what happened on the wire that no ID was handed out
// twice:
//
//	go run ./internal/chaos -procs 8 -for 60s -seed 1 -kill -server-restart
//
// Child processes (the same program) lease through
//
//	children ──► fault proxy ──► gate ──► dynoxide --db-path
//
// with Allocators of every sizing, hand out IDs by Next, TryNext, Fill and
// Reserve on several goroutines, and write each ID to a file before it counts as
// handed out. They are killed (SIGKILL) or close, several at once now and then,
// and others take their place; the server is killed and restarted; calls fail in
// every way that the proxy knows, writes that arrive late and replies that are
// lost after the write among them.
//
// The gate lets one write to an item through at a time and so knows the order of
// the applied ones, and it reads the item when the server was killed under a
// write. At the end its ledger is compared with the proxy's log, write by write,
// and then the writes are replayed: each one either leases the positions from
// the counter on, or gives some back. What the children wrote down must lie in
// blocks that this replay shows as leased to the very process, and kept, with
// nothing twice and in order; and each leased ID must be accounted for as
// issued, given back, in memory at a kill, lost with its reply, or abandoned for
// a reason. A lost reply costs nothing while nobody else wrote in between: the
// next attempt must have recovered it. Only then are the totals that the library
// keeps itself compared with all that.
//
// The last line of the output reads
//
//	ids= leases= kills= faults= recovered= gaps= duplicates=0 ...
//
// and the exit status is 1 if anything was violated; the directory with the
// histories, the writes and the proxy's log is kept then. The same seed makes the
// same plan (who lives for how long, which call fails), though not the same
// interleaving.
package main
