//! The policies that hold the approver's own identity (`manifests/seed/policies`), generated: what they allow is said
//! in the contract, and repeated nowhere by hand. Each file is one policy and its binding.
//! RBAC knows neither name prefixes nor shapes nor fields, so it lets the approver write any Secret, any Role, anything
//! of a Firewall, and approve any request of its signer; these do not. They bind one ServiceAccount and concern nobody
//! else. One more binds the firewalls themselves. That of the webhook is
//! in `manifests/webhook`, with the right that it holds.

mod bytes;
mod firewalls;
mod rbac;
mod requesters;
mod requests;
mod secrets;
mod webhooks;

use std::fmt::Write as _;

use contract::names;

/// File name and content of everything in `manifests/seed/policies`.
#[must_use]
pub fn files() -> Vec<(String, String)> {
    let policies = [
        secrets::policy(),
        rbac::roles(),
        rbac::role_bindings(),
        requests::policy(),
        requesters::policy(),
        firewalls::policy(),
    ];
    let mut kustomization = String::from(
        "# What the approver's RBAC cannot say. Written by `cargo run -p tests --bin policies`; do not edit.\n\
         apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n",
    );
    let mut files = Vec::new();
    for policy in policies {
        let file = format!("{}.yaml", policy.name);
        let _ = writeln!(kustomization, "  - {file}");
        files.push((file, policy.yaml()));
    }
    files.push(("kustomization.yaml".to_owned(), kustomization));
    files
}

/// What `manifests/webhook/policy.yaml` holds.
#[must_use]
pub fn webhook_file() -> String {
    webhooks::policy().yaml()
}

/// The name by which a refusal tells its policy.
#[must_use]
pub fn full_name(policy: &str) -> String {
    format!("{}-{policy}", names::APPROVER)
}

/// The user that the policies hold.
#[must_use]
pub fn approver() -> String {
    format!(
        "system:serviceaccount:{}:{}",
        names::APPROVER_NAMESPACE,
        names::APPROVER
    )
}

fn the_approver() -> (&'static str, String) {
    ("the-approver", format!("request.userInfo.username == '{}'", approver()))
}

struct Policy {
    name: &'static str,
    /// What it is for, as a comment at the top of its file.
    about: &'static str,
    /// Whom it holds: a name for them, and a CEL condition on the request.
    who: (&'static str, String),
    group: &'static str,
    /// Versions of the group, as YAML: `v1`, or `'*'` where the version is upstream's business.
    versions: &'static str,
    resource: &'static str,
    operations: &'static [&'static str],
    variables: Vec<(&'static str, String)>,
    /// Message and expression.
    validations: Vec<(String, String)>,
}

impl Policy {
    fn yaml(&self) -> String {
        let name = full_name(self.name);
        let mut yaml = String::from("# Written by `cargo run -p tests --bin policies`; do not edit.\n");
        for line in self.about.lines() {
            let _ = writeln!(yaml, "# {line}");
        }
        let _ = write!(
            yaml,
            "apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {name}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: ['{}']
        apiVersions: [{}]
        operations: [{}]
        resources: [{}]
    matchPolicy: Equivalent
  matchConditions:
    - name: {}
      expression: {}
",
            self.group,
            self.versions,
            self.operations.join(", "),
            self.resource,
            self.who.0,
            self.who.1,
        );
        if !self.variables.is_empty() {
            yaml.push_str("  variables:\n");
            for (name, expression) in &self.variables {
                let _ = writeln!(
                    yaml,
                    "    - name: {name}\n      expression: |-\n{}",
                    indented(expression)
                );
            }
        }
        yaml.push_str("  validations:\n");
        for (message, expression) in &self.validations {
            let message = message.replace('\'', "''");
            let _ = writeln!(
                yaml,
                "    - message: '{message}'\n      expression: |-\n{}",
                indented(expression)
            );
        }
        let _ = write!(
            yaml,
            "---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {name}
spec:
  policyName: {name}
  validationActions: [Deny]
"
        );
        yaml
    }
}

fn indented(expression: &str) -> String {
    let lines: Vec<String> = expression
        .trim()
        .lines()
        .map(|line| format!("        {line}"))
        .collect();
    lines.join("\n")
}

/// A CEL condition: the old and the new object, as far as there are any, carry our label.
fn labelled() -> String {
    let (label, value) = (names::MANAGED_BY_LABEL, names::APPROVER);
    format!(
        "[object, oldObject].all(o, o == null ||
  (has(o.metadata.labels) && '{label}' in o.metadata.labels && o.metadata.labels['{label}'] == '{value}'))"
    )
}

/// The refusal that goes with it.
fn not_labelled(kind: &str) -> String {
    format!(
        "the approver touches only {kind} with the label {}={}",
        names::MANAGED_BY_LABEL,
        names::APPROVER
    )
}

/// A CEL expression: the firewall that the object's label names, or an empty text.
fn firewall_of(object: &str) -> String {
    let label = names::FIREWALL_LABEL;
    format!(
        "has({object}.metadata.labels) && '{label}' in {object}.metadata.labels ? {object}.metadata.labels['{label}'] : ''"
    )
}

/// A CEL condition: the object belongs to a Firewall of this name.
fn owned_by(object: &str, firewall: &str) -> String {
    format!(
        "has({object}.metadata.ownerReferences) && {object}.metadata.ownerReferences.exists(o,
  o.kind == 'Firewall' && o.apiVersion.startsWith('{}/') && o.name == {firewall})",
        names::API_GROUP
    )
}

/// The namespaces that hold no shoot's control plane, as a CEL list.
fn not_shoots() -> String {
    format!(
        "['{}', '{}', '{}', '{}']",
        names::TOKEN_NAMESPACE,
        names::SERVICE_ACCOUNT_NAMESPACE,
        names::ACCESS_NAMESPACE,
        names::APPROVER_NAMESPACE
    )
}
