//! Whether the approver's own clock is right, by the Date of the API server: credentials and verdicts go by it. A wrong
//! one is said in the log and as an event in the approver's own namespace; nothing is put right here.

use std::sync::Arc;
use std::time::Duration;

use contract::reasons::Reason;
use k8s_openapi::api::core::v1::ObjectReference;

use cluster::clock::measure;

use crate::approver::Approver;
use crate::seed::Endpoint;

const EVERY: Duration = Duration::from_secs(300);
/// Less is not worth a word: certificates begin five minutes before they are made.
const NAMED_FROM: i64 = 30;

pub async fn watch(approver: Arc<Approver>) {
    let mut wrong = false;
    loop {
        let Endpoint { server, ca } = approver.seed.endpoint();
        match measure(&approver.seed.client, "the seed", &server, None, &ca).await {
            Ok(skew) if skew.abs() > NAMED_FROM => {
                wrong = true;
                tell(&approver, skew);
            }
            Ok(_) if wrong => {
                wrong = false;
                approver.is_news("clock", "");
                tracing::info!("the approver's clock is right again");
            }
            Ok(_) => {}
            Err(failure) => tracing::debug!(%failure, "the approver's clock could not be compared"),
        }
        tokio::time::sleep(EVERY.min(approver.poll)).await;
    }
}

fn tell(approver: &Approver, skew: i64) {
    let why = words(skew);
    let reason = Reason::ClockWrong;
    if approver.is_news("clock", &why) {
        tracing::warn!(%reason, skew_seconds = skew, "{why}");
    }
    if !approver.dry_run {
        let namespace = &approver.seed.own_namespace;
        let on = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Namespace".into()),
            name: Some(namespace.clone()),
            // Where people look for events of the approver; the object itself has no namespace.
            namespace: Some(namespace.clone()),
            ..ObjectReference::default()
        };
        approver.events.warning(on, reason, "Measure", &why);
    }
}

/// The same for a while, though no two measurements are: said again, it is the same event.
fn words(skew: i64) -> String {
    let seconds = skew.unsigned_abs();
    let far = if seconds < 90 {
        "about a minute".to_owned()
    } else {
        format!("about {} minutes", (seconds + 30) / 60)
    };
    let direction = if skew > 0 { "ahead of" } else { "behind" };
    format!(
        "the approver's clock is {far} {direction} the seed's: set the node's clock. Until then credentials end at wrong times"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is_off_is_said_in_words_that_stay() {
        assert_eq!(words(3600), words(3602));
        assert_eq!(words(31), words(89));
        assert!(words(3599).contains("about 60 minutes ahead of the seed's"));
        assert!(words(-120).contains("about 2 minutes behind the seed's"));
    }
}
