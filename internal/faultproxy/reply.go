package faultproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
)

const (
	jsonType  = "application/x-amz-json-1.0"
	namespace = "com.amazonaws.dynamodb.v20120810"
)

// reply is what the client gets.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// answer ends a request on the client's side, up being what upstream said, or
// nil when it was not asked.
func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, f *flight, up *upstreamReply) {
	a := &f.fault.action
	switch a.Kind {
	case KindClose:
		hangUp(w, nil, a.Ending)
		return
	case KindBlackhole, KindLate:
		select {
		case <-r.Context().Done(): // the client has gone away
		case <-p.done:
		}
		panic(http.ErrAbortHandler)
	case KindReply, KindLimit:
		p.send(w, a.own(f), f)
		return
	}
	if up == nil || up.err != nil {
		// Upstream is down or broke off. An HTTP error would be our own
		// invention; a broken connection is what a client would have seen.
		hangUp(w, nil, RST)
		return
	}
	rep := reply{up.status, up.header, up.body}
	switch a.Kind {
	case KindCut:
		p.skewDate(rep, f)
		hangUp(w, rep.head(min(a.Bytes, max(len(rep.body)-1, 0))), a.Ending)
		return
	case KindMutate:
		rep.mutate(a.Mutate)
	}
	p.send(w, rep, f)
}

// send writes a whole reply.
func (p *Proxy) send(w http.ResponseWriter, rep reply, f *flight) {
	p.skewDate(rep, f)
	header := w.Header()
	maps.Copy(header, rep.header)
	header.Set("Content-Length", strconv.Itoa(len(rep.body)))
	w.WriteHeader(rep.status)
	_, _ = w.Write(rep.body) // a client that is gone is no concern of ours
}

// skewDate makes the reply come from a clock that is wrong.
func (p *Proxy) skewDate(rep reply, f *flight) {
	if skew := f.fault.action.DateSkew; !skew.IsZero() {
		date := p.options.Now().Add(skew.at(f.fault.draw("skew")))
		rep.header.Set("Date", date.UTC().Format(http.TimeFormat))
	}
}

// head renders the reply as it goes over the wire, with the Content-Length of
// the whole and the first n bytes of the body.
func (rep reply) head(n int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", rep.status, http.StatusText(rep.status))
	header := rep.header.Clone()
	header.Set("Content-Length", strconv.Itoa(len(rep.body)))
	_ = header.Write(&b) // a bytes.Buffer takes all
	b.WriteString("\r\n")
	b.Write(rep.body[:n])
	return b.Bytes()
}

// mutate passes the decoded body through change, if there is one to decode:
// errors of upstream stay as they are.
func (rep *reply) mutate(change func(map[string]any)) {
	var body map[string]any
	dec := json.NewDecoder(bytes.NewReader(rep.body))
	dec.UseNumber()
	if rep.status/100 != 2 || dec.Decode(&body) != nil || body == nil {
		return
	}
	change(body)
	encoded, err := json.Marshal(body)
	if err != nil {
		encoded = fmt.Appendf(nil, "faultproxy: the changed reply cannot be encoded: %v", err)
	}
	rep.body = encoded
	rep.header.Set("X-Amz-Crc32", checksum(encoded))
}

// own builds the reply of a reply or a limit action.
func (a *Action) own(f *flight) reply {
	rep := reply{status: a.Status, header: make(http.Header)}
	if a.Code != "" {
		rep.body = a.errorBody(f.req)
	} else {
		rep.body = []byte(a.Body)
	}
	rep.header.Set("Content-Type", a.ContentType)
	rep.header.Set("X-Amzn-Requestid", fmt.Sprintf("FAULTPROXY%010d", f.req.Seq))
	rep.header.Set("X-Amz-Crc32", checksum(rep.body))
	if !a.RetryAfter.IsZero() {
		after := a.RetryAfter.at(f.fault.draw("retryAfter"))
		rep.header.Set("X-Amz-Retry-After", strconv.FormatInt(after.Milliseconds(), 10))
	}
	return rep
}

func (a *Action) errorBody(req *Request) []byte {
	body := make(map[string]any, 3+len(a.Fields))
	body["__type"] = a.Code
	if !strings.Contains(a.Code, "#") {
		body["__type"] = namespace + "#" + a.Code
	}
	body["message"] = a.Message
	if len(a.Reasons) > 0 {
		reasons := make([]Reason, len(a.Reasons))
		for i, r := range a.Reasons {
			r.Resource = orDefault(r.Resource, "arn:aws:dynamodb:us-east-1:000000000000:table/"+req.Table)
			reasons[i] = r
		}
		body[a.reasonsKey()] = reasons
	}
	maps.Copy(body, a.Fields)
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Appendf(nil, "faultproxy: the error cannot be encoded: %v", err)
	}
	return encoded
}

// reasonsKey returns the name of the reasons. The service model spells it in
// two ways, and the SDK knows each only where it belongs.
func (a *Action) reasonsKey() string {
	_, name, found := strings.Cut(a.Code, "#")
	if !found {
		name = a.Code
	}
	def := "ThrottlingReasons"
	if name == "ThrottlingException" {
		def = "throttlingReasons"
	}
	return orDefault(a.ReasonsKey, def)
}

func checksum(body []byte) string {
	return strconv.FormatUint(uint64(crc32.ChecksumIEEE(body)), 10)
}

// hangUp writes data to the client's connection, past net/http, and ends it.
// The whole request has been read by now; else close would send RST for FIN.
func hangUp(w http.ResponseWriter, data []byte, how Ending) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is broken already
	}
	defer conn.Close()
	if len(data) > 0 {
		_, _ = conn.Write(data)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && how == RST {
		_ = tcp.SetLinger(0) // close then discards and resets
	}
}
