//! What may be sent to us, by name and with the answer that it has to get: one line for each case. Requests have their
//! own table, in `support::requests`, and files, because other tests take them from there.

pub mod draft;
pub mod handovers;
pub mod kubeconfigs;
pub mod mutations;
pub mod reports;

/// `Subject { found: .. }` -> `Subject`
pub fn variant(error: &impl std::fmt::Debug) -> String {
    format!("{error:?}")
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}
