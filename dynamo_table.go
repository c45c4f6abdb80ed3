package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// tableWait bounds the wait for a new table; on-demand tables take seconds.
const tableWait = 5 * time.Minute

func (d *dynamo) createTable(ctx context.Context) error {
	creator, ok := d.client.(CreateTableAPI)
	if !ok {
		return d.unsupported("CreateTable", "")
	}
	describer, ok := d.client.(DescribeTableAPI)
	if !ok {
		return d.unsupported("DescribeTable", "")
	}
	key := d.attrs[attrKey]
	_, err := creator.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:                 &d.name,
		BillingMode:               types.BillingModePayPerRequest,
		DeletionProtectionEnabled: aws.Bool(true),
		AttributeDefinitions:      []types.AttributeDefinition{{AttributeName: &key, AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:                 []types.KeySchemaElement{{AttributeName: &key, KeyType: types.KeyTypeHash}},
	}, d.perCall)
	if err != nil && !isType[*types.ResourceInUseException](err) {
		return d.failure(ctx, "CreateTable", "", err)
	}
	waiter := dynamodb.NewTableExistsWaiter(describer, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 100*time.Millisecond, 5*time.Second
		o.ClientOptions = append(o.ClientOptions, d.perCall)
	})
	out, err := waiter.WaitForOutput(ctx, &dynamodb.DescribeTableInput{TableName: &d.name}, tableWait)
	if err != nil {
		return d.failure(ctx, "DescribeTable", "", err)
	}
	if have, want := schema(out.Table), d.wantedSchema(); have != want {
		return d.schemaError(have, nil)
	}
	return nil
}

func (d *dynamo) wantedSchema() string { return d.attrs[attrKey] + " (S, partition key)" }

func (d *dynamo) schemaError(have string, err error) error {
	return &LeaseError{Table: d.name, Op: "DescribeTable", Permanent: true, kind: ErrSchema,
		Err: errors.Join(fmt.Errorf("the key is %s, wanted %s", have, d.wantedSchema()), err)}
}

// explainSchema adds both key schemas to the error of a call whose key did not
// fit, if the table may be described.
func (d *dynamo) explainSchema(ctx context.Context, err error) error {
	c, ok := d.client.(DescribeTableAPI)
	if !ok {
		return err
	}
	out, derr := c.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &d.name}, d.perCall)
	if derr != nil || out == nil {
		return err
	}
	return fmt.Errorf("%w (the key is %s, wanted %s)", err, schema(out.Table), d.wantedSchema())
}

// schema describes a table's key in words.
func schema(t *types.TableDescription) string {
	if t == nil {
		return "unknown"
	}
	kinds := map[string]types.ScalarAttributeType{}
	for _, a := range t.AttributeDefinitions {
		kinds[aws.ToString(a.AttributeName)] = a.AttributeType
	}
	var parts []string
	for _, k := range t.KeySchema {
		role := "partition key"
		if k.KeyType == types.KeyTypeRange {
			role = "sort key"
		}
		name := aws.ToString(k.AttributeName)
		parts = append(parts, fmt.Sprintf("%s (%s, %s)", name, kinds[name], role))
	}
	return strings.Join(parts, " and ")
}
