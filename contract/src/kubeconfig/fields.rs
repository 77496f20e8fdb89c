//! One mapping of the file, its path for messages, and the rule that every field in it is known.

use std::fmt::Display;

use serde_json::{Map, Value};

use super::Fault;

pub(super) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(path: &str, value: &'a Value) -> Result<Self, Fault> {
        let field = if path.is_empty() { "the file" } else { path };
        let map = value.as_object().ok_or_else(|| Fault::Type {
            field: field.to_owned(),
            wanted: "a mapping",
        })?;
        Ok(Self {
            path: path.to_owned(),
            map,
        })
    }

    /// The path of a field, as a person would look it up.
    pub(super) fn path(&self, field: &str) -> String {
        if self.path.is_empty() {
            field.to_owned()
        } else {
            format!("{}.{field}", self.path)
        }
    }

    /// Refuses every field that is not in `known`; those in `forbidden` with the reason why.
    pub(super) fn only(&self, known: &[&str], forbidden: &[(&str, &'static str)]) -> Result<(), Fault> {
        for field in self.map.keys() {
            if known.contains(&field.as_str()) {
                continue;
            }
            if let Some((name, instead)) = forbidden.iter().find(|(name, _)| name == field) {
                return Err(Fault::Forbidden {
                    field: self.path(name),
                    instead,
                });
            }
            // In a file that is damaged a credential can stand where a field's name belongs.
            let is_word = field.len() <= 40 && field.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
            return Err(Fault::Unknown {
                field: self.path(if is_word { field } else { "(no field's name)" }),
            });
        }
        Ok(())
    }

    /// The field's value; one that is null counts as absent, as it does for kubectl.
    pub(super) fn value(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn string(&self, field: &str) -> Result<Option<&'a str>, Fault> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Err(Fault::Type {
                field: self.path(field),
                wanted: "a text that is not empty",
            }),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Fault::Type {
                field: self.path(field),
                wanted: "a text; put it into quotes",
            }),
        }
    }

    pub(super) fn required(&self, field: &str, instead: &'static str) -> Result<&'a str, Fault> {
        self.string(field)?.ok_or_else(|| Fault::Missing {
            field: self.path(field),
            instead,
        })
    }

    pub(super) fn list(&self, field: &str) -> Result<&'a [Value], Fault> {
        match self.value(field) {
            None => Ok(&[]),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(Fault::Type {
                field: self.path(field),
                wanted: "a list",
            }),
        }
    }

    /// The only entry of a list of `{name, <part>}`: its name, and its part.
    pub(super) fn only_entry(
        &self,
        field: &str,
        part: &'static str,
    ) -> Result<(&'a str, Self, Option<&'a Value>), Fault> {
        let [entry] = self.list(field)? else {
            return Err(Fault::Count {
                field: self.path(field),
                found: self.list(field)?.len(),
            });
        };
        let entry = Self::new(&format!("{}[0]", self.path(field)), entry)?;
        entry.only(&["name", part], &[])?;
        let name = entry.required("name", "give the entry the name of the namespace")?;
        let value = entry.value(part);
        Ok((name, entry, value))
    }

    pub(super) fn boolean(&self, field: &str) -> Result<bool, Fault> {
        match self.value(field) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(_) => Err(Fault::Type {
                field: self.path(field),
                wanted: "true or false",
            }),
        }
    }

    pub(super) fn missing(&self, field: &str, instead: &'static str) -> Fault {
        Fault::Missing {
            field: self.path(field),
            instead,
        }
    }

    pub(super) fn wrong(&self, field: &str, problem: impl Display) -> Fault {
        Fault::Value {
            field: self.path(field),
            problem: problem.to_string(),
        }
    }
}
