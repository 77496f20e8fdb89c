//! Whom firewalls may ask for a certificate: our signer, and no other. What else their credentials open on a seed is not
//! ours to say: where every bootstrap token may join a node, one of ours must not.

use contract::names;

use super::Policy;

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
        validations: vec![(
            format!("a firewall asks for certificates of the signer {} only", names::SIGNER),
            format!("object.spec.signerName == '{}'", names::SIGNER),
        )],
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
