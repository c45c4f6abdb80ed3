package main

const interleavings = "^TestInterleavings$"

// mutants are what has gone wrong in systems like this one, or did in this one
// while it was written.
var mutants = []mutant{
	// A lease is written once.
	{
		name: "no token condition in judge", file: "store.go",
		old: "case ch.own(it):\n\t\treturn verdictOwn", new: "case ch.create && ch.own(it):\n\t\treturn verdictOwn",
		tests: interleavings,
	},
	{
		name: "no token condition in the expression", file: "dynamo.go",
		old:   `e.cond("(attribute_not_exists(%[1]s) OR %[1]s <> %[2]s)", e.name(attrTok), e.str("tok", ch.token))`,
		new:   ``,
		tests: "^TestALostReplyIsRecoveredBehindAForeignWriter$",
	},
	{
		name: "a new token on each attempt", file: "lease.go",
		old: "l.open = ch\n", new: "_ = ch\n",
		tests: "^TestAThrottleAfterALostReplySettlesNothing$",
	},
	{
		name: "a throttle settles the attempt before it", file: "lease.go",
		old:   "if le, ok := asLeaseError(err); ok && le.MaybeApplied {\n\t\t\t\tl.open = ch\n",
		new:   "if le, ok := asLeaseError(err); ok && le.Throttled {\n\t\t\t\tl.open = nil\n\t\t\t} else if ok && le.MaybeApplied {\n\t\t\t\tl.open = ch\n",
		tests: "^TestAThrottleAfterALostReplySettlesNothing$",
	},
	{
		name: "the count changes with the same token", file: "lease.go",
		old:   "ch := l.open\n",
		new:   "ch := l.open\n\t\tif ch != nil && ch.n > 0 && n > ch.n {\n\t\t\tmore := *ch\n\t\t\tmore.n, more.move = n, ch.base.definition().delta(n)\n\t\t\tch = &more\n\t\t}\n",
		tests: "^TestTheCountStaysWithTheToken$",
	},
	{
		name: "no reading where no old item is returned", file: "dynamo.go",
		old:   "if len(old) == 0 {\n\t\tit, err := d.get(ctx, key)",
		new:   "if len(old) == 0 {\n\t\tvar it *item\n\t\tvar err error",
		tests: "^TestARepeatedChangeIsRecognized$",
	},
	{
		name: "an own Restart is repeated over another's", file: "admin.go",
		old: "if open && ch.epoch > 0 && (", new: "if open && ch.epoch < 0 && (",
		tests: "^TestALostRestartIsNotRepeatedOverAnother$",
	},
	{
		name: "CreateMissing makes a deleted item anew", file: "lease.go",
		old: "if f.known && (f.seen != nil || f.def.Cycle) {", new: "if f.known && f.def.Cycle {",
		tests: "^TestADeletedItemIsNotMadeAnew$",
	},

	// A block is what its own write says.
	{
		name: "a missing number is 0", file: "lease.go",
		old: "if it.at == nil || it.n != ch.n", new: "if it.at == nil {\n\t\tit.at = new(int64)\n\t}\n\tif it.n != ch.n",
		tests: "^TestAMissingNumberIsNotZero$",
	},
	{
		name: "a malformed number is 0", file: "dynamo_item.go",
		old: "p.fail(attr, v, \"an integer of 64 bits\")\n\t\treturn nil", new: "return new(int64)",
		tests: "^FuzzParseItem$",
	},
	{
		name: "a reply without attributes is an item", file: "dynamo.go",
		old: "if out == nil || len(out.Attributes) == 0 {", new: "if out == nil {",
		tests: "^TestEveryFaultOfTheWire$",
	},
	{
		name: "a block is recovered from the live lastID", file: "lease.go",
		old: "last := *it.at\n", new: "last := *it.lastID\n",
		tests: "^TestALostReplyIsRecoveredBehindAForeignWriter$|" + interleavings,
	},
	{
		name: "another's answer is taken for one's own", file: "lease.go",
		old: "|| it.n != ch.n || it.tok != ch.token {", new: "|| it.n != ch.n {",
		tests: "^TestWrongNumbersInAnAnswerAreRefused$|" + interleavings,
	},
	{
		name: "a block is published before the reply", file: "lease.go",
		old: "it, err := s.apply(ctx, &got, ch)\n",
		new: "if ch.n > 0 {\n\t\t\tfirst := ch.base.first()\n\t\t\tif ch.base.lastID != nil {\n\t\t\t\tfirst = *ch.base.lastID + ch.base.definition().Increment\n\t\t\t}\n" +
			"\t\t\ts.mu.Lock()\n\t\t\ts.install(leased{first: first, step: ch.base.definition().Increment, n: ch.n})\n\t\t\ts.mu.Unlock()\n\t\t}\n" +
			"\t\tit, err := s.apply(ctx, &got, ch)\n",
		tests: "^TestNoIDIsSeenBeforeTheAnswer$",
	},
	{
		name: "no bounds in the condition", file: "dynamo.go",
		old: "if ch.hi != nil {", new: "if ch.hi != nil && ch.holds != \"\" {",
		tests: "^TestTheStoredNumberNeverPassesTheEnd$",
	},
	{
		name: "others' changes go unnoticed: born", file: "store.go",
		old: "case it.born != ch.base.born:\n\t\treturn verdictBorn\n", new: "",
		tests: "^TestEveryChangeDoesTheSameOnEveryStore$|^TestVerdictsAreJudgedInOrder$",
	},
	{
		name: "others' changes go unnoticed: epoch", file: "store.go",
		old: "case it.epoch != ch.base.epoch:\n\t\treturn verdictEpoch\n", new: "",
		tests: interleavings,
	},
	{
		name: "others' changes go unnoticed: ver", file: "store.go",
		old: "case it.ver != ch.base.ver:\n\t\treturn verdictVer\n", new: "",
		tests: interleavings,
	},

	// The fences.
	{
		name: "no fence on the answer", file: "lease.go",
		old: "if f.high != nil && !d.after(first.Int64(), *f.high) {", new: "if false {",
		tests: "^TestWrongNumbersInAnAnswerAreRefused$",
	},
	{
		name: "no fence in the condition of a lease", file: "lease.go",
		old: "ch.lo = maxBig(ch.lo, bigOf(*f.high))\n", new: "_ = 0\n",
		tests: "^TestARestoreUnderARunningProcessIsRefused$",
	},
	{
		name: "a counter lowered by hand is leased from", file: "lease.go",
		old: "fence: true, running: true", new: "fence: false, running: true",
		tests: "^TestALoweredCounterIsSeenByThoseWhoNeverHeldTheIDs$",
	},
	{
		name: "the fence is on every block ever held", file: "stock.go",
		old: "s.facts.high = high\n", new: "_ = high\n",
		tests: "^TestTheFenceForgetsWhatWasGivenBack$",
	},
	{
		name: "a change of the definition switches the fence off", file: "lease.go",
		old: "if d.Cycle || f.def.Cycle {", new: "if d != f.def || d.Cycle || f.def.Cycle {",
		tests: "^TestAnAlterSwitchesNoFenceOff$",
	},
	{
		name: "a Restart leaves the fence up", file: "lease.go",
		old: "f.epoch, f.seen, f.high = it.epoch, nil, nil", new: "f.epoch = it.epoch",
		tests: "^TestHealthyMovesRaiseNoFence$",
	},
	{
		name: "the fence forgets what Reserve took out of order", file: "stock.go",
		old: "high = s.facts.high // the newest one is used up", new: "_ = high",
		tests: "^TestTheFenceRemembersWhatReserveTook$",
	},
	{
		name: "the fence forgets what was issued before a Restart", file: "lease.go",
		old: "case it.epoch < f.epoch:\n\t\tif f.before(it) {", new: "case it.epoch < f.epoch:\n\t\tif false {",
		tests: "^TestARestoreToBeforeARestartIsHeldAgainstAllThatWasIssued$",
	},
	{
		name: "Advance does not look at `at`", file: "admin.go",
		old: "set: &atLeast, atLimit: &atLeast,", new: "set: &atLeast,",
		tests: interleavings,
	},
	{
		name: "an Advance does not say that a counter was lowered", file: "admin.go",
		old: "if it.behindAt() && d.after(*it.at, atLeast) {", new: "if false {",
		hangs: true, tests: "^TestALoweredCounterIsSeenByThoseWhoNeverHeldTheIDs$",
	},
	{
		name: "a guarded Restart does not hold against leases", file: "admin.go",
		old: "if one := bigOf(1); d.ascending() {\n\t\tch.hi = bigOf(next)\n", new: "if one := bigOf(1); d.ascending() {\n\t\tch.hi = bigOf(1 << 62)\n",
		tests: interleavings,
	},

	// Giving back.
	{
		name: "give-back on the token alone", file: "giveback.go",
		old: "present: true, lo: bigOf(*it.lastID), hi: bigOf(*it.lastID),", new: "present: true,",
		tests: "^TestGiveBackAfterALateAttemptOfTheSameLease$|" + interleavings,
	},
	{
		name: "give-back on lastID alone", file: "giveback.go",
		old: "base: it, holds: it.tok,", new: "base: it,",
		tests: "^TestGiveBackThatIsRepeatedFindsItsBlockLeasedAgain$|" + interleavings,
	},
	{
		name: "a tail is served after its give-back was sent", file: "sequence.go",
		old: "return min(atomic.SwapInt64(&b.cursor, dropped)+1, b.end)", new: "return min(atomic.LoadInt64(&b.cursor)+1, b.end)",
		tests: "^TestATailIsNotServedOnceItsGiveBackIsSent$",
	},
	{
		name: "a block is closed by its soft limit", file: "sequence.go",
		old:   "return min(atomic.SwapInt64(&b.cursor, dropped)+1, b.end)",
		new:   "atomic.StoreInt64(&b.soft, 0)\n\treturn min(atomic.LoadInt64(&b.cursor)+1, b.end)",
		tests: "^TestATailIsNotServedOnceItsGiveBackIsSent$",
	},
	{
		name: "tails are joined over a Restart or a lap", file: "stock.go",
		old: "before == nil || b.before == nil || before.step", new: "before == nil || before.step",
		tests: "^TestTailsAreNotJoinedOverALap$",
	},
	{
		name: "what was handed out is given back", file: "stock.go",
		old: "t.n, t.unuse, t.first, t.step = 0, 0, b.at(claimed), b.step", new: "t.n, t.unuse, t.first, t.step = claimed, 0, b.at(0), b.step",
		tests: interleavings,
	},

	{
		name: "a give-back takes from the limit of another day", file: "stock.go",
		old: "if s.newestDay() == b.day && b.day != 0 {", new: "if b.day != 0 {",
		tests: "^TestGiveBackCountsForTheDayThatIsStored$",
	},
	{
		name: "no daily limit in judge", file: "store.go",
		old: "case ch.limit != nil && !ch.limit.allows(it):", new: "case ch.limit != nil && ch.n < 0:",
		tests: interleavings,
	},

	// Memory.
	{
		name: "the soft limit lies beyond the end", file: "stock.go",
		old: "b.limit(b.end)\n", new: "b.limit(b.end + 1)\n",
		tests: interleavings,
	},
	{
		name: "cur moves on before the block is used up", file: "stock.go",
		old: "s.tail.next.Store(b) // from here on b is seen\n", new: "s.tail.next.Store(b)\n\ts.seq.cur.Store(b)\n",
		tests: "^TestANewBlockWaitsForItsTurn$",
	},
	{
		name: "a failed refill is taken for a good one", file: "refill.go",
		old: "case err == nil:\n\t\ts.err, s.tries", new: "case true:\n\t\ts.err, s.tries",
		hangs: true, tests: "^TestPermanentErrorsReachWaitersAtOnceAndEndByThemselves$",
	},
	{
		name: "a lock is held across a store call", file: "refill.go",
		old:   "s.demand() > 0\n\ts.mu.Unlock()\n\n\tgot, err := s.attempt(s.a.ctx, known, n, want, total)\n\n\ts.mu.Lock()\n",
		new:   "s.demand() > 0\n\n\tgot, err := s.attempt(s.a.ctx, known, n, want, total)\n\n",
		hangs: true, tests: "^TestNobodyWaitsWhileABlockIsLeft$",
	},
	{
		name: "a caller's cancel ends the refill", file: "waiters.go",
		old: "s.leave(place)\n\tlast := s.err", new: "s.leave(place)\n\ts.a.cancel()\n\tlast := s.err",
		hangs: true, tests: "^TestFirstWaiterCancelsAndTheOthersAreServed$",
	},
	{
		name: "a second refill starts beside the first", file: "refill.go",
		old: "if s.busy {\n\t\ts.hasten()", new: "if s.busy && s.stock() > 0 {\n\t\ts.hasten()",
		tests: "^TestOutageIsMetWithOneBoundedRetryLoop$",
	},
	{
		name: "a block of the past is installed", file: "refill.go",
		old: "case stale:\n", new: "case s.closed:\n",
		tests: interleavings,
	},
	{
		name: "sequences without an answer take all places", file: "allocator.go",
		old: "q.slowRunning < max(1, limit/2) && ", new: "",
		tests: "^TestManyBrokenSequencesDoNotDelayAnother$",
	},
	{
		name: "leases depend on the day without a limit", file: "limit.go",
		old: "case l.max == 0:\n\t\treturn true\n", new: "case l.max == 0:\n\t\treturn it.day == l.day\n",
		tests: "^TestANewDayRefusesNoLease$",
	},
	{
		name: "nobody begins a new day", file: "refill.go",
		old: "if newDay != nil {", new: "if newDay != nil && newDay.create {",
		tests: "^TestDaysAreCountedAndKeptForAWeek$",
	},
	{
		name: "an alert ends where it began", file: "alerts.go",
		old: " || level >= clearBelow && before.Has(k)", new: "",
		tests: "^TestAnAlertEndsWellBelowWhereItBegan$",
	},
	{
		name: "what is dropped in flight is not in the books", file: "refill.go",
		old: "s.tally.abandoned.Refresh += got.n", new: "_ = got.n",
		tests: "^TestTheBooksBalance$",
	},
	{
		name: "processes that failed together come back together", file: "ratewindow.go",
		old: "p.spread = spread", new: "p.spread = 0",
		tests: "^TestAFleetComesBackFromAnOutageWithoutAHerd$",
	},
	{
		name: "processes that started together stay in step", file: "refill.go",
		old: "newPlanner(z.sizing(a.opts.rand()))", new: "newPlanner(z.sizing(0))",
		tests: "^TestProcessesStartedTogetherDriftApart$",
	},
	{
		name: "a throttled refill that has time comes back at once", file: "refill.go",
		old: " && !(s.patient && errors.Is(err, ErrThrottled))", new: "",
		tests: "^TestAThrottledRefillThatHasTimeTakesItAtOnce$",
	},
	{
		name: "a whole pause follows a call that hung", file: "refill.go",
		old: "advisoryBackoffCap)-took)", new: "advisoryBackoffCap))",
		tests: "^TestRefillsThatHangAreBackSoon$",
	},
	{
		name: "a caller who comes waits out a patient pause", file: "refill.go",
		old: "s.hasten() // it looks again when it is done", new: "",
		tests: "^TestWhoComesIsNotKeptWaitingForPatience$",
	},
	{
		name: "a read that fails has an unknown outcome", file: "admin.go",
		old: "le.MaybeApplied && ch != nil", new: "le.MaybeApplied",
		tests: "^TestAnAdministrativeCallThatCannotEvenReadChangesNothing$",
	},
	{
		name: "a wrong clause given late stops everybody", file: "refill.go",
		old: "why := merged.disagreesWith(s.seen); why != \"\"", new: "why := merged.disagreesWith(s.seen); false",
		tests: "^TestAWrongClauseGivenLateHurtsNobodyElse$",
	},
	{
		name: "a caller's context is asked under the lock", file: "waiters.go",
		old: "ended := ctx.Err() // not under mu: ctx may be anybody's code, or nil\n\ts.mu.Lock()", new: "s.mu.Lock()\n\tended := ctx.Err()",
		hangs: true, tests: "^TestNoContextIsAskedUnderTheLock$",
	},
	{
		name: "blocks used up behind another are kept", file: "stock.go",
		old: "b.next.Store(after)", new: "_ = after",
		tests: "^TestBlocksUsedUpBehindAnotherAreLetGo$",
	},
	{
		name: "a used-up block's cursor goes on", file: "sequence.go",
		old: "if b.left() == 0 {\n\t\treturn 0, 0", new: "if b.left() < 0 {\n\t\treturn 0, 0",
		tests: "^TestClaimsOfAUsedUpBlockDoNotMoveItsCursor$",
	},
	{
		name: "the wrong ones are sent away", file: "refill.go",
		old: "s.failShort(got.short)", new: "size := got.facts.def.size()\n\t\tgot.short.most = size\n\t\ts.failShort(got.short)",
		tests: "^TestOnlyThoseWhoWantTooMuchAreSentAway$",
	},
	{
		name: "what a Fill gave up is taken off again and again", file: "lease.go",
		old: "got.reported = ch.issued", new: "got.reported = max(s.reported, ch.issued)",
		tests: "^TestTheTableCountsEachIDIssuedOnce$",
	},
	{
		name: "a lease that is dropped has not reported", file: "refill.go",
		old: "s.reported = got.reported // whatever becomes of the block", new: "if !stale {\n\t\t\ts.reported = got.reported\n\t\t}",
		tests: "^TestTheTableCountsEachIDIssuedOnce$",
	},
	{
		name: "a refresh reports what the next lease will", file: "giveback.go",
		old: "if t.closed { // otherwise", new: "if true { // otherwise",
		tests: "^TestTheTableCountsEachIDIssuedOnce$",
	},
	{
		name: "a second Warm ends the splay", file: "refill.go",
		old: "if s.err == nil && s.wanted == 0 && !s.tried {\n\t\treturn", new: "if false {\n\t\treturn",
		tests: "^TestWarmingTwiceIsNoReasonToHurry$",
	},
	{
		name: "Warm returns with nothing in memory", file: "waiters.go",
		old: "if taken == b.end {", new: "if n == 0 && w.want > 0 {",
		tests: "^TestWarmReturnsWhenThereAreIDsAlsoBehindAWaiter$",
	},
	{
		name: "who comes to wait stays behind in the queue", file: "refill.go",
		old: "s.a.prefer(s)", new: "_ = s",
		tests: "^TestWhoWaitsGoesBeforeRefillsOfOtherSequences$",
	},
	{
		name: "what is left of a day is used up for nothing", file: "lease.go",
		old: "e != nil && want > left", new: "e != nil && want < 0",
		tests: "^TestNothingIsUsedUpForWhoCannotBeServed$",
	},
	{
		name: "a lease under way hides what was altered meanwhile", file: "refill.go",
		old: "if !stale { // otherwise it may be older", new: "if true { // otherwise it may be older",
		tests: "^TestALeaseUnderWayDoesNotHideAnAlter$",
	},
}
