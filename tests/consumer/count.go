package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

type outcome string

const (
	good outcome = "good"
	// failed: the server does not accept the client, or the client the server.
	failed outcome = "failed"
	// cut: the connection ended under the request, which says nothing of the access.
	cut outcome = "cut"
	// other: a timeout, a server that is not there, or that answers something else.
	other outcome = "other"
)

// errorsKept is how many different errors the summary names.
const errorsKept = 20

// count of all requests; safe for use by all of them.
type count struct {
	mu   sync.Mutex
	out  *json.Encoder
	sums sums
	seen map[string]bool
}

type sums struct {
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	// Retried: the connection was closed under a request, and its second attempt came to an end.
	Retried int `json:"retried"`
	Other   int `json:"other"`
	// Clients: how many were made after the first.
	Clients int      `json:"clients"`
	Errors  []string `json:"errors"`
}

type line struct {
	Time    time.Time `json:"time"`
	Outcome outcome   `json:"outcome"`
	Retried bool      `json:"retried,omitempty"`
	Error   string    `json:"error"`
}

func newCount(out io.Writer) *count {
	return &count{out: json.NewEncoder(out), sums: sums{Errors: []string{}}, seen: map[string]bool{}}
}

func (c *count) request(outcome outcome, retried bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sums.Requests++
	if retried {
		c.sums.Retried++
	}
	switch outcome {
	case good:
	case failed:
		c.sums.Failed++
	case cut, other:
		c.sums.Other++
	}
	if err != nil {
		c.say(line{time.Now().UTC(), outcome, retried, err.Error()})
	}
}

func (c *count) renewed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.sums.Clients++
		return
	}
	c.say(line{Time: time.Now().UTC(), Outcome: other, Error: "no new client: " + err.Error()})
}

func (c *count) say(line line) {
	if !c.seen[line.Error] && len(c.sums.Errors) < errorsKept {
		c.seen[line.Error] = true
		c.sums.Errors = append(c.sums.Errors, line.Error)
	}
	_ = c.out.Encode(line)
}

func (c *count) print() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Encode(c.sums)
}

func judge(err error) outcome {
	switch {
	case err == nil:
		return good
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err), isTLS(err):
		return failed
	case isCut(err):
		return cut
	default:
		return other
	}
}

func isTLS(err error) bool {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var operation *net.OpError
	switch {
	case errors.As(err, &verification), errors.As(err, &authority), errors.As(err, &invalid), errors.As(err, &name),
		errors.As(err, &record), errors.As(err, &alert):
		return true
	case errors.As(err, &operation) && (operation.Op == "remote error" || operation.Op == "local error"):
		return true
	}
	// Some errors on the way up are texts only.
	return strings.Contains(err.Error(), "tls: ") || strings.Contains(err.Error(), "x509: ")
}

func isCut(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || utilnet.IsConnectionRefused(err) {
		return false
	}
	return utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) ||
		strings.Contains(err.Error(), "http2: client connection") || strings.Contains(err.Error(), "broken pipe")
}
