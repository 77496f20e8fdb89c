//! What of a Firewall the approver may change: the one annotation that tells how its seed access stands. Machines are
//! made and deleted by what else stands in it, so an approver that could write that would own them.

use contract::names;

use super::{Policy, the_approver};

/// Fields of the metadata that the server writes on each change.
pub(super) const SERVERS: &str = "['resourceVersion', 'generation', 'managedFields']";

pub(super) fn policy() -> Policy {
    let state = names::SEED_ACCESS_STATE;
    Policy {
        name: "firewalls",
        about: "Of a Firewall the approver changes one annotation, and nothing else.",
        who: the_approver(),
        group: names::API_GROUP,
        versions: "'*'",
        resource: "firewalls",
        operations: &["UPDATE"],
        variables: vec![("old", annotations("oldObject")), ("new", annotations("object"))],
        validations: vec![
            (
                format!("of a Firewall's annotations the approver changes only {state}"),
                same("variables.old", "variables.new", &format!("['{state}']")),
            ),
            (
                "of a Firewall's metadata the approver changes only annotations".to_owned(),
                same(
                    "oldObject.metadata",
                    "object.metadata",
                    &SERVERS.replace('[', "['annotations', "),
                ),
            ),
            (
                "the approver changes neither spec nor status nor any other field of a Firewall".to_owned(),
                // By whatever fields there are: upstream may add some.
                same("oldObject", "object", "['metadata']"),
            ),
        ],
    }
}

fn annotations(object: &str) -> String {
    format!("has({object}.metadata.annotations) ? {object}.metadata.annotations : {{}}")
}

/// A CEL condition: both have the same fields with the same values, but for those in `except`. As `dyn`, for an object
/// of a known type cannot be asked for its fields, and the schema is upstream's.
pub(super) fn same(old: &str, new: &str, except: &str) -> String {
    format!(
        "dyn({new}).all(key, key in {except} ||
    (key in dyn({old}) && dyn({new})[key] == dyn({old})[key])) &&
  dyn({old}).all(key, key in {except} || key in dyn({new}))"
    )
}
