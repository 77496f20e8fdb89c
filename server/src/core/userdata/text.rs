//! Lists of named things in a JSON text, changed where they stand: what is not changed keeps its every byte, as big numbers,
//! unknown keys and somebody's spaces.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TextError {
    #[error("no JSON: {0}")]
    NotJson(String),
    #[error("`{0}` is no object")]
    NoObject(String),
    #[error("`{0}` is no list")]
    NoList(String),
    #[error("key `{0}` stands there twice, or once in other letters: which one counts is not clear")]
    KeyTwice(String),
    #[error("`{list}` has {name:?} twice: which one counts is not clear")]
    Twice { list: String, name: String },
}

/// What a unit has beside its own text.
const DROP_INS: &str = "dropins";

pub type Member<'a> = (Cow<'a, str>, &'a RawValue);

/// The members of an object, each where it stands.
pub fn members(object: &str) -> Result<Vec<Member<'_>>, TextError> {
    struct Members;
    impl<'a> Visitor<'a> for Members {
        type Value = Vec<Member<'a>>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &'a RawValue>()? {
                members.push((key.into(), value));
            }
            Ok(members)
        }
    }
    // serde_json would go on after its end.
    let whole: &RawValue = serde_json::from_str(object).map_err(|e| TextError::NotJson(position(&e)))?;
    let mut reader = serde_json::Deserializer::from_str(whole.get());
    reader
        .deserialize_map(Members)
        .map_err(|_| TextError::NotJson("it is no object".into()))
}

/// What serde_json says shows words of the text.
fn position(error: &serde_json::Error) -> String {
    format!("at line {}, column {}", error.line(), error.column())
}

/// Ignition's reader is Go's, to which keys are the same in capitals too, and of several the last one counts or all do.
pub fn member<'a>(members: &[Member<'a>], key: &str) -> Result<Option<&'a RawValue>, TextError> {
    let mut like = members.iter().filter(|(name, _)| name.eq_ignore_ascii_case(key));
    match (like.next(), like.next()) {
        (None, _) => Ok(None),
        (Some((name, value)), None) if name == key => Ok(Some(value)),
        _ => Err(TextError::KeyTwice(key.to_owned())),
    }
}

/// Has each entry stand in the list that the two keys lead to, once; `id` is the key by which an entry is known. One that
/// stands there already and says the same is not touched.
pub fn put(text: &str, [section, list]: [&str; 2], id: &str, entries: &[Value]) -> Result<String, TextError> {
    let path = || format!("{section}.{list}");
    let top = members(text)?;
    let Some(found) = member(&top, section)?.filter(|found| found.get() != "null") else {
        let made = serde_json::json!({ list: entries });
        return Ok(with_member(text, text, section, &made.to_string()));
    };
    let inner = members(found.get()).map_err(|_| TextError::NoObject(section.to_owned()))?;
    let Some(stands) = member(&inner, list)?.filter(|stands| stands.get() != "null") else {
        let made = Value::from(entries).to_string();
        return Ok(with_member(text, found.get(), list, &made));
    };
    let stands_there: Vec<&RawValue> = serde_json::from_str(stands.get()).map_err(|_| TextError::NoList(path()))?;

    let mut edits = Vec::new();
    let mut more = String::new();
    for entry in entries {
        let name = entry[id].as_str().unwrap_or_default();
        let mut same = stands_there.iter().filter(|raw| is_named(raw, id, name));
        match (same.next(), same.next()) {
            (None, _) => {
                if !stands_there.is_empty() || !more.is_empty() {
                    more.push(',');
                }
                more.push_str(&entry.to_string());
            }
            (Some(raw), None) => {
                let there: Value = serde_json::from_str(raw.get()).unwrap_or_default();
                let mut entry = entry.clone();
                // An operator's own, beside what is ours.
                if let Some(drop_ins) = there.get(DROP_INS) {
                    entry[DROP_INS] = drop_ins.clone();
                }
                if there != entry {
                    edits.push((range(text, raw.get()), entry.to_string()));
                }
            }
            (Some(_), Some(_)) => {
                return Err(TextError::Twice {
                    list: path(),
                    name: name.to_owned(),
                });
            }
        }
    }
    let end = match stands_there.last() {
        Some(last) => range(text, last.get()).end,
        None => range(text, stands.get()).start + 1,
    };
    edits.push((end..end, more));
    edits.sort_by_key(|(at, _)| at.start);
    let mut whole = text.to_owned();
    for (at, new) in edits.iter().rev() {
        whole.replace_range(at.clone(), new);
    }
    Ok(whole)
}

/// What is appended to a file of that name is another's.
fn is_named(raw: &RawValue, id: &str, name: &str) -> bool {
    serde_json::from_str::<Value>(raw.get()).is_ok_and(|entry| entry[id] == name && entry["append"] != true)
}

/// The text with another member in this object of it, in the place of one that is null.
fn with_member(text: &str, object: &str, key: &str, value: &str) -> String {
    let mut whole = text.to_owned();
    let found = members(object).unwrap_or_default();
    if let Some((_, null)) = found.iter().find(|(name, _)| name == key) {
        whole.replace_range(range(text, null.get()), value);
        return whole;
    }
    let (at, before) = match found.last() {
        Some((_, last)) => (range(text, last.get()).end, ","),
        None => (range(text, object).start + object.find('{').map_or(0, |at| at + 1), ""),
    };
    let key = Value::from(key);
    whole.insert_str(at, &format!("{before}{key}:{value}"));
    whole
}

/// Where a part of the text stands in it.
fn range(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr().addr().saturating_sub(text.as_ptr().addr());
    start..start + part.len()
}
