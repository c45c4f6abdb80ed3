package faultproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/ddbseq/ddbseq/internal/emulator"
	"github.com/ddbseq/ddbseq/internal/faultproxy"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := emulator.StopAll(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func sdk(p *faultproxy.Proxy) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(p.URL()),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
		Retryer:    aws.NopRetryer{},
		HTTPClient: client,
	})
}

func updateInput(table string) *dynamodb.UpdateItemInput {
	return &dynamodb.UpdateItemInput{
		TableName:                           aws.String(table),
		Key:                                 map[string]types.AttributeValue{"entityType": &types.AttributeValueMemberS{Value: "a"}},
		UpdateExpression:                    aws.String("SET lastID = if_not_exists(lastID, :zero) + :one"),
		ExpressionAttributeValues:           map[string]types.AttributeValue{":zero": &types.AttributeValueMemberN{Value: "0"}, ":one": &types.AttributeValueMemberN{Value: "1"}},
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}
}

// as returns a check that an error is of type E, and what else holds of it.
func as[E error](more ...func(E) bool) func(error) bool {
	return func(err error) bool {
		var e E
		if !errors.As(err, &e) {
			return false
		}
		for _, f := range more {
			if !f(e) {
				return false
			}
		}
		return true
	}
}

func code(want string) func(error) bool {
	return as(func(e smithy.APIError) bool { return e.ErrorCode() == want })
}

func status(want int) func(error) bool {
	return as(func(e *awshttp.ResponseError) bool { return e.HTTPStatusCode() == want })
}

// isReset reports a connection that was reset in the body. Once in some hundred
// times net/http has closed its end before the body is read, and says that.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func TestTheSDKSeesTheErrorsOfDynamoDB(t *testing.T) {
	const reason = "TableWriteKeyRangeThroughputExceeded"
	hasReason := func(reasons []types.ThrottlingReason) bool {
		return len(reasons) == 1 && aws.ToString(reasons[0].Reason) == reason && aws.ToString(reasons[0].Resource) != ""
	}
	withItem := faultproxy.Error(400, "ConditionalCheckFailedException", "The conditional request failed")
	withItem.Fields = map[string]any{"Item": map[string]any{"lastID": map[string]any{"N": "7"}}}
	misspelt := faultproxy.Throttle("ThrottlingException", reason)
	misspelt.ReasonsKey = "ThrottlingReasons"
	hinted := faultproxy.Throttle("ThrottlingException")
	hinted.RetryAfter = faultproxy.Exactly(1500 * time.Millisecond)
	limit := faultproxy.Limit(0.001, 0)

	tests := []struct {
		name   string
		action faultproxy.Action
		want   func(error) bool
	}{
		{"provisioned throughput", faultproxy.Throttle("ProvisionedThroughputExceededException", reason),
			as(func(e *types.ProvisionedThroughputExceededException) bool { return hasReason(e.ThrottlingReasons) })},
		{"throttling", faultproxy.Throttle("ThrottlingException", reason),
			as(func(e *types.ThrottlingException) bool { return hasReason(e.ThrottlingReasons) })},
		{"throttling, coral namespace", faultproxy.Throttle("com.amazon.coral.availability#ThrottlingException", reason),
			as(func(e *types.ThrottlingException) bool { return hasReason(e.ThrottlingReasons) })},
		{"request limit", faultproxy.Throttle("RequestLimitExceeded", reason),
			as(func(e *types.RequestLimitExceeded) bool { return hasReason(e.ThrottlingReasons) })},
		{"throttling without reasons", faultproxy.Throttle("ThrottlingException"),
			as(func(e *types.ThrottlingException) bool { return len(e.ThrottlingReasons) == 0 })},
		{"reasons misspelt", misspelt,
			as(func(e *types.ThrottlingException) bool { return len(e.ThrottlingReasons) == 0 })},
		{"retry-after", hinted,
			as(func(e *awshttp.ResponseError) bool { return e.Response.Header.Get("X-Amz-Retry-After") == "1500" })},
		{"limit", limit, as(func(e *types.ThrottlingException) bool { return hasReason(e.ThrottlingReasons) })},
		{"condition with the old item", withItem, as(func(e *types.ConditionalCheckFailedException) bool {
			n, ok := e.Item["lastID"].(*types.AttributeValueMemberN)
			return ok && n.Value == "7"
		})},
		{"transaction conflict", faultproxy.Error(400, "TransactionConflictException", ""), as[*types.TransactionConflictException]()},
		{"replicated write conflict", faultproxy.Error(400, "ReplicatedWriteConflictException", ""), as[*types.ReplicatedWriteConflictException]()},
		{"collection size", faultproxy.Error(400, "ItemCollectionSizeLimitExceededException", ""), as[*types.ItemCollectionSizeLimitExceededException]()},
		{"limit exceeded", faultproxy.Error(400, "LimitExceededException", ""), code("LimitExceededException")},
		{"no table", faultproxy.Error(400, "ResourceNotFoundException", ""), as[*types.ResourceNotFoundException]()},
		{"internal error", faultproxy.Error(500, "InternalServerError", ""), as[*types.InternalServerError]()},
		{"validation", faultproxy.Error(400, "com.amazon.coral.validate#ValidationException", ""), code("ValidationException")},
		{"access denied", faultproxy.Error(400, "com.amazon.coral.service#AccessDeniedException", ""), code("AccessDeniedException")},
		{"expired token", faultproxy.Error(400, "ExpiredTokenException", ""), code("ExpiredTokenException")},
		{"unrecognized client", faultproxy.Error(400, "UnrecognizedClientException", ""), code("UnrecognizedClientException")},
		{"signature", faultproxy.Error(400, "InvalidSignatureException", ""), code("InvalidSignatureException")},
		{"unavailable", faultproxy.Error(503, "ServiceUnavailable", ""), code("ServiceUnavailable")},
		{"unavailable, HTML", faultproxy.Raw(503, "text/html", "<html>"), status(503)},
		{"too many requests", faultproxy.Raw(429, "", "{}"), status(429)},
		{"bad request, text", faultproxy.Raw(400, "text/plain", "no"), status(400)},
		{"drop, FIN", faultproxy.Drop(faultproxy.FIN), is(io.EOF)},
		{"drop, RST", faultproxy.Drop(faultproxy.RST), is(syscall.ECONNRESET)},
		{"cut, FIN", faultproxy.Cut(5, faultproxy.FIN), func(err error) bool {
			return as[*smithy.DeserializationError]()(err) && errors.Is(err, io.ErrUnexpectedEOF)
		}},
		{"cut, RST", faultproxy.Cut(5, faultproxy.RST), func(err error) bool {
			return as[*smithy.DeserializationError]()(err) && isReset(err)
		}},
		{"empty reply", faultproxy.Empty().AfterApply(), is(nil)},
		{"empty object", faultproxy.Raw(http.StatusOK, "", "{}"), is(nil)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := newProxy(t, newUpstream(t))
			always(t, p, test.action)
			db := sdk(p)
			if test.action.Kind == faultproxy.KindLimit { // the bucket holds one
				if _, err := db.UpdateItem(t.Context(), updateInput("t")); err != nil {
					t.Fatal(err)
				}
			}
			out, err := db.UpdateItem(t.Context(), updateInput("t"))
			if !test.want(err) {
				t.Errorf("the SDK returns %T: %v", err, err)
			}
			if err == nil && len(out.Attributes) != 0 {
				t.Errorf("attributes from nowhere: %v", out.Attributes)
			}
			e := last(t, p)
			if e.Op != "UpdateItem" || e.Table != "t" || e.Key != "a" || e.Fault == "" {
				t.Errorf("entry %+v", e)
			}
		})
	}
}

