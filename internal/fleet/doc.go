// Fleet shows what many processes do to one item: how soon they are ready when
// they start at once, how often they write after that, whether anybody waits,
// and how they come back from an outage.
//
//	go run ./internal/fleet -processes 5000                             # start
//	go run ./internal/fleet -processes 5000 -warm                       # nobody waits
//	go run ./internal/fleet -mode steady -processes 10000 -rate 100 -splay 60s
//	go run ./internal/fleet -mode outage -processes 10000 -rate 100 -splay 60s -runway 6m -warmup 8m -for 6m
//	go run ./internal/fleet -real -processes 50 -rate 2000 -wcu 20 -warmup 60s -for 60s
//
// The Allocators are real ones, on one Memory store, in the virtual time of
// testing/synctest. In front of it stands a token bucket for the reads and one
// for the writes of the item, with 100 ms of depth (but 10 calls, or a second's
// if that is less) and no burst unless -burst gives one: what DynamoDB promises
// for one item, for ever, and no more.
//
// A second's IDs of a process are taken out of memory at once, and the
// processes have their turns spread over the second. IDs that memory does not
// hold become callers of Next that wait, up to 16 in a process; those beyond
// count as waits, and are not asked for again. All runs of IDs that anybody got
// are kept, and compared at the end.
//
// The first line of the output has, of the time after the warm-up:
//
//	leases=              blocks leased
//	throttled=           calls refused for their rate
//	waits_per_million=   of a million IDs, those whose caller waited
//	max_wait=            the longest wait; in mode start the longest until ready
//	last_ready=          when the last process had its first IDs
//	ideal_ready=         processes / wcu
//	attempts_per_lease=  how often a lease was tried: 1, and one more for each throttle
//	writes_per_lease=    UpdateItem calls, throttled ones too
//	writes_per_s=        the same, for each second
//	peak_writes_per_s=   in the busiest 5 s: of mode steady, or around the first
//	                     LeaseEvery after an outage, where a second herd would be
//	stranded=            processes that met the outage
//	refill=              from its end until all of them had leased
//
// -real starts processes instead of Allocators, against the emulator through a
// fault proxy that limits the key, in real time.
//
// The same seed makes the same jitter and latencies. Calls that arrive in the
// same nanosecond go in an order that the runtime chooses, so that a count may
// differ a little from run to run.
package main
