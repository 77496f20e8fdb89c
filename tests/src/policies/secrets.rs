//! Which Secrets the approver may touch. A patch, even an empty one, answers with the whole object: what may be written
//! may be read, so every rule looks at the object as it stood, too.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract::names;

use super::{Policy, bytes, firewall_of, labelled, not_labelled, not_shoots, owned_by, the_approver};

/// What a token's Secret may say, and nothing else.
const TOKEN_KEYS: &str = "['description', 'token-id', 'token-secret', 'expiration', 'auth-extra-groups',
  'usage-bootstrap-authentication', 'usage-bootstrap-signing']";

pub(super) fn policy() -> Policy {
    let (tokens, accounts, own) = (
        names::TOKEN_NAMESPACE,
        names::SERVICE_ACCOUNT_NAMESPACE,
        names::APPROVER_NAMESPACE,
    );
    Policy {
        name: "secrets",
        about: "Of all Secrets the approver may touch its own bootstrap tokens and what belongs to its firewalls.",
        who: the_approver(),
        group: "",
        versions: "v1",
        resource: "secrets",
        operations: &["CREATE", "UPDATE", "DELETE"],
        variables: vec![
            ("subject", "request.operation == 'DELETE' ? oldObject : object".to_owned()),
            ("name", "variables.subject.metadata.name".to_owned()),
            ("firewall", firewall_of("variables.subject")),
            ("opaque", "variables.subject.type == 'Opaque'".to_owned()),
            ("empty", "!has(variables.subject.data) || variables.subject.data.size() == 0".to_owned()),
            ("tokenNamed", token_named()),
            ("state", state()),
            ("ofFirewall", of_firewall()),
        ],
        validations: vec![
            (not_labelled("Secrets"), labelled()),
            (
                format!("in {tokens} the approver writes only bootstrap tokens of firewalls (group {})", names::BOOTSTRAP_GROUP),
                format!("request.namespace != '{tokens}' || ({})", token()),
            ),
            (
                format!("in {accounts} the approver writes only empty Secrets named after a firewall"),
                format!(
                    "request.namespace != '{accounts}' ||
  (variables.opaque && variables.empty && variables.firewall != '' && variables.name == variables.firewall)"
                ),
            ),
            (
                format!(
                    "in {own} the approver only creates {}, and writes {}{}",
                    names::SEED_KEY_SECRET,
                    names::APPROVER,
                    names::WEBHOOK_SECRET_SUFFIX
                ),
                format!(
                    "request.namespace != '{own}' || (variables.opaque && (
  (request.operation == 'CREATE' && variables.name == '{}') ||
  (request.operation != 'DELETE' && variables.name.matches('^{}(-[0-9a-f]{{10}})?{}$'))))",
                    names::SEED_KEY_SECRET,
                    names::APPROVER,
                    names::WEBHOOK_SECRET_SUFFIX
                ),
            ),
            (
                format!(
                    "in a shoot''s namespace the approver writes only {}, <firewall>.fw.metal-stack.io and <firewall>-bootstrap-kubeconfig",
                    names::STATE_SECRET
                )
                .replace("''", "'"),
                format!("request.namespace in {} || variables.state || variables.ofFirewall", not_shoots()),
            ),
        ],
    }
}

fn token() -> String {
    let group = STANDARD.encode(names::BOOTSTRAP_GROUP);
    format!(
        "
  request.operation != 'DELETE' && variables.tokenNamed &&
  [object, oldObject].all(o, o == null ||
    (o.type == '{}' && has(o.data) && 'auth-extra-groups' in o.data && o.data['auth-extra-groups'] == '{group}')) &&
  'expiration' in object.data && object.data.all(key, key in {TOKEN_KEYS})",
        names::TOKEN_SECRET_TYPE
    )
}

/// The name carries the very id that the data hold (in base64: six characters are eight of it).
fn token_named() -> String {
    let prefix = names::TOKEN_SECRET_PREFIX;
    let digits = "0123456789";
    let letters = "abcdefghijklmnopqrstuvwxyz";
    let id = format!("variables.name.substring({})", prefix.len());
    let sextets = bytes::sextets("object.data['token-id']");
    // The list is used many times in the decoder, so it is bound by a map over one element.
    format!(
        "variables.name.matches('^{prefix}[a-z0-9]{{6}}$') && has(object.data) && 'token-id' in object.data &&
  object.data['token-id'].size() == 8 && [{sextets}].all(s, s.all(v, v >= 0) &&
  {} ==
  {id}.split('').map(c, '{digits}'.indexOf(c) >= 0 ? {} + '{digits}'.indexOf(c) : {} + '{letters}'.indexOf(c)))",
        bytes::decoded("s", &bytes::indices(6)),
        b'0',
        b'a',
    )
}

fn state() -> String {
    let (label, name) = (names::PERSIST_LABEL, names::STATE_SECRET);
    format!(
        "request.operation != 'DELETE' && variables.opaque && variables.name == '{name}' &&
  has(object.metadata.labels) && '{label}' in object.metadata.labels && object.metadata.labels['{label}'] == 'true'"
    )
}

fn of_firewall() -> String {
    // The names come from the contract, with a stand-in for the firewall's.
    let suffix = |name: fn(&names::FirewallName) -> String| {
        let firewall = names::FirewallName::parse("x").expect("a name");
        name(&firewall).split_off(1)
    };
    // A Firewall that was deleted with Orphan took the owner away with it: what is deleted needs none.
    format!(
        "variables.opaque && variables.firewall != '' &&
  variables.name in [variables.firewall + '{}', variables.firewall + '{}'] &&
  (request.operation == 'DELETE' || {})",
        suffix(names::FirewallName::agent_secret),
        suffix(names::FirewallName::bootstrap_kubeconfig_secret),
        owned_by("variables.subject", "variables.firewall"),
    )
}
