package faultproxy

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Kind says what an [Action] does to a request.
type Kind string

// The kinds of action. Delays and DateSkew go with any of them.
const (
	// KindPass forwards the request and its reply unharmed.
	KindPass Kind = "pass"
	// KindReply answers in upstream's place: an error, a throttle, an empty
	// or a senseless body. With Apply the request is applied first.
	KindReply Kind = "reply"
	// KindLimit throttles a key beyond a rate, as DynamoDB limits one item.
	KindLimit Kind = "limit"
	// KindClose closes the connection without any reply. With Apply the
	// request is applied first, and only its reply is lost.
	KindClose Kind = "close"
	// KindCut applies the request, sends the headers and the first Bytes of
	// the body, and closes the connection.
	KindCut Kind = "cut"
	// KindMutate applies the request and changes the reply. Go only.
	KindMutate Kind = "mutate"
	// KindBlackhole never answers; the connection stays open until the client
	// gives up. With Apply the request is applied first.
	KindBlackhole Kind = "blackhole"
	// KindLate never answers either, and applies the request after Hold or
	// when [Proxy.Release] is called, whether or not the client still waits.
	KindLate Kind = "late"
)

// Ending is how a connection ends: by FIN, which the client reads as an end
// of file, or by RST, which it reads as a reset.
type Ending string

// The endings. The zero value means FIN.
const (
	FIN Ending = "fin"
	RST Ending = "rst"
)

// Action is what happens to a request. The constructors below make the usual
// ones; the fields allow the rest, also from a file of rules.
type Action struct {
	Kind Kind `json:"kind"`

	// Apply forwards the request before a reply, close or blackhole.
	Apply bool `json:"apply,omitempty"`
	// DelayBefore passes before the request is forwarded. A client that gives
	// up meanwhile does not stop it.
	DelayBefore Span `json:"delayBefore,omitzero"`
	// DelayAfter passes between upstream's reply and ours.
	DelayAfter Span `json:"delayAfter,omitzero"`
	// DateSkew moves the Date header of the reply away from our clock.
	DateSkew Span `json:"dateSkew,omitzero"`

	// Status is the HTTP status of a reply. Defaults to 400 with a Code and
	// to 200 without.
	Status int `json:"status,omitempty"`
	// Code is the error code of a reply. It is put into DynamoDB's namespace
	// unless it has one: "com.amazon.coral.service#AccessDeniedException".
	// For a limit it defaults to ThrottlingException.
	Code string `json:"code,omitempty"`
	// Message is the error's message.
	Message string `json:"message,omitempty"`
	// Reasons are the ThrottlingReasons of an error.
	Reasons []Reason `json:"reasons,omitempty"`
	// ReasonsKey is the name under which Reasons are sent. Defaults to what
	// DynamoDB uses: "throttlingReasons" for ThrottlingException and
	// "ThrottlingReasons" for other codes.
	ReasonsKey string `json:"reasonsKey,omitempty"`
	// Fields are further members of an error's body, such as Item.
	Fields map[string]any `json:"fields,omitempty"`
	// RetryAfter is sent in milliseconds as X-Amz-Retry-After.
	RetryAfter Span `json:"retryAfter,omitzero"`
	// Body is the whole body of a reply without Code.
	Body string `json:"body,omitempty"`
	// ContentType goes with Body. Defaults to application/x-amz-json-1.0.
	ContentType string `json:"contentType,omitempty"`

	// Writes and Reads are the units a limit grants each key in a second.
	// Zero does not limit.
	Writes float64 `json:"writes,omitempty"`
	Reads  float64 `json:"reads,omitempty"`
	// Burst is how long a limit saves up what is not used. Defaults to 1 s.
	Burst Span `json:"burst,omitzero"`

	// Bytes is how much of the body a cut sends, always less than all of it.
	Bytes int `json:"bytes,omitempty"`
	// Ending is how a close or a cut ends the connection.
	Ending Ending `json:"ending,omitempty"`

	// Hold is when a late request is delivered. Zero waits for
	// [Proxy.Release].
	Hold Span `json:"hold,omitzero"`

	// Mutate changes the decoded reply (numbers as json.Number) of a request
	// that was applied. It runs on the request's goroutine.
	Mutate func(reply map[string]any) `json:"-"`
}

// Reason is one of DynamoDB's ThrottlingReasons.
type Reason struct {
	Reason string `json:"reason,omitempty"`
	// Resource defaults to the ARN of the request's table.
	Resource string `json:"resource,omitempty"`
}

// Pass lets a request through. Before a rule with a wider match it exempts
// what it matches.
func Pass() Action { return Action{Kind: KindPass} }

// Throttle refuses a request with one of ProvisionedThroughputExceededException,
// ThrottlingException and RequestLimitExceeded, with or without reasons.
func Throttle(code string, reasons ...string) Action {
	a := Error(http.StatusBadRequest, code, "The level of configured provisioned throughput for the table was exceeded.")
	for _, r := range reasons {
		a.Reasons = append(a.Reasons, Reason{Reason: r})
	}
	return a
}

