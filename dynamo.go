package ddbseq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// UpdateItemAPI is what a client must have for [DynamoDB]. *dynamodb.Client and
// everything that wraps it fit.
type UpdateItemAPI interface {
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
}

// GetItemAPI is used, if the client has it, to learn a sequence before its first
// lease; without it a refused first write teaches the same. Create, Alter, Restart,
// Advance, Describe, Refresh and CreateShadow need it.
type GetItemAPI interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
}

// ScanAPI is used by List.
type ScanAPI interface {
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

// CreateTableAPI is used by CreateTable, together with [DescribeTableAPI].
type CreateTableAPI interface {
	CreateTable(context.Context, *dynamodb.CreateTableInput, ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error)
}

// DescribeTableAPI is used by CreateTable, and to say what is wrong with a
// table whose key does not fit.
type DescribeTableAPI interface {
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
}

var _ interface {
	UpdateItemAPI
	GetItemAPI
	ScanAPI
	CreateTableAPI
	DescribeTableAPI
} = (*dynamodb.Client)(nil)

// TableOptions name the attributes of the table, so that a table that another
// generator made can be adopted.
type TableOptions struct {
	// KeyAttribute is the name of the string partition key. Defaults to
	// "entityType".
	KeyAttribute string

	// CounterAttribute is the name of the number that holds the last ID leased.
	// Defaults to "lastID".
	CounterAttribute string

	// Rename gives other names to the other attributes of the item, by their
	// default names (at, n, tok, born, epoch, ver, def, tune, from, v, day,
	// used, days, leased, issued, returned), where the table uses one of these for
	// something else. Defaults to none.
	Rename map[string]string
}

var tableName = regexp.MustCompile(`^[a-zA-Z0-9_.:/-]+$`)

// DynamoDB returns the Store that a DynamoDB table is. The table has one string
// partition key; [Allocator.CreateTable] makes a suitable one.
//
// Every call carries [aws.NopRetryer]: the retry loop is the Allocator's own,
// whatever the settings of the client, and neither takes from the client's
// retry quota nor is slowed down by it.
func DynamoDB(client UpdateItemAPI, table string, optFns ...func(*TableOptions)) *Store {
	opts := TableOptions{KeyAttribute: "entityType", CounterAttribute: "lastID"}
	for _, fn := range optFns {
		if fn != nil {
			fn(&opts)
		}
	}
	d := &dynamo{client: client, name: table}
	d.attrs, d.err = opts.attributes()
	switch {
	case client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil():
		d.err = fmt.Errorf("%w: DynamoDB: client is nil", ErrInvalidOptions)
	case table == "":
		d.err = fmt.Errorf("%w: DynamoDB: table is empty", ErrInvalidOptions)
	case !tableName.MatchString(table):
		d.err = fmt.Errorf("%w: DynamoDB: %q is no name of a table, nor an ARN", ErrInvalidOptions, table)
	}
	return &Store{backend: d}
}

// The attributes of an item by their default names, as the documentation lists
// them. Expressions name them through #aliases equal to these names.
const (
	attrKey      = "entityType"
	attrLast     = "lastID"
	attrAt       = "at"
	attrN        = "n"
	attrTok      = "tok"
	attrBorn     = "born"
	attrEpoch    = "epoch"
	attrVer      = "ver"
	attrDef      = "def"
	attrTune     = "tune"
	attrFrom     = "from"
	attrV        = "v"
	attrDay      = "day"
	attrUsed     = "used"
	attrDays     = "days"
	attrLeased   = "leased"
	attrIssued   = "issued"
	attrReturned = "returned"

	maxAttributeName  = 64
	maxAttributeNames = 210 // all together, beside a key of 255 and the values
)

func (o TableOptions) attributes() (map[string]string, error) {
	attrs := map[string]string{attrKey: o.KeyAttribute, attrLast: o.CounterAttribute}
	for _, a := range []string{attrAt, attrN, attrTok, attrBorn, attrEpoch, attrVer, attrDef, attrTune,
		attrFrom, attrV, attrDay, attrUsed, attrDays, attrLeased, attrIssued, attrReturned} {
		attrs[a] = a
	}
	for from, to := range o.Rename {
		if _, ok := attrs[from]; !ok || from == attrKey || from == attrLast {
			return nil, fmt.Errorf("%w: TableOptions.Rename: there is no attribute %q", ErrInvalidOptions, from)
		}
		attrs[from] = to
	}
	seen, total := map[string]string{}, 0
	for a, name := range attrs {
		total += len(name)
		if name == "" || len(name) > maxAttributeName {
			return nil, fmt.Errorf("%w: TableOptions: name %q of attribute %s must have 1 to %d bytes", ErrInvalidOptions, name, a, maxAttributeName)
		}
		if b, ok := seen[name]; ok {
			return nil, fmt.Errorf("%w: TableOptions: attributes %s and %s are both named %q", ErrInvalidOptions, a, b, name)
		}
		seen[name] = a
	}
	if total > maxAttributeNames {
		return nil, fmt.Errorf("%w: TableOptions: the attribute names have %d bytes together, at most %d keep an item below 1 KB", ErrInvalidOptions, total, maxAttributeNames)
	}
	return attrs, nil
}

type dynamo struct {
	client UpdateItemAPI
	name   string
	attrs  map[string]string // default name -> name in the table
	err    error             // invalid options
	dated  atomic.Pointer[dated]
}

// dated is when the newest reply came, by the service's clock and by ours.
type dated struct{ date, at time.Time }

func (d *dynamo) table() string { return d.name }
func (d *dynamo) check() error  { return d.err }

// perCall makes every SDK call one wire attempt, and an empty reply an error, and
// reads the clock of the service off every reply.
func (d *dynamo) perCall(o *dynamodb.Options) {
	o.Retryer = aws.NopRetryer{}
	o.APIOptions = append(o.APIOptions, awsmiddleware.AddUserAgentKey("ddbseq"), d.onReply)
}

func (d *dynamo) keyOf(key string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{d.attrs[attrKey]: &types.AttributeValueMemberS{Value: key}}
}

// clock goes by the Date header of the replies: one clock for all processes. From
// there it goes on by our monotonic clock: the other one may be set meanwhile.
func (d *dynamo) clock() time.Time {
	if r := d.dated.Load(); r != nil {
		return r.date.Add(time.Since(r.at))
	}
	return time.Now()
}

func (d *dynamo) get(ctx context.Context, key string) (*item, error) { return d.read(ctx, key, true) }

func (d *dynamo) peek(ctx context.Context, key string) (*item, error) { return d.read(ctx, key, false) }

func (d *dynamo) read(ctx context.Context, key string, consistent bool) (*item, error) {
	c, ok := d.client.(GetItemAPI)
	if !ok {
		return nil, d.unsupported("GetItem", key)
	}
	out, err := c.GetItem(ctx, &dynamodb.GetItemInput{
		TableName:      &d.name,
		Key:            d.keyOf(key),
		ConsistentRead: &consistent,
	}, d.perCall)
	if err != nil {
		return nil, d.failure(ctx, "GetItem", key, err)
	}
	if out == nil || len(out.Item) == 0 {
		return nil, nil
	}
	return d.parse(key, out.Item)
}

func (d *dynamo) apply(ctx context.Context, ch *change) (*item, error) {
	e := d.express(ch)
	out, err := d.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName:                           &d.name,
		Key:                                 d.keyOf(ch.key),
		UpdateExpression:                    aws.String(e.update()),
		ConditionExpression:                 aws.String(strings.Join(e.conds, " AND ")),
		ExpressionAttributeNames:            e.names,
		ExpressionAttributeValues:           e.values,
		ReturnValues:                        types.ReturnValueAllNew,
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	}, d.perCall)
	if ccf, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		return nil, d.refused(ctx, ch.key, ccf.Item)
	}
	if err != nil {
		return nil, d.failure(ctx, "UpdateItem", ch.key, err)
	}
	if out == nil || len(out.Attributes) == 0 {
		// The SDK reports a 200 without a body as success. It is no answer, and
		// least of all the number 0.
		return nil, &LeaseError{Sequence: ch.key, Table: d.name, Op: "UpdateItem", MaybeApplied: true,
			Err: errors.New("reply without attributes")}
	}
	return d.parse(ch.key, out.Attributes)
}

