package ddbseq

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// parse reads an item strictly: a number that is absent where there must be
// one, fractional, not a number at all, or outside int64 is an error and never
// a value. Attributes that this version does not know are left alone.
func (d *dynamo) parse(key string, attrs map[string]types.AttributeValue) (*item, error) {
	p := &parser{attrs: attrs, names: d.attrs}
	it := &item{
		key:    key,
		lastID: p.optional(attrLast),
		at:     p.optional(attrAt),
		n:      p.number(attrN),
		tok:    p.text(attrTok),
		born:   p.id(attrBorn),
		epoch:  p.number(attrEpoch),
		ver:    p.id(attrVer),
		from:   p.optional(attrFrom),
		v:      p.number(attrV),
		tune:   p.tuning(),
		day:    p.text(attrDay),
		days:   p.days(),
		totals: totals{leased: p.total(attrLeased), issued: p.total(attrIssued), returned: p.total(attrReturned)},
	}
	it.def, it.paused = p.definition().stored(), it.tune.paused()
	if it.said().limit(dailyLimit{}).max > 0 {
		it.used = p.number(attrUsed)
	} else {
		it.used = p.total(attrUsed) // it decides nothing
	}
	if it.v > layoutVersion {
		// Whatever else the item holds may mean something else by now.
		return it, &layoutError{key: key, table: d.name, v: it.v}
	}
	if p.err != nil {
		return nil, &corruptError{key: key, table: d.name, what: p.err.Error()}
	}
	return it, it.sane(d.name)
}

func (d *dynamo) keyIn(attrs map[string]types.AttributeValue) (string, error) {
	name := d.attrs[attrKey]
	s, ok := attrs[name].(*types.AttributeValueMemberS)
	if !ok {
		return "", &corruptError{table: d.name, what: fmt.Sprintf("key attribute %s is %s", name, show(attrs[name]))}
	}
	return s.Value, nil
}

// parser keeps the first error, so that the fields read as a list.
type parser struct {
	attrs map[string]types.AttributeValue
	names map[string]string
	err   error
}

func (p *parser) fail(attr string, v types.AttributeValue, want string) {
	if p.err == nil {
		p.err = fmt.Errorf("attribute %s is %s, not %s", attr, show(v), want)
	}
}

func (p *parser) integer(attr string, v types.AttributeValue) *int64 {
	n, ok := v.(*types.AttributeValueMemberN)
	if !ok {
		p.fail(attr, v, "an integer")
		return nil
	}
	i, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil {
		p.fail(attr, v, "an integer of 64 bits")
		return nil
	}
	return &i
}

func (p *parser) optional(attr string) *int64 {
	name := p.names[attr]
	if v, ok := p.attrs[name]; ok {
		return p.integer(name, v)
	}
	return nil
}

func (p *parser) number(attr string) int64 {
	if v := p.optional(attr); v != nil {
		return *v
	}
	return 0
}

// total reads a running total, which proves nothing and fails nothing: one that
// has grown beyond int64 is the largest.
func (p *parser) total(attr string) int64 {
	n, ok := p.attrs[p.names[attr]].(*types.AttributeValueMemberN)
	if !ok {
		return 0
	}
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return v
}

// days reads the totals of earlier days, which prove nothing either.
func (p *parser) days() (out []int64) {
	l, ok := p.attrs[p.names[attrDays]].(*types.AttributeValueMemberL)
	if !ok {
		return nil
	}
	for _, v := range l.Value[:min(len(l.Value), keptDays)] {
		n, ok := v.(*types.AttributeValueMemberN)
		if !ok {
			return nil
		}
		i, err := strconv.ParseInt(n.Value, 10, 64)
		if err != nil {
			return nil
		}
		out = append(out, i)
	}
	return out
}

// daysValue is what is stored of them.
func daysValue(days []int64) types.AttributeValue {
	l := &types.AttributeValueMemberL{}
	for _, n := range days {
		l.Value = append(l.Value, &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)})
	}
	return l
}

func (p *parser) text(attr string) string {
	name := p.names[attr]
	switch v := p.attrs[name].(type) {
	case nil:
		return ""
	case *types.AttributeValueMemberS:
		return v.Value
	case *types.AttributeValueMemberB:
		return string(v.Value)
	default:
		p.fail(name, v, "text")
		return ""
	}
}

// id reads a random id, of which an empty one is none.
func (p *parser) id(attr string) string {
	name := p.names[attr]
	v, ok := p.attrs[name]
	if !ok {
		return ""
	}
	s, ok := v.(*types.AttributeValueMemberS)
	if !ok || s.Value == "" {
		p.fail(name, v, "an id")
		return ""
	}
	return s.Value
}

func (p *parser) object(attr string) map[string]types.AttributeValue {
	name := p.names[attr]
	switch v := p.attrs[name].(type) {
	case nil:
		return nil
	case *types.AttributeValueMemberM:
		return v.Value
	default:
		p.fail(name, v, "a map")
		return nil
	}
}

func (p *parser) flag(name string, v types.AttributeValue) bool {
	b, ok := v.(*types.AttributeValueMemberBOOL)
	if !ok {
		p.fail(name, v, "true or false")
		return false
	}
	return b.Value
}

