// Package ddbseq replaces database sequences with blocks of int64 IDs leased
// straight from an Amazon DynamoDB table. There is no service and no daemon: a
// process leases a block with one conditional UpdateItem, hands its IDs out of
// memory, and refills before it runs out.
//
//	seqs, err := ddbseq.Open(ctx, "sequences")
//	if err != nil { ... }
//	defer seqs.Close(context.Background()) // ctx may have ended by then
//	id, err := seqs.Next(ctx, "orders") // in place of nextval('orders')
//
// An [Allocator] is a process's handle on a table, a [Sequence] one named
// counter in it. Definitions ([StartWith], [IncrementBy], [MinValue],
// [MaxValue], [Cycle]) mean what they mean in PostgreSQL. [Memory] stands in for
// the table in tests.
//
// # Guarantees
//
// Each with the test that fails without it.
//
//   - Unique: no ID of a sequence without CYCLE is handed out twice, by any
//     process, also after crashes, time-outs, lost replies and retries. A block
//     comes from exactly one successful write, its bounds from what that write
//     itself stored. (TestInterleavings, TestEveryFaultOfTheWire)
//   - Ordered in a process: if one Next returned before another began, on one
//     Sequence, its ID comes first. (TestOrderHoldsOnAnyNumberOfProcessors)
//   - In memory means available: IDs in memory are handed out whatever the state
//     of the store; errors reach only callers who find memory empty.
//     (TestMemoryIsServedWhateverStateTheStoreIsIn)
//   - Never past the end: neither an ID nor the stored counter goes beyond
//     MINVALUE or MAXVALUE. (TestPostgresVectors, FuzzLease)
//   - A caller's cancel ends that caller's wait and nothing else.
//     (TestFirstWaiterCancelsAndTheOthersAreServed)
//
// # Not guaranteed
//
//   - No gaps. IDs in memory when a process is killed are gone, and so are those
//     of a transaction that rolls back. Close gives back what is left of the
//     newest block.
//   - Order between processes: each hands out its own block.
//   - Uniqueness over a restore of the table, when all processes were restarted
//     as well: advance the sequence beyond your data ([Allocator.Advance])
//     before you use a restored table. A process that runs on sees the counter
//     move back and refuses it with [ErrCounterMovedBack].
//   - Uniqueness over regions of a global table with eventual consistency, where
//     a conditional write sees one replica only. Use one region, or strong
//     consistency (MRSC), or a sequence for each region.
//   - That Restart, Advance, Alter or a pause stops the IDs that other processes
//     hold in memory: it reaches them when they next lease, or with Refresh.
//   - Anything for a process that is cloned with its memory (a snapshot of a
//     virtual machine, CRIU): both copies hand out the same IDs.
//
// # Operating
//
// [Allocator.Alter] tunes, limits and pauses a sequence for all processes, through
// its item. [Allocator.Stats], [Hooks] and [Options].Logger show what a process
// does, and each [AlertKind] what an operator should know of; [Allocator.Describe]
// shows the totals of all processes, and [Allocator.Check] whether the table is
// as it should be.
//
// # The item
//
// A sequence is one item, below 1 KB, so that a lease costs one write unit
// whatever its size:
//
//	entityType  S  partition key: the name of the sequence with its prefix
//	lastID      N  last value leased; absent while nothing has been
//	at, n, tok     lastID as the newest lease left it, its size, its random token
//	born        S  random, set once: another one is another item
//	epoch       N  raised by Restart, and by Alter when it changes the direction
//	ver, def    S, M  random id of the definition, and its clauses as far as set:
//	                  start, increment, min, max (N), cycle (BOOL), dailyLimit (N),
//	                  dailyLimitZone (S)
//	from        N  where a Restart begins, while lastID is absent
//	tune        M  what operators set: runway, leaseEvery (S, as "1m30s"),
//	                  minBlock, maxBlock, firstBlock (N), paused (BOOL)
//	v           N  version of this layout; a higher one is refused
//	day, used   S, N  the day of the newest lease, and the IDs leased on it
//	days        L  of N: the totals of the seven days before it, newest first
//	leased, issued, returned   N  totals of all processes, approximate
//
// A lease adds to lastID under a condition that the item is as it is known, and
// carries a random token. If its reply is lost the retry is refused, and the
// item it is shown says so by its token, and at and n say which block it was:
// nothing is lost and nothing is leased twice.
package ddbseq