// refused turns a failed condition into its answer: the old item, which the
// service returns, or which is read where it does not (older emulators,
// policies). Without a GetItem an absent old item means a missing item.
func (d *dynamo) refused(ctx context.Context, key string, old map[string]types.AttributeValue) error {
	if len(old) == 0 {
		it, err := d.get(ctx, key)
		switch {
		case errors.Is(err, ErrUnsupported) || errors.Is(err, ErrAccessDenied):
			return &conditionError{}
		case err != nil:
			return err
		}
		return &conditionError{old: it}
	}
	it, err := d.parse(key, old)
	if err != nil {
		return err
	}
	return &conditionError{old: it}
}

func (d *dynamo) unsupported(op, key string) error {
	return &LeaseError{Sequence: key, Table: d.name, Op: op, Permanent: true, kind: ErrUnsupported,
		Err: fmt.Errorf("%w: %T has no method %s", ErrUnsupported, d.client, op)}
}

// expression is an update and its condition. Each name and each value is
// entered by the clause that uses it: DynamoDB refuses unused ones.
type expression struct {
	d           *dynamo
	sets, drops []string
	conds       []string
	names       map[string]string
	values      map[string]types.AttributeValue
}

func (e *expression) name(attr string) string {
	e.names["#"+attr] = e.d.attrs[attr]
	return "#" + attr
}