// The elements of tune: numbers of IDs, and durations as "1m30s".
const (
	tuneRunway     = "runway"
	tuneLeaseEvery = "leaseEvery"
	tuneMinBlock   = "minBlock"
	tuneMaxBlock   = "maxBlock"
	tuneFirstBlock = "firstBlock"
	tunePaused     = "paused"
)

// tuning reads what operators write by hand. What it cannot read does not make
// the item corrupt: the process keeps to what it had, and says so.
func (p *parser) tuning() *tuning {
	raw, ok := p.attrs[p.names[attrTune]]
	if !ok {
		return nil
	}
	own := &parser{attrs: p.attrs, names: p.names}
	m := own.object(attrTune)
	number := func(element string) *int64 {
		if v, ok := m[element]; ok {
			return own.integer("tune."+element, v)
		}
		return nil
	}
	span := func(element string) *time.Duration {
		v, ok := m[element]
		if !ok {
			return nil
		}
		s, ok := v.(*types.AttributeValueMemberS)
		if !ok {
			own.fail("tune."+element, v, `a duration such as "1m30s"`)
			return nil
		}
		d, err := time.ParseDuration(s.Value)
		if err != nil {
			own.fail("tune."+element, v, `a duration such as "1m30s"`)
			return nil
		}
		return &d
	}
	t := &tuning{Tuning: Tuning{
		Runway: span(tuneRunway), LeaseEvery: span(tuneLeaseEvery),
		MinBlock: number(tuneMinBlock), MaxBlock: number(tuneMaxBlock), FirstBlock: number(tuneFirstBlock),
	}}
	if v, ok := m[tunePaused]; ok {
		// Whatever is not "false" pauses, as in the condition of a lease.
		b, isBool := v.(*types.AttributeValueMemberBOOL)
		t.Paused = new(!isBool || b.Value)
	}
	if own.err != nil {
		t.bad = own.err.Error()
	}
	if !reflect.DeepEqual(raw, tuneValue(t.Tuning)) {
		t.raw = raw
	}
	return t
}

// tuneValue is what is stored of t.
func tuneValue(t Tuning) types.AttributeValue {
	m := map[string]types.AttributeValue{}
	number := func(element string, v *int64) {
		if v != nil {
			m[element] = &types.AttributeValueMemberN{Value: strconv.FormatInt(*v, 10)}
		}
	}
	span := func(element string, v *time.Duration) {
		if v != nil {
			m[element] = &types.AttributeValueMemberS{Value: v.String()}
		}
	}
	span(tuneRunway, t.Runway)
	span(tuneLeaseEvery, t.LeaseEvery)
	number(tuneMinBlock, t.MinBlock)
	number(tuneMaxBlock, t.MaxBlock)
	number(tuneFirstBlock, t.FirstBlock)
	if t.Paused != nil {
		m[tunePaused] = &types.AttributeValueMemberBOOL{Value: *t.Paused}
	}
	return &types.AttributeValueMemberM{Value: m}
}

// The elements of def.
const (
	defStart     = "start"
	defIncrement = "increment"
	defMin       = "min"
	defMax       = "max"
	defCycle     = "cycle"
	defDaily     = "dailyLimit"
	defZone      = "dailyLimitZone"
)

func (p *parser) definition() clauses {
	m := p.object(attrDef)
	number := func(element string) *int64 {
		if v, ok := m[element]; ok {
			return p.integer("def."+element, v)
		}
		return nil
	}
	c := clauses{start: number(defStart), increment: number(defIncrement), min: number(defMin), max: number(defMax), daily: number(defDaily)}
	if v, ok := m[defZone]; ok {
		s, ok := v.(*types.AttributeValueMemberS)
		if !ok {
			p.fail("def."+defZone, v, "text")
			s = &types.AttributeValueMemberS{}
		}
		c.zone = &s.Value
	}
	if v, ok := m[defCycle]; ok {
		b := p.flag("def."+defCycle, v)
		c.cycle = &b
	}
	return c
}

// defValue is what is stored of c: only what was set.
func defValue(c clauses) types.AttributeValue {
	m := map[string]types.AttributeValue{}
	number := func(element string, v *int64) {
		if v != nil {
			m[element] = &types.AttributeValueMemberN{Value: strconv.FormatInt(*v, 10)}
		}
	}
	number(defStart, c.start)
	number(defIncrement, c.increment)
	number(defMin, c.min)
	number(defMax, c.max)
	number(defDaily, c.daily)
	if c.zone != nil && *c.zone != "" {
		m[defZone] = &types.AttributeValueMemberS{Value: *c.zone}
	}
	if c.cycle != nil {
		m[defCycle] = &types.AttributeValueMemberBOOL{Value: *c.cycle}
	}
	return &types.AttributeValueMemberM{Value: m}
}

// show returns an attribute value as the console would, for errors.
func show(v types.AttributeValue) string {
	switch v := v.(type) {
	case nil:
		return "absent"
	case *types.AttributeValueMemberN:
		return "N " + v.Value
	case *types.AttributeValueMemberS:
		return fmt.Sprintf("S %q", v.Value)
	case *types.AttributeValueMemberBOOL:
		return fmt.Sprintf("BOOL %t", v.Value)
	default:
		return fmt.Sprintf("%T", v)
	}
}
