package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// lookInterval is how often files are looked at, and idle connections forgotten.
const lookInterval = time.Second

// access makes clients of what lies on the machine.
type access struct {
	path string
	// asItComes: client-go reads certificate and key by their paths, again from time to time, and the rest once.
	asItComes bool
	now       atomic.Pointer[client]
	read      contents
}

// client is one for good: another file, another client.
type client struct {
	rest      *rest.RESTClient
	transport http.RoundTripper
	namespace string
}

// contents of the kubeconfig and of each file that it points to.
type contents [][]byte

func watching(path string) *access  { return &access{path: path} }
func asItComes(path string) *access { return &access{path: path, asItComes: true} }

func (a *access) client() *client { return a.now.Load() }

// renew makes a client as a program does that has just started.
func (a *access) renew() error {
	read, err := a.contents()
	if err != nil {
		return err
	}
	raw, err := clientcmd.LoadFromFile(a.path)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", a.path)
	if err != nil {
		return err
	}
	config.QPS = -1
	config.APIPath = "/apis"
	config.GroupVersion = &schema.GroupVersion{Group: "firewall.metal-stack.io", Version: "v2"}
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	if !a.asItComes {
		// By content: client-go then has nothing to read again, and nothing that two clients could share.
		if err := rest.LoadTLSFiles(config); err != nil {
			return err
		}
		config.CertFile, config.KeyFile, config.CAFile = "", "", ""
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	made, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return err
	}
	// As firewall-controller has it: every name in this kubeconfig is the namespace.
	old := a.now.Swap(&client{rest: made, transport: transport.Transport, namespace: raw.CurrentContext})
	a.read = read
	if old != nil && old.transport != transport.Transport {
		utilnet.CloseIdleConnectionsFor(old.transport)
	}
	return nil
}

// changed says whether any file holds something else than the client was made of.
func (a *access) changed() bool {
	if a.asItComes {
		return false
	}
	now, err := a.contents()
	if err != nil || len(now) != len(a.read) {
		return true
	}
	for i := range now {
		if !bytes.Equal(now[i], a.read[i]) {
			return true
		}
	}
	return false
}

// forgetConnections makes the next request begin with a handshake. One connection that never ends would tell nothing
// of what a server's certificate has become meanwhile.
func (a *access) forgetConnections() {
	if !a.asItComes {
		utilnet.CloseIdleConnectionsFor(a.client().transport)
	}
}

func (a *access) contents() (contents, error) {
	config, err := clientcmd.BuildConfigFromFlags("", a.path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	var all contents
	for _, path := range []string{a.path, config.CertFile, config.KeyFile, config.CAFile} {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, content)
	}
	return all, nil
}