// path names an element of a map attribute.
func (e *expression) path(attr, element string) string {
	e.names["#"+element] = element
	return e.name(attr) + ".#" + element
}

func (e *expression) value(alias string, v types.AttributeValue) string {
	e.values[":"+alias] = v
	return ":" + alias
}

func (e *expression) num(alias string, v int64) string { return e.big(alias, bigOf(v)) }

func (e *expression) big(alias string, v *big.Int) string {
	return e.value(alias, &types.AttributeValueMemberN{Value: v.String()})
}

func (e *expression) str(alias, v string) string {
	return e.value(alias, &types.AttributeValueMemberS{Value: v})
}

func (e *expression) set(attr, format string, args ...any) {
	e.sets = append(e.sets, e.name(attr)+" = "+fmt.Sprintf(format, args...))
}

func (e *expression) drop(attrs ...string) {
	for _, a := range attrs {
		e.drops = append(e.drops, e.name(a))
	}
}

func (e *expression) cond(format string, args ...any) {
	e.conds = append(e.conds, fmt.Sprintf(format, args...))
}

func (e *expression) update() string {
	var parts []string
	if len(e.sets) > 0 {
		parts = append(parts, "SET "+strings.Join(e.sets, ", "))
	}
	if len(e.drops) > 0 {
		parts = append(parts, "REMOVE "+strings.Join(e.drops, ", "))
	}
	return strings.Join(parts, " ")
}

func (d *dynamo) express(ch *change) *expression {
	e := &expression{d: d, names: map[string]string{}, values: map[string]types.AttributeValue{}}
	e.condition(ch)
	e.effect(ch)
	return e
}