func TestTheSDKGivesUpOnABlackhole(t *testing.T) {
	p := newProxy(t, newUpstream(t))
	always(t, p, faultproxy.Blackhole())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := sdk(p).UpdateItem(ctx, updateInput("t"))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestTheSDKIsRefusedWhileDown(t *testing.T) {
	p := newProxy(t, newUpstream(t))
	p.Down()
	_, err := sdk(p).UpdateItem(t.Context(), updateInput("t"))
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
}

// TestALostReplyIsAppliedInARealTable shows the whole rig: emulator, proxy, SDK.
func TestALostReplyIsAppliedInARealTable(t *testing.T) {
	endpoint := emulator.Endpoint(t, emulator.Default())
	p, err := faultproxy.New(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	db := sdk(p)
	defer client.CloseIdleConnections()
	table := fmt.Sprintf("faultproxy-%d", time.Now().UnixNano())
	_, err = db.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName:            &table,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("entityType"), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("entityType"), KeyType: types.KeyTypeHash}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := dynamodb.NewTableExistsWaiter(db, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 10*time.Millisecond, 50*time.Millisecond
	})
	if err := w.Wait(t.Context(), &dynamodb.DescribeTableInput{TableName: &table}, 10*time.Second); err != nil {
		t.Fatal(err)
	}

	setRules(t, p, faultproxy.Rule{Op: "UpdateItem", Key: "a", Count: 1, Action: faultproxy.Drop(faultproxy.RST)})
	if _, err := db.UpdateItem(t.Context(), updateInput(table)); err == nil {
		t.Fatal("the reply came through")
	}
	if e := last(t, p); e.Applied != faultproxy.Yes || e.UpstreamStatus != 200 {
		t.Errorf("%+v", e)
	}
	out, err := db.UpdateItem(t.Context(), updateInput(table))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := out.Attributes["lastID"].(*types.AttributeValueMemberN); !ok || n.Value != "2" {
		t.Errorf("lastID = %v, want 2: the lost write and this one", out.Attributes["lastID"])
	}
	if got := p.Counts()[faultproxy.CountKey{Op: "UpdateItem", Key: "a"}]; got != (faultproxy.Count{Requests: 2, Applied: 2, Faulted: 1}) {
		t.Errorf("counters %+v", got)
	}
}
