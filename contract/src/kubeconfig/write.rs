//! Writes a kubeconfig as block-style YAML. Every text is quoted: a token of digits would otherwise
//! be read as a number.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use secrecy::ExposeSecret;
use zeroize::Zeroizing;

use super::{BOOTSTRAP_EXTENSION, Credential, KUBECONFIG_MAX, Kubeconfig};

pub(super) fn write(config: &Kubeconfig) -> Zeroizing<String> {
    // Reserved at once: a string that grows leaves copies of the credential behind.
    let mut text = Zeroizing::new(String::with_capacity(KUBECONFIG_MAX));
    let name = &config.namespace;
    text.push_str("apiVersion: v1\nkind: Config\nclusters:\n");
    line(&mut text, "- name", name);
    text.push_str("  cluster:\n");
    line(&mut text, "    certificate-authority-data", &config.ca.to_base64());
    line(&mut text, "    server", &config.server);
    if let Some(server_name) = &config.tls_server_name {
        line(&mut text, "    tls-server-name", server_name);
    }
    text.push_str("contexts:\n");
    line(&mut text, "- name", name);
    text.push_str("  context:\n");
    line(&mut text, "    cluster", name);
    line(&mut text, "    namespace", name);
    line(&mut text, "    user", name);
    line(&mut text, "current-context", name);
    text.push_str("users:\n");
    line(&mut text, "- name", name);
    user(&mut text, &config.credential);
    if let Some(bootstrap) = &config.bootstrap {
        text.push_str("extensions:\n");
        line(&mut text, "- name", BOOTSTRAP_EXTENSION);
        text.push_str("  extension:\n");
        line(&mut text, "    firewall", bootstrap.firewall.as_str());
        text.push_str("    handoverKeys:\n");
        for key in &bootstrap.handover_keys {
            text.push_str("    - ");
            quoted(&mut text, &BASE64_URL_SAFE_NO_PAD.encode(key.point()));
            text.push('\n');
        }
    }
    text
}

fn user(text: &mut String, credential: &Credential) {
    match credential {
        Credential::None => text.push_str("  user: {}\n"),
        Credential::Token(token) => {
            text.push_str("  user:\n");
            line(text, "    token", token.expose_secret());
        }
        Credential::TokenFile(path) => {
            text.push_str("  user:\n");
            line(text, "    tokenFile", &path.to_string_lossy());
        }
        Credential::Certificate {
            certificate_pem,
            key_pem,
        } => {
            text.push_str("  user:\n");
            line(
                text,
                "    client-certificate-data",
                &BASE64_STANDARD.encode(certificate_pem),
            );
            let key = Zeroizing::new(BASE64_STANDARD.encode(key_pem.expose_secret()));
            line(text, "    client-key-data", &key);
        }
        Credential::CertificateFiles { certificate, key } => {
            text.push_str("  user:\n");
            line(text, "    client-certificate", &certificate.to_string_lossy());
            line(text, "    client-key", &key.to_string_lossy());
        }
    }
}

fn line(text: &mut String, field: &str, value: &str) {
    text.push_str(field);
    text.push_str(": ");
    quoted(text, value);
    text.push('\n');
}

/// A double-quoted YAML scalar, whose escapes need no second copy of a secret.
fn quoted(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            other => text.push_str(&format!("\\U{:08x}", u32::from(other))),
        }
    }
    text.push('"');
}
