package ddbseq

import "strings"

// Stats are the totals of one sequence, or of all, in this process since the
// Allocator was made. Take the difference of two with Sub. Remaining is the
// only one that goes down.
type Stats struct {
	Issued    int64 // IDs handed out
	Waited    int64 // calls that found memory empty and waited
	Leases    int64 // blocks leased
	Leased    int64 // IDs in them
	Attempts  int64 // calls to the store that Leases took
	Throttled Throttled
	Recovered int64 // leases whose reply was lost and found again
	Returned  int64 // IDs given back to the table
	Abandoned Abandoned
	Remaining int64 // IDs in memory now
}

// Abandoned says why IDs that were leased will never be handed out. What a
// crash loses is not among them: nobody is left to count it.
type Abandoned struct {
	Close   int64 // left at Close and not given back
	Refresh int64 // dropped by Refresh, Restart and Alter and not given back
	Fence   int64 // leased from a counter that had moved back
	Caller  int64 // claimed by a Fill that then failed
	Rest    int64 // ends of blocks, too short for Reserve, that had to make room
}

// Throttled counts the attempts that were refused for their rate, by what
// DynamoDB gave as the reason.
type Throttled struct {
	KeyRange    int64 // the item is hot: 1,000 writes/s at the most
	Provisioned int64 // the table's provisioned capacity
	MaxOnDemand int64 // the table's maximum on-demand throughput
	Account     int64 // the account's quota
	Unsaid      int64 // no reason was given
}

// Total returns their sum.
func (t Throttled) Total() int64 {
	return t.KeyRange + t.Provisioned + t.MaxOnDemand + t.Account + t.Unsaid
}

func (t *Throttled) count(reasons []string) {
	counter := &t.Unsaid
	for _, r := range reasons {
		switch {
		case strings.HasSuffix(r, "KeyRangeThroughputExceeded"):
			counter = &t.KeyRange
		case strings.HasSuffix(r, "ProvisionedThroughputExceeded"):
			counter = &t.Provisioned
		case strings.HasSuffix(r, "MaxOnDemandThroughputExceeded"):
			counter = &t.MaxOnDemand
		case strings.HasSuffix(r, "AccountLimitExceeded"):
			counter = &t.Account
		}
	}
	*counter++
}

// Total returns their sum.
func (a Abandoned) Total() int64 { return a.Close + a.Refresh + a.Fence + a.Caller + a.Rest }

// Sub returns what came after older; Remaining stays as it is.
func (s Stats) Sub(older Stats) Stats {
	older.Remaining = 0
	return s.combine(older, -1)
}

func (s Stats) combine(o Stats, sign int64) Stats {
	s.Issued += sign * o.Issued
	s.Waited += sign * o.Waited
	s.Leases += sign * o.Leases
	s.Leased += sign * o.Leased
	s.Attempts += sign * o.Attempts
	s.Throttled.KeyRange += sign * o.Throttled.KeyRange
	s.Throttled.Provisioned += sign * o.Throttled.Provisioned
	s.Throttled.MaxOnDemand += sign * o.Throttled.MaxOnDemand
	s.Throttled.Account += sign * o.Throttled.Account
	s.Throttled.Unsaid += sign * o.Throttled.Unsaid
	s.Recovered += sign * o.Recovered
	s.Returned += sign * o.Returned
	s.Abandoned.Close += sign * o.Abandoned.Close
	s.Abandoned.Refresh += sign * o.Abandoned.Refresh
	s.Abandoned.Fence += sign * o.Abandoned.Fence
	s.Abandoned.Caller += sign * o.Abandoned.Caller
	s.Abandoned.Rest += sign * o.Abandoned.Rest
	s.Remaining += sign * o.Remaining
	return s
}

// Stats returns the totals of the sequence.
func (s *Sequence) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.stats
	out.Remaining = s.stock()
	out.Issued = s.issued() - out.Abandoned.Caller
	return out
}

// Stats returns the totals of all sequences.
func (a *Allocator) Stats() Stats {
	var sum Stats
	for _, s := range a.sequences() {
		sum = sum.combine(s.Stats(), 1)
	}
	return sum
}
