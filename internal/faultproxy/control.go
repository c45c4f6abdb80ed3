package faultproxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// The proxy's own paths, for programs that cannot call it. No DynamoDB request
// has them.
//
//	PUT  /__faults           replaces the rules by the JSON array sent
//	GET  /__faults           returns the rules in force
//	POST /__faults/release   delivers the late requests that are held
const (
	controlPath = "/__faults"
	releasePath = "/__faults/release"
)

func (p *Proxy) control(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == controlPath && r.Method == http.MethodPut:
		data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		rules, err := ParseRules(data)
		if err == nil {
			err = p.SetRules(rules...)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	case r.URL.Path == controlPath && r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.Rules())
	case r.URL.Path == releasePath && r.Method == http.MethodPost:
		fmt.Fprintln(w, p.Release())
	default:
		http.Error(w, "PUT or GET "+controlPath+", or POST "+releasePath, http.StatusMethodNotAllowed)
	}
}
