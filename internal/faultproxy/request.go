package faultproxy

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// Request is one request as the rules see it.
type Request struct {
	Seq    int64  // its number, from 1, in order of arrival
	Op     string // the operation, such as UpdateItem
	Table  string
	Key    string // the value of the partition key; empty where there is none
	Header http.Header
	Body   []byte

	method, host string
	url          *url.URL
	consistent   bool
}

// attribute is an attribute value as sent, {"S": "boards.item"}.
type attribute map[string]json.RawMessage

// parseRequest reads what rules need. A body that is not a DynamoDB request
// leaves the fields empty: upstream shall say what is wrong with it.
func parseRequest(r *http.Request, body []byte, keyAttribute string) *Request {
	req := &Request{Header: r.Header, Body: body, method: r.Method, host: r.Host, url: r.URL}
	_, req.Op, _ = strings.Cut(r.Header.Get("X-Amz-Target"), ".")

	var wire struct {
		TableName      string
		Key, Item      map[string]attribute
		ConsistentRead bool
	}
	if json.Unmarshal(body, &wire) != nil {
		return req
	}
	req.Table, req.consistent = wire.TableName, wire.ConsistentRead
	if keyAttribute != "" {
		if v, ok := wire.Key[keyAttribute]; ok {
			req.Key = v.text()
		} else {
			req.Key = wire.Item[keyAttribute].text()
		}
		return req
	}
	// Without a name only a key of one string tells which attribute is meant.
	strs := 0
	for _, v := range wire.Key {
		if _, ok := v["S"]; ok {
			strs++
			req.Key = v.text()
		}
	}
	if strs != 1 {
		req.Key = ""
	}
	return req
}

// text returns a string, number or (in base64) binary value.
func (a attribute) text() string {
	for _, typ := range []string{"S", "N", "B"} {
		var s string
		if raw, ok := a[typ]; ok && json.Unmarshal(raw, &s) == nil {
			return s
		}
	}
	return ""
}
