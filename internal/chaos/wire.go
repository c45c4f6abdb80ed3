package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// attribute is a DynamoDB attribute value, as far as it matters here.
type attribute struct{ S, N *string }

// exchange is what the bodies of requests and replies have in common.
type exchange struct {
	Key                       map[string]attribute
	ExpressionAttributeValues map[string]attribute
	Attributes                map[string]attribute // of an applied UpdateItem
	Item                      map[string]attribute // of a refused one, and of GetItem
}

func decode(body []byte) (exchange, error) {
	var x exchange
	err := json.Unmarshal(body, &x)
	return x, err
}

// state is an item without its definition.
type state struct {
	Last, At, From *int64
	N              int64
	Tok            string
}

func parseState(attrs map[string]attribute) (state, error) {
	var st state
	var err error
	number := func(name string) *int64 {
		a, ok := attrs[name]
		if !ok {
			return nil
		}
		if a.N == nil {
			err = fmt.Errorf("attribute %s is not a number", name)
			return nil
		}
		v, e := strconv.ParseInt(*a.N, 10, 64)
		if e != nil {
			err = fmt.Errorf("attribute %s: %w", name, e)
		}
		return &v
	}
	st.Last, st.At, st.From = number("lastID"), number("at"), number("from")
	if n := number("n"); n != nil {
		st.N = *n
	}
	if tok := attrs["tok"].S; tok != nil {
		st.Tok = *tok
	}
	return st, err
}

func (st state) String() string {
	return fmt.Sprintf("lastID=%s at=%s from=%s n=%d tok=%s", show(st.Last), show(st.At), show(st.From), st.N, st.Tok)
}

func (st state) equal(o state) bool { return st.String() == o.String() }

func show(v *int64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatInt(*v, 10)
}

// operation returns the name in an X-Amz-Target header.
func operation(target string) string {
	return target[strings.LastIndexByte(target, '.')+1:]
}
