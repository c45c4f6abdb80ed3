package faultproxy

import (
	"fmt"
	"strings"
	"time"
)

// Span is a length of time, constant or drawn anew for each request between
// two bounds. As text it reads "50ms" or "50ms..2s". The zero Span is no time.
type Span struct{ Min, Max time.Duration }

// Exactly returns the constant span d.
func Exactly(d time.Duration) Span { return Span{d, d} }

// Between returns a span drawn uniformly from [lo, hi].
func Between(lo, hi time.Duration) Span { return Span{lo, hi} }

// at returns the length for a draw u in [0, 1).
func (s Span) at(u float64) time.Duration {
	if s.Max <= s.Min {
		return s.Min
	}
	return s.Min + time.Duration(u*float64(s.Max-s.Min))
}

// IsZero reports whether s is the zero Span; encoding/json asks for omitzero.
func (s Span) IsZero() bool { return s == Span{} }

func (s Span) String() string {
	if s.Max <= s.Min {
		return s.Min.String()
	}
	return s.Min.String() + ".." + s.Max.String()
}

// MarshalText implements [encoding.TextMarshaler].
func (s Span) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Span) UnmarshalText(text []byte) error {
	lo, hi, ranged := strings.Cut(string(text), "..")
	first, err := time.ParseDuration(lo)
	if err != nil {
		return err
	}
	if !ranged {
		*s = Exactly(first)
		return nil
	}
	last, err := time.ParseDuration(hi)
	if err != nil {
		return err
	}
	if last < first {
		return fmt.Errorf("span %q ends before it begins", text)
	}
	*s = Between(first, last)
	return nil
}