// condition is judge, as DynamoDB says it.
func (e *expression) condition(ch *change) {
	if ch.create {
		e.cond("attribute_not_exists(%s)", e.name(attrKey))
		return
	}
	e.cond("attribute_exists(%s)", e.name(attrKey))
	switch {
	case ch.holds != "":
		e.cond("%s = %s", e.name(attrTok), e.str("holds", ch.holds))
	case ch.touches():
		e.cond("(attribute_not_exists(%[1]s) OR %[1]s <> %[2]s)", e.name(attrTok), e.str("tok", ch.token))
	}
	e.same(attrBorn, ch.base.born)
	if ch.base.epoch != 0 {
		e.cond("%s = %s", e.name(attrEpoch), e.num("oldEpoch", ch.base.epoch))
	} else {
		e.cond("(attribute_not_exists(%[1]s) OR %[1]s = %[2]s)", e.name(attrEpoch), e.num("oldEpoch", 0))
	}
	e.same(attrVer, ch.base.ver)
	e.cond("(attribute_not_exists(%[1]s) OR %[1]s <= %[2]s)", e.name(attrV), e.num("v", layoutVersion))

	ascending := ch.base.definition().ascending()
	notBehind, notBeyond := ">=", "<="
	if !ascending {
		notBehind, notBeyond = "<=", ">="
	}
	if ch.fence {
		// A comparison with an absent lastID is false, as it should be.
		e.cond("(attribute_not_exists(%[1]s) OR %[2]s %[3]s %[1]s)", e.name(attrAt), e.name(attrLast), notBehind)
	}
	if ch.running {
		e.cond("(attribute_not_exists(%[1]s) OR %[1]s = %[2]s)", e.path(attrTune, tunePaused),
			e.value("running", &types.AttributeValueMemberBOOL{Value: false}))
	}
	if ch.atLimit != nil {
		e.cond("(attribute_not_exists(%[1]s) OR %[1]s %[2]s %[3]s)", e.name(attrAt), notBeyond, e.num("atLimit", *ch.atLimit))
	}
	var places []string
	if ch.absent {
		from := fmt.Sprintf("attribute_not_exists(%s)", e.name(attrFrom))
		if ch.base.from != nil {
			from = fmt.Sprintf("%s = %s", e.name(attrFrom), e.num("oldFrom", *ch.base.from))
		}
		places = append(places, fmt.Sprintf("attribute_not_exists(%s) AND %s", e.name(attrLast), from))
	}
	if ch.present {
		within := "attribute_exists(" + e.name(attrLast) + ")"
		if ch.lo != nil {
			within += fmt.Sprintf(" AND %s >= %s", e.name(attrLast), e.big("lo", ch.lo))
		}
		if ch.hi != nil {
			within += fmt.Sprintf(" AND %s <= %s", e.name(attrLast), e.big("hi", ch.hi))
		}
		places = append(places, within)
	}
	e.cond("(%s)", strings.Join(places, " OR "))
	if ch.tune != nil {
		e.sameTune(ch.base.tune)
	}
	if l := ch.limit; l != nil {
		switch {
		case !l.roll && l.max > 0:
			absent := ""
			if l.n <= l.max { // what somebody removed is read as 0
				absent = "attribute_not_exists(" + e.name(attrUsed) + ") OR "
			}
			e.cond("%s = %s AND (%s%s <= %s)", e.name(attrDay), e.str("day", l.day), absent, e.name(attrUsed), e.num("maxUsed", l.max-l.n))
		case l.roll:
			e.same(attrDay, l.from)
			if l.from != "" && l.used != math.MaxInt64 { // which is as far as we read
				absent := ""
				if l.used == 0 {
					absent = "attribute_not_exists(" + e.name(attrUsed) + ") OR "
				}
				e.cond("(%s%s = %s)", absent, e.name(attrUsed), e.num("oldUsed", l.used))
			}
		}
	}
}

// same demands that a string attribute is as known, absent where none is known.
func (e *expression) same(attr, known string) {
	if known == "" {
		e.cond("attribute_not_exists(%s)", e.name(attr))
	} else {
		e.cond("%s = %s", e.name(attr), e.str("old_"+attr, known))
	}
}

// sameTune demands that tune is as known: element by element, because not all
// that calls itself compatible compares maps.
func (e *expression) sameTune(known *tuning) {
	if known == nil {
		e.cond("attribute_not_exists(%s)", e.name(attrTune))
		return
	}
	raw, ok := known.raw.(types.AttributeValue)
	if !ok {
		raw = tuneValue(known.Tuning)
	}
	m, ok := raw.(*types.AttributeValueMemberM)
	if !ok {
		e.cond("%s = %s", e.name(attrTune), e.value("oldTune", raw))
		return
	}
	for _, element := range []string{tuneRunway, tuneLeaseEvery, tuneMinBlock, tuneMaxBlock, tuneFirstBlock, tunePaused} {
		if v, ok := m.Value[element]; ok {
			e.cond("%s = %s", e.path(attrTune, element), e.value("old_"+element, v))
		} else {
			e.cond("attribute_not_exists(%s)", e.path(attrTune, element))
		}
	}
}

