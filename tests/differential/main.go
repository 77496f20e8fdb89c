// Command differential does with certificate requests what kube-controller-manager's signer does with an approved one,
// by its own functions, and tells what stands in the certificate. It reads lines of base64 from its standard input and
// answers each with a line of JSON.
//
// The way of a request in k8s.io/kubernetes v1.36.3: signer.handle (pkg/controller/certificates/signer/signer.go) parses
// it with ParseCSR, so with the first PEM block, whatever stands around it, and signer.sign hands its DER to
// CertificateAuthority.Sign (pkg/controller/certificates/authority/authority.go). That parses it again, checks its
// signature, and copies Subject, DNSNames, IPAddresses, EmailAddresses, URIs, PublicKeyAlgorithm, PublicKey, Extensions
// and ExtraExtensions into the template, the policy then sets what the usages say. What Go makes of that template is seen
// only in the certificate, so the certificate is what is shown.
package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"time"

	certificates "k8s.io/api/certificates/v1"
	helpers "k8s.io/kubernetes/pkg/apis/certificates/v1"
	"k8s.io/kubernetes/pkg/controller/certificates/authority"
)

// Answer is what the API server would see of the certificate, or why there is none.
type Answer struct {
	Error string `json:"error,omitempty"`
	// DER: the subject as requested, as issued (Go writes it anew, with a string type of its own choice), and the key.
	Requested []byte `json:"requested,omitempty"`
	Subject   []byte `json:"subject,omitempty"`
	Key       []byte `json:"key,omitempty"`
	// Whom the API server takes the holder for: CommonName and every Organization.
	User   string   `json:"user"`
	Groups []string `json:"groups"`
	// Every name in it beside the subject, and each extension.
	Names      []string `json:"names"`
	Extensions []string `json:"extensions"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
}

func run() error {
	signer, err := newAuthority()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	answers := json.NewEncoder(out)
	for lines.Scan() {
		request, err := base64.StdEncoding.DecodeString(lines.Text())
		if err != nil {
			return err
		}
		if err := answers.Encode(answer(signer, request)); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return out.Flush()
}

func answer(signer *authority.CertificateAuthority, request []byte) Answer {
	requested, certificate, err := sign(signer, request)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	names := append(append([]string{}, certificate.DNSNames...), certificate.EmailAddresses...)
	for _, address := range certificate.IPAddresses {
		names = append(names, address.String())
	}
	for _, uri := range certificate.URIs {
		names = append(names, uri.String())
	}
	extensions := []string{}
	for _, extension := range certificate.Extensions {
		extensions = append(extensions, extension.Id.String())
	}
	return Answer{
		Requested:  requested.RawSubject,
		Subject:    certificate.RawSubject,
		Key:        certificate.RawSubjectPublicKeyInfo,
		User:       certificate.Subject.CommonName,
		Groups:     certificate.Subject.Organization,
		Names:      names,
		Extensions: extensions,
	}
}

func sign(signer *authority.CertificateAuthority, request []byte) (*x509.CertificateRequest, *x509.Certificate, error) {
	parsed, err := helpers.ParseCSR(request)
	if err != nil {
		return nil, nil, err
	}
	der, err := signer.Sign(parsed.Raw, authority.PermissiveSigningPolicy{
		TTL:      time.Hour,
		Usages:   []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		Backdate: 5 * time.Minute,
		Short:    8 * time.Hour,
	})
	if err != nil {
		return nil, nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return parsed, certificate, err
}

func newAuthority() (*authority.CertificateAuthority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "ca"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority.CertificateAuthority{Certificate: certificate, PrivateKey: key}, nil
}
