//! RBAC taken apart: each verb on each resource, and each name, is one right that can be taken away alone.

use std::fmt;

use serde_json::{Value, json};
use tests::harness::AuditEvent;

#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// The Role or ClusterRole that grants it, without its rules.
    pub(crate) role: Value,
    /// Of the Role; empty for a ClusterRole.
    pub(crate) namespace: String,
    pub(crate) verb: String,
    pub(crate) group: String,
    /// With its subresource, if there is one.
    pub(crate) resource: String,
    /// Empty: whatever its name.
    pub(crate) name: String,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {:?}", self.verb, self.resource, self.name)?;
        if !self.namespace.is_empty() {
            write!(f, " in {}", self.namespace)?;
        }
        Ok(())
    }
}

/// Every right that the Roles and ClusterRoles of this file grant.
pub(crate) fn units(file: &str) -> Vec<Unit> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut found = Vec::new();
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        let mut role = object.clone();
        let Some(rules) = role.as_object_mut().unwrap().remove("rules") else {
            continue;
        };
        for rule in rules.as_array().unwrap() {
            let each = |field: &str| -> Vec<String> {
                let list = rule[field].as_array();
                list.map_or_else(
                    || vec![String::new()],
                    |list| list.iter().map(|item| item.as_str().unwrap().to_owned()).collect(),
                )
            };
            for (group, resource) in each("apiGroups").iter().flat_map(|group| {
                each("resources")
                    .into_iter()
                    .map(move |resource| (group.clone(), resource))
            }) {
                for (name, verb) in each("resourceNames")
                    .iter()
                    .flat_map(|name| each("verbs").into_iter().map(move |verb| (name.clone(), verb)))
                {
                    found.push(Unit {
                        role: role.clone(),
                        namespace: role["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
                        verb,
                        group: group.clone(),
                        resource: resource.clone(),
                        name,
                    });
                }
            }
        }
    }
    assert!(found.len() > 10, "only {} rights in {file}", found.len());
    found
}

impl Unit {
    /// The object as it is meant to be.
    pub(crate) fn object(&self, all: &[Self]) -> String {
        self.object_of(all.iter().filter(|unit| unit.role == self.role))
    }

    pub(crate) fn object_without_it(&self, all: &[Self]) -> String {
        self.object_of(all.iter().filter(|unit| unit.role == self.role && !unit.is(self)))
    }

    fn object_of<'a>(&self, units: impl Iterator<Item = &'a Self>) -> String {
        let mut object = self.role.clone();
        object["rules"] = units.map(Self::rule).collect();
        object.to_string()
    }

    fn is(&self, other: &Self) -> bool {
        (&self.verb, &self.group, &self.resource, &self.name)
            == (&other.verb, &other.group, &other.resource, &other.name)
    }

    fn rule(&self) -> Value {
        let mut rule = json!({ "apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb] });
        if !self.name.is_empty() {
            rule["resourceNames"] = json!([self.name]);
        }
        rule
    }

    /// Whether this request was let through by this right. One for what is not there, or there already, was.
    pub(crate) fn is_used_by(&self, user: &str, event: &AuditEvent) -> bool {
        let object = &event.object_ref;
        if event.user.username != user || !matches!(event.status.code, 200..300 | 404 | 409) {
            return false;
        }
        let is = |verb: &str, resource: &str| {
            let found = match object.subresource.as_str() {
                "" => object.resource.clone(),
                subresource => format!("{}/{subresource}", object.resource),
            };
            // Server-side apply creates what was not there, and needs both rights for that.
            let created = verb == "create" && event.verb == "patch" && event.status.code == 201;
            found == resource && object.api_group == self.group && (event.verb == verb || created)
        };
        // Three rights are asked for by no request of their own: they let another one through.
        let used = match (self.verb.as_str(), self.resource.as_str()) {
            ("approve", "signers") => {
                return object.subresource == "approval" && event.verb == "update";
            }
            ("escalate", "roles") => is("create", "roles"),
            ("bind", "roles") => is("create", "rolebindings"),
            (verb, resource) => is(verb, resource),
        };
        used && (self.namespace.is_empty() || object.namespace == self.namespace)
            // A list or watch of one name is a field selector, which stands in the address only.
            && (self.name.is_empty() || object.name == self.name || event.uri.contains(&self.name))
    }
}