// Limit throttles each key beyond so many write and read units a second, a
// limit of zero being none. Every write counts as one unit, a strongly
// consistent read as one and any other read as a half.
func Limit(writes, reads float64) Action {
	return Action{Kind: KindLimit, Writes: writes, Reads: reads}
}

// Error refuses a request with a DynamoDB error.
func Error(status int, code, message string) Action {
	return Action{Kind: KindReply, Status: status, Code: code, Message: message}
}

// Raw answers with any body: HTML, nothing, or "{}".
func Raw(status int, contentType, body string) Action {
	return Action{Kind: KindReply, Status: status, ContentType: contentType, Body: body}
}

// Empty answers 200 without a body, which the AWS SDK takes for success.
func Empty() Action { return Raw(http.StatusOK, "", "") }

// Drop applies a request and closes the connection without a reply.
func Drop(how Ending) Action { return Action{Kind: KindClose, Apply: true, Ending: how} }

// Reset resets the connection; the request is not applied.
func Reset() Action { return Action{Kind: KindClose, Ending: RST} }

// Cut applies a request and sends n bytes of the reply's body.
func Cut(n int, how Ending) Action { return Action{Kind: KindCut, Bytes: n, Ending: how} }

// Mutate applies a request and changes its reply.
func Mutate(f func(reply map[string]any)) Action { return Action{Kind: KindMutate, Mutate: f} }

// Delay forwards a request later, and its reply later still.
func Delay(before, after Span) Action {
	return Action{Kind: KindPass, DelayBefore: before, DelayAfter: after}
}

// Blackhole never answers; the request is not applied.
func Blackhole() Action { return Action{Kind: KindBlackhole} }

// Late never answers and applies the request after hold, or when
// [Proxy.Release] is called, which comes first; a zero hold waits for Release.
func Late(hold Span) Action { return Action{Kind: KindLate, Hold: hold} }

// AfterApply returns a that applies the request first: an error of which the
// caller cannot know that the write was made.
func (a Action) AfterApply() Action {
	a.Apply = true
	return a
}

// forwards reports whether a sends the request upstream at all.
func (a *Action) forwards() bool {
	switch a.Kind {
	case KindPass, KindCut, KindMutate, KindLate:
		return true
	default:
		return a.Apply
	}
}

// harmless reports whether a changes nothing at all.
func (a *Action) harmless() bool {
	return a.Kind == KindPass && a.DelayBefore.IsZero() && a.DelayAfter.IsZero() && a.DateSkew.IsZero()
}

// label names the fault in the log.
func (a *Action) label() string {
	s := string(a.Kind)
	switch a.Kind {
	case KindReply:
		s = fmt.Sprintf("reply %d", a.Status)
		if a.Code != "" {
			s += " " + a.Code
		}
	case KindClose, KindCut:
		s += " " + string(a.Ending)
	case KindPass:
		if !a.DelayBefore.IsZero() || !a.DelayAfter.IsZero() {
			s = "delay"
		}
	}
	if a.Apply {
		s += " after apply"
	}
	return s
}

// complete checks a and fills in its defaults.
func (a *Action) complete() error {
	switch a.Kind {
	case KindPass, KindReply, KindClose, KindCut, KindBlackhole, KindLate:
	case KindMutate:
		if a.Mutate == nil {
			return errors.New("mutate needs a Go function")
		}
	case KindLimit:
		if a.Writes < 0 || a.Reads < 0 || a.Writes+a.Reads == 0 {
			return errors.New("limit needs writes or reads, not negative")
		}
		if a.Apply {
			return errors.New("limit cannot apply what it refuses")
		}
		a.Burst = orDefault(a.Burst, Exactly(time.Second))
		a.Code = orDefault(a.Code, "ThrottlingException")
		a.Message = orDefault(a.Message, "Throughput exceeds the current throughput limit for your table or index.")
	default:
		return fmt.Errorf("unknown kind %q", a.Kind)
	}
	if a.Code != "" {
		a.Status = orDefault(a.Status, http.StatusBadRequest)
	}
	a.Status = orDefault(a.Status, http.StatusOK)
	if a.Status < 200 || a.Status > 599 {
		return fmt.Errorf("status %d is not one of a reply", a.Status)
	}
	a.ContentType = orDefault(a.ContentType, jsonType)
	a.Ending = orDefault(a.Ending, FIN)
	if a.Ending != FIN && a.Ending != RST {
		return fmt.Errorf("unknown ending %q", a.Ending)
	}
	if a.Bytes < 0 {
		return fmt.Errorf("bytes is negative: %d", a.Bytes)
	}
	if a.Code != "" && a.Body != "" {
		return errors.New("code and body exclude each other")
	}
	return nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
