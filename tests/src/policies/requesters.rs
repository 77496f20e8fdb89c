//! Whom firewalls may ask for a certificate: our signer, and no other. What else their credentials open on a seed is not
//! ours to say: where every bootstrap token may join a node, one of ours must not.

use contract::names;

use super::Policy;

/// More than anything that the approver would not deny for its length.
const REQUEST_MAX: usize = 16 * 1024;
const FEW: usize = 8;
/// What `kubectl apply` remembers of a request.
const ANNOTATION_MAX: usize = 8 * 1024;

pub(super) fn policy() -> Policy {
    Policy {
        name: "requesters",
        about: "Firewalls, by whatever credential of theirs, ask one signer for certificates. On a seed where every bootstrap\n\
                token may have a node's certificate, theirs may not.",
        who: ("a-firewall", firewalls()),
        group: "certificates.k8s.io",
        versions: "v1",
        resource: "certificatesigningrequests",
        operations: &["CREATE"],
        variables: Vec::new(),
        validations: vec![
            (
                format!("a firewall asks for certificates of the signer {} only", names::SIGNER),
                format!("object.spec.signerName == '{}'", names::SIGNER),
            ),
            // A hundred of a megabyte each would be more than whoever lists them has memory for.
            (
                format!("a firewall's request has {REQUEST_MAX} bytes at most"),
                format!("size(object.spec.request) <= {REQUEST_MAX}"),
            ),
            (
                "a firewall's request has a few short labels and annotations at most, no owners and no finalizers"
                    .to_owned(),
                format!(
                    "!has(object.metadata.ownerReferences) && !has(object.metadata.finalizers) &&
  (!has(object.metadata.labels) || object.metadata.labels.size() <= {FEW}) &&
  (!has(object.metadata.annotations) || (object.metadata.annotations.size() <= {FEW} &&
    object.metadata.annotations.all(k, size(object.metadata.annotations[k]) <= {ANNOTATION_MAX})))"
                ),
            ),
        ],
    }
}

/// By their groups: those are what RBAC gives them rights for.
fn firewalls() -> String {
    let groups = [
        names::BOOTSTRAP_GROUP,
        names::SERVICE_ACCOUNT_GROUP,
        names::ACCESS_GROUP,
        names::ORGANIZATION,
    ];
    let groups = groups.map(|group| format!("'{group}'")).join(", ");
    format!("has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in [{groups}])")
}
