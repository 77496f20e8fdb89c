//! The shape of the Roles and RoleBindings that the approver may write. It needs `escalate` and `bind` for them, and
//! with those alone it could give anybody everything.

use contract::names;

use super::{Policy, firewall_of, labelled, not_labelled, not_shoots, owned_by, the_approver};

const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) fn roles() -> Policy {
    Policy {
        name: "roles",
        about: "The approver's Roles open a firewall's own objects, and Secrets by three kinds of names.",
        who: the_approver(),
        group: GROUP,
        versions: "v1",
        resource: "roles",
        operations: &["CREATE", "UPDATE", "DELETE"],
        variables: vec![firewall_unless_deleted(), access()],
        validations: vec![
            (not_labelled("Roles"), labelled()),
            unless_deleted(of_firewall("Role")),
            unless_deleted((
                format!(
                    "a Role of the approver reads firewalls, and Secrets of one firewall by their names; in {} it makes tokens of that firewall; nothing else",
                    names::ACCESS_NAMESPACE
                ),
                format!("variables.access ? ({}) : ({})", token_rules(), rules()),
            )),
        ],
    }
}

pub(super) fn role_bindings() -> Policy {
    let user = names::USER_PREFIX;
    Policy {
        name: "rolebindings",
        about: "The approver's RoleBindings give a firewall's Role to that firewall's own user. All three have one name.",
        who: the_approver(),
        group: GROUP,
        versions: "v1",
        resource: "rolebindings",
        operations: &["CREATE", "UPDATE", "DELETE"],
        variables: vec![firewall_unless_deleted(), access()],
        validations: vec![
            (not_labelled("RoleBindings"), labelled()),
            unless_deleted(of_firewall("RoleBinding")),
            unless_deleted((
                "a RoleBinding of the approver binds a Role of its own name".to_owned(),
                format!(
                    "object.roleRef.apiGroup == '{GROUP}' && object.roleRef.kind == 'Role' && object.roleRef.name == object.metadata.name"
                ),
            )),
            unless_deleted((
                format!(
                    "a RoleBinding of the approver has the subject user {user}<firewall>, and beside it at most ServiceAccount {}/<firewall>",
                    names::ACCESS_NAMESPACE
                ),
                // A ServiceAccount of the namespace that holds nothing but firewalls', and of this firewall's name.
                format!(
                    "has(object.subjects) && object.subjects.size() in [1, 2] &&
  object.subjects[0].kind == 'User' && object.subjects[0].apiGroup == '{GROUP}' &&
  object.subjects[0].name == object.metadata.name &&
  (!has(object.subjects[0].namespace) || object.subjects[0].namespace == '') &&
  (object.subjects.size() == 1 || (
    object.subjects[1].kind == 'ServiceAccount' && object.subjects[1].name == variables.firewall &&
    has(object.subjects[1].namespace) && object.subjects[1].namespace == '{}' &&
    (!has(object.subjects[1].apiGroup) || object.subjects[1].apiGroup == '')))",
                    names::ACCESS_NAMESPACE
                ),
            )),
        ],
    }
}

/// The fields are of the new object, which a deletion has not: the label alone is asked for there.
fn unless_deleted((message, expression): (String, String)) -> (String, String) {
    (message, format!("request.operation == 'DELETE' || ({expression})"))
}

fn firewall_unless_deleted() -> (&'static str, String) {
    let firewall = firewall_of("object");
    ("firewall", format!("request.operation == 'DELETE' ? '' : ({firewall})"))
}

fn of_firewall(kind: &str) -> (String, String) {
    (
        format!(
            "a {kind} of the approver is named {}<firewall> and belongs to that firewall, in a shoot's namespace or in {}",
            names::USER_PREFIX,
            names::ACCESS_NAMESPACE
        ),
        // Labels and owners are the approver's own word. A name with this prefix is nobody else's: without it, a Role
        // that was there before could be bound to a firewall of its name.
        format!(
            "variables.firewall != '' && object.metadata.name == '{}' + variables.firewall &&
  (variables.access || (!(request.namespace in {}) && {}))",
            names::USER_PREFIX,
            not_shoots(),
            owned_by("object", "variables.firewall")
        ),
    )
}

/// Whether it stands where the ServiceAccounts of all firewalls do: there no Firewall can be its owner.
fn access() -> (&'static str, String) {
    ("access", format!("request.namespace == '{}'", names::ACCESS_NAMESPACE))
}

/// A firewall makes tokens of its own ServiceAccount; without the name, of every firewall's.
fn token_rules() -> String {
    "has(object.rules) && object.rules.size() == 1 && object.rules.all(r,
    r.verbs == ['create'] && !has(r.nonResourceURLs) && r.apiGroups == [''] &&
    r.resources == ['serviceaccounts/token'] && has(r.resourceNames) && r.resourceNames == [variables.firewall])"
        .to_owned()
}

/// A rule about Secrets without names would open all of them.
fn rules() -> String {
    let agent = names::FirewallName::parse("x")
        .expect("a name")
        .agent_secret()
        .split_off(1);
    format!(
        "has(object.rules) && object.rules.size() == 2 &&
  object.rules.all(r, r.verbs == ['get', 'list', 'watch'] && !has(r.nonResourceURLs)) &&
  object.rules[0].apiGroups == ['{}'] && object.rules[0].resources == ['firewalls', 'firewalls/status'] &&
  object.rules[1].apiGroups == [''] && object.rules[1].resources == ['secrets'] &&
  has(object.rules[1].resourceNames) && object.rules[1].resourceNames.size() > 0 &&
  object.rules[1].resourceNames.all(n, n.matches('^{}(-[a-z0-9]+)?$') || n == '{}' || n == variables.firewall + '{agent}')",
        names::API_GROUP,
        names::GENERIC_KUBECONFIG_PREFIX,
        names::SHOOT_TOKEN_SECRET,
    )
}
