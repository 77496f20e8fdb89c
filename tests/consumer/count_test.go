package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

func answering(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
}

// get asks as the consumer does. Without ca the server is not trusted.
func get(t *testing.T, server *httptest.Server, ca []byte) error {
	t.Helper()
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	config.APIPath, config.GroupVersion = "/apis", &schema.GroupVersion{Group: "g", Version: "v"}
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	made, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = made.Get().AbsPath("/x").MaxRetries(0).DoRaw(t.Context())
	return err
}

func TestWhatAnAnswerMeans(t *testing.T) {
	for code, want := range map[int]outcome{200: good, 401: failed, 403: failed, 404: other, 500: other, 503: other} {
		server := httptest.NewServer(answering(code))
		if err := get(t, server, nil); judge(err) != want {
			t.Errorf("%d is %q, not %q: %v", code, judge(err), want, err)
		}
		server.Close()
	}
}

func TestAServerOfAnotherCaIsAFailure(t *testing.T) {
	server := httptest.NewTLSServer(answering(200))
	defer server.Close()
	if err := get(t, server, nil); judge(err) != failed {
		t.Errorf("it is %q: %v", judge(err), err)
	}
}

// As a proxy does that wants another client certificate. The alert comes after the handshake in TLS 1.3, in it before.
func TestAnAlertIsAFailure(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server := httptest.NewUnstartedServer(answering(200))
		server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool(), MaxVersion: version}
		server.StartTLS()
		if err := get(t, server, pemOf(server)); judge(err) != failed {
			t.Errorf("%x: it is %q: %v", version, judge(err), err)
		}
		server.Close()
	}
}

func TestAConnectionThatEndsIsNone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		connection, _, _ := w.(http.Hijacker).Hijack()
		_ = connection.(*net.TCPConn).SetLinger(0)
		_ = connection.Close()
	}))
	if err := get(t, server, nil); judge(err) != cut {
		t.Errorf("it is %q: %v", judge(err), err)
	}
	server.Close()
	if err := get(t, server, nil); judge(err) != other {
		t.Errorf("nobody there is %q: %v", judge(err), err)
	}
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