// effect is change.effect, as DynamoDB says it.
func (e *expression) effect(ch *change) {
	switch {
	case ch.move != nil:
		// Only ADD or SET with a path of its own makes the sum atomic; both
		// targets see the item as it was before the update.
		sum := fmt.Sprintf("if_not_exists(%s, %s) + %s", e.name(attrLast), e.big("origin", ch.origin()), e.big("move", ch.move))
		e.set(attrLast, "%s", sum)
		e.set(attrAt, "%s", sum)
		e.drop(attrFrom)
	case ch.set != nil:
		v := e.num("set", *ch.set)
		e.set(attrLast, "%s", v)
		e.set(attrAt, "%s", v)
		e.drop(attrFrom)
	case ch.clear != nil:
		e.drop(attrLast, attrAt)
		e.set(attrFrom, "%s", e.num("from", *ch.clear))
	case ch.follow:
		e.set(attrAt, "%s", e.name(attrLast))
	}
	if ch.touches() {
		e.set(attrN, "%s", e.num("n", ch.n))
	}
	if ch.touches() || ch.create {
		e.set(attrTok, "%s", e.str("tok", ch.token))
	}
	if ch.epoch > 0 {
		e.set(attrEpoch, "%s", e.num("epoch", ch.epoch))
	}
	if ch.def != nil {
		e.set(attrDef, "%s", e.value("def", defValue(*ch.def)))
		e.set(attrVer, "%s", e.str("ver", ch.ver))
		e.set(attrV, "%s", e.num("v", layoutVersion))
	}
	if ch.born != "" {
		e.set(attrBorn, "if_not_exists(%s, %s)", e.name(attrBorn), e.str("born", ch.born))
	}
	if ch.pin != nil {
		e.set(attrFrom, "%s", e.num("pin", *ch.pin))
	}
	if l := ch.limit; l != nil && l.roll {
		e.set(attrDay, "%s", e.str("day", l.day))
		e.set(attrUsed, "%s", e.num("used", l.n))
		if l.from != "" {
			e.set(attrDays, "%s", e.value("days", daysValue(l.days)))
		}
	} else if l != nil {
		if l.max == 0 {
			e.set(attrDay, "if_not_exists(%s, %s)", e.name(attrDay), e.str("day", l.day))
		}
		e.set(attrUsed, "if_not_exists(%s, %s) + %s", e.name(attrUsed), e.num("zero", 0), e.num("used", l.n))
	}
	if ch.unuse > 0 {
		e.set(attrUsed, "if_not_exists(%[1]s, %[2]s) - %[2]s", e.name(attrUsed), e.num("unuse", ch.unuse))
	}
	e.add(attrLeased, ch.add.leased)
	e.add(attrIssued, ch.add.issued)
	e.add(attrReturned, ch.add.returned)
	if ch.tune != nil {
		e.set(attrTune, "%s", e.value("tune", tuneValue(ch.tune.Tuning)))
	}
}

// add adds to a running total.
func (e *expression) add(attr string, n int64) {
	if n != 0 {
		e.set(attr, "if_not_exists(%s, %s) + %s", e.name(attr), e.num("zero", 0), e.num("add_"+attr, n))
	}
}

func (d *dynamo) page(ctx context.Context, prefix string, at cursor) (out []listed, next cursor, err error) {
	c, ok := d.client.(ScanAPI)
	if !ok {
		return nil, nil, d.unsupported("Scan", "")
	}
	in := &dynamodb.ScanInput{TableName: &d.name, ConsistentRead: aws.Bool(true)}
	if at != nil {
		in.ExclusiveStartKey = at.(map[string]types.AttributeValue)
	}
	page, err := c.Scan(ctx, in, d.perCall)
	if err == nil && page == nil {
		err = errors.New("an empty answer")
	}
	if err != nil {
		return nil, nil, d.failure(ctx, "Scan", "", err)
	}
	for _, attrs := range page.Items {
		key, err := d.keyIn(attrs)
		if err != nil {
			out = append(out, listed{err: err})
		} else if below(prefix, key) {
			it, err := d.parse(key, attrs)
			out = append(out, listed{it, err})
		}
	}
	if len(page.LastEvaluatedKey) > 0 {
		next = page.LastEvaluatedKey
	}
	return out, next, nil
}
