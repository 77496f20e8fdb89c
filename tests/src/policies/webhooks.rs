//! What of its webhook's configuration the approver may change: the CAs that it is trusted by, and the path that API servers
//! alone are told. Whoever writes the rest of one has everything that is written in the cluster sent to him, and changes it.

use contract::names;

use super::firewalls::{SERVERS, same};
use super::{Policy, the_approver};

pub(super) fn policy() -> Policy {
    Policy {
        name: "webhooks",
        about: "Of its own MutatingWebhookConfiguration the approver changes the CAs and the path, and nothing of any other.",
        who: the_approver(),
        group: "admissionregistration.k8s.io",
        versions: "'*'",
        resource: "mutatingwebhookconfigurations",
        operations: &["CREATE", "UPDATE", "DELETE"],
        variables: Vec::new(),
        validations: vec![
            (
                format!("of all webhook configurations the approver changes only {}", names::APPROVER),
                format!(
                    "request.operation == 'UPDATE' && object.metadata.name.matches('^{}(-[0-9a-f]{{10}})?$')",
                    names::APPROVER
                ),
            ),
            (
                "the approver changes no metadata of a webhook configuration".to_owned(),
                format!("request.operation != 'UPDATE' || ({})", same("oldObject.metadata", "object.metadata", SERVERS)),
            ),
            (
                "of its webhook configuration the approver changes only caBundle and path".to_owned(),
                format!(
                    "request.operation != 'UPDATE' || ({} &&
  has(object.webhooks) && has(oldObject.webhooks) && object.webhooks.size() == oldObject.webhooks.size() &&
  object.webhooks.all(w, oldObject.webhooks.exists(o, o.name == w.name &&
  {} &&
  {} &&
  has(o.clientConfig.service) == has(w.clientConfig.service) && has(o.clientConfig.url) == has(w.clientConfig.url) &&
  (!has(w.clientConfig.service) || ({})) &&
  (!has(w.clientConfig.url) || (url(w.clientConfig.url).getScheme() == url(o.clientConfig.url).getScheme() &&
    url(w.clientConfig.url).getHost() == url(o.clientConfig.url).getHost() && url(w.clientConfig.url).getQuery().size() == 0)))))",
                    same("oldObject", "object", "['metadata', 'webhooks']"),
                    same("o", "w", "['clientConfig']"),
                    same("o.clientConfig", "w.clientConfig", "['caBundle', 'service', 'url']"),
                    same("o.clientConfig.service", "w.clientConfig.service", "['path']"),
                ),
            ),
        ],
    }
}
