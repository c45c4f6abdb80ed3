package ddbseq

import (
	"fmt"
	"strconv"

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
		paused: p.paused(),
	}
	it.def = p.definition()
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

func (p *parser) paused() bool {
	v, ok := p.object(attrTune)["paused"]
	return ok && p.flag("tune.paused", v)
}

// The elements of def.
const (
	defStart     = "start"
	defIncrement = "increment"
	defMin       = "min"
	defMax       = "max"
	defCycle     = "cycle"
)

func (p *parser) definition() clauses {
	m := p.object(attrDef)
	number := func(element string) *int64 {
		if v, ok := m[element]; ok {
			return p.integer("def."+element, v)
		}
		return nil
	}
	c := clauses{start: number(defStart), increment: number(defIncrement), min: number(defMin), max: number(defMax)}
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
