//! CEL that takes base64 apart. CEL sees bytes only as base64 text and has, in the oldest Kubernetes that is
//! supported, no function to decode it; integers and lists are enough to do it exactly.

/// Base64's alphabet: the index of a character is its value.
pub(super) const ALPHABET: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The values of the characters of a base64 text; -1 for what is no base64.
pub(super) fn sextets(text: &str) -> String {
    format!("{text}.split('').map(c, '{ALPHABET}'.indexOf(c))")
}

/// The bytes out of a list of such values, at the given indices (a CEL list).
pub(super) fn decoded(sextets: &str, indices: &str) -> String {
    let s = sextets;
    format!(
        "{indices}.map(i,
  i % 3 == 0 ? {s}[i / 3 * 4] * 4 + {s}[i / 3 * 4 + 1] / 16 :
  i % 3 == 1 ? {s}[i / 3 * 4 + 1] % 16 * 16 + {s}[i / 3 * 4 + 2] / 4 :
  {s}[i / 3 * 4 + 2] % 4 * 64 + {s}[i / 3 * 4 + 3])"
    )
}

/// The base64 value that an ASCII code stands for; -1 for what is no base64.
pub(super) fn value_of_code(code: &str) -> String {
    let c = code;
    format!(
        "{c} >= 65 && {c} <= 90 ? {c} - 65 : {c} >= 97 && {c} <= 122 ? {c} - 71 :
  {c} >= 48 && {c} <= 57 ? {c} + 4 : {c} == 43 ? 62 : {c} == 47 ? 63 : -1"
    )
}

/// `[0, 1, … , n - 1]`.
pub(super) fn indices(n: usize) -> String {
    list(0..n)
}

pub(super) fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    format!("[{}]", items.join(", "))
}
