package ddbseq

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// failure classifies a failed SDK call: would a retry help, at once or later,
// and may the write, if it is one, have been applied? Where that is not known for
// certain it may: the token of the lease settles it. The codes are those of DynamoDB's
// "Error handling" page and of the SDK's retry package.
func (d *dynamo) failure(ctx context.Context, op, key string, err error) error {
	le := &LeaseError{Sequence: key, Table: d.name, Op: op, Err: err}
	if errors.Is(err, errEmptyReply) {
		le.MaybeApplied = true
	} else if api, ok := errors.AsType[smithy.APIError](err); ok {
		le.classifyCode(api.ErrorCode(), err)
		if le.kind == ErrSchema {
			le.Err = d.explainSchema(ctx, err)
		}
	} else {
		le.classifyTransport(err)
	}
	le.MaybeApplied = le.MaybeApplied && op == "UpdateItem"
	le.retryAfter = retryAfter(err)
	return le
}

func (le *LeaseError) classifyCode(code string, err error) {
	switch code {
	case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
		"LimitExceededException", "Throttling", "ThrottledException", "RequestThrottledException",
		"RequestThrottled", "TooManyRequestsException", "BandwidthLimitExceeded", "SlowDown",
		"PriorRequestNotComplete", "EC2ThrottledException", "TransactionInProgressException":
		le.throttled(err)
	case "TransactionConflictException", "ReplicatedWriteConflictException":
		// Someone else's write was in the way. The SDK for Go retries neither.
	case "ExpiredTokenException", "ExpiredToken", "RequestExpired":
		le.now = true // the credentials cache refreshes with the next call
	case "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException",
		"SignatureDoesNotMatch", "RequestTimeTooSkewed", "AuthFailure", "MissingAuthenticationToken",
		"MissingAuthenticationTokenException", "IncompleteSignature", "IncompleteSignatureException",
		"InvalidClientTokenId", "OptInRequired", "NotAuthorized":
		if skewed(err) {
			le.now = true // the SDK has stored the offset of the clocks by now
			return
		}
		le.Permanent, le.kind = true, ErrAccessDenied
		le.unknown = code != "AccessDeniedException" && code != "NotAuthorized" && code != "OptInRequired"
	case "ResourceNotFoundException":
		le.Permanent, le.kind = true, ErrTableNotFound
	case "ValidationException":
		le.Permanent = true
		if m := err.Error(); strings.Contains(m, "does not match the schema") || strings.Contains(m, "missing the key") ||
			strings.Contains(m, "number of conditions on the keys is invalid") {
			le.kind = ErrSchema
		}
	case "InternalServerError", "InternalFailure", "ServiceUnavailable", "ServiceUnavailableException",
		"RequestTimeout", "RequestTimeoutException", "InternalServerErrorException":
		le.MaybeApplied = true
	case "ItemCollectionSizeLimitExceededException", "SerializationException", "ResourceInUseException",
		"InvalidEndpointException", "IdempotentParameterMismatchException", "UnknownOperationException":
		le.Permanent = true
	default:
		switch status := statusOf(err); {
		case status == http.StatusTooManyRequests:
			le.throttled(err)
		case status >= 500 || status < 400:
			le.MaybeApplied = true
		default:
			le.Permanent = true
		}
	}
}

func (le *LeaseError) throttled(err error) {
	le.Throttled, le.kind = true, ErrThrottled
	var reasons []types.ThrottlingReason
	if e, ok := errors.AsType[*types.ProvisionedThroughputExceededException](err); ok {
		reasons = e.ThrottlingReasons
	} else if e, ok := errors.AsType[*types.ThrottlingException](err); ok {
		reasons = e.ThrottlingReasons
	} else if e, ok := errors.AsType[*types.RequestLimitExceeded](err); ok {
		reasons = e.ThrottlingReasons
	}
	for _, r := range reasons {
		if r.Reason != nil && !slices.Contains(le.Reasons, *r.Reason) {
			le.Reasons = append(le.Reasons, *r.Reason)
		}
	}
}

// classifyTransport is for everything that is not an answer of the service.
func (le *LeaseError) classifyTransport(err error) {
	switch {
	case isType[*smithy.InvalidParamsError](err) || strings.Contains(err.Error(), "Missing Region") ||
		strings.Contains(err.Error(), "an AWS region is required"):
		le.Permanent = true
	case isType[*net.DNSError](err):
		// NXDOMAIN is final for the SDK and is not for us: an empty DNS answer is
		// what a regional outage looks like.
	case dialing(err):
	case isType[*smithy.OperationError](err) && !isType[*smithyhttp.ResponseError](err):
		// The request never reached the HTTP client: credentials, signing, or a
		// context that had ended before.
	default:
		// A reset, an EOF, a time-out, a cut or garbled reply, or an error of a
		// client that is not the SDK's.
		le.MaybeApplied = true
		le.now = isType[*smithyhttp.RequestSendError](err) && !timedOut(err)
	}
}

func dialing(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

func timedOut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// skewed reports whether the SDK found that a signature was refused for the
// clocks' difference alone.
func skewed(err error) bool {
	r, ok := errors.AsType[interface {
		error
		RetryableError() bool
	}](err)
	return ok && r.RetryableError()
}

func statusOf(err error) int {
	if re, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return re.HTTPStatusCode()
	}
	return 0
}

// retryAfter reads the X-Amz-Retry-After header, in milliseconds, that the
// SDK's retryer would have read.
func retryAfter(err error) time.Duration {
	re, ok := errors.AsType[*smithyhttp.ResponseError](err)
	if !ok || re.Response == nil || re.Response.Response == nil {
		return 0
	}
	ms, err := strconv.ParseInt(re.Response.Header.Get("X-Amz-Retry-After"), 10, 32)
	if err != nil || ms < 0 {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// errEmptyReply is a reply with status 200 and no body. The SDK takes it for an
// answer without content, which from GetItem would mean that there is no item.
var errEmptyReply = errors.New("reply without a body")

func (d *dynamo) onReply(stack *middleware.Stack) error {
	// Last, next to the wire: before anything has read the body.
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("ddbseq.onReply",
		func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (
			out middleware.DeserializeOutput, metadata middleware.Metadata, err error,
		) {
			out, metadata, err = next.HandleDeserialize(ctx, in)
			resp, ok := out.RawResponse.(*smithyhttp.Response)
			if err != nil || !ok {
				return out, metadata, err
			}
			if t, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
				d.dated.Store(&dated{date: t, at: time.Now()})
			}
			if resp.StatusCode != http.StatusOK {
				return out, metadata, nil
			}
			var first [1]byte
			switch n, rerr := io.ReadFull(resp.Body, first[:]); {
			case rerr == io.EOF:
				return out, metadata, errEmptyReply
			case rerr != nil:
				return out, metadata, rerr
			default:
				resp.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(bytes.NewReader(first[:n]), resp.Body), resp.Body}
			}
			return out, metadata, nil
		}), middleware.After)
}

func isType[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
