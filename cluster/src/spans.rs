//! Durations as people write them in settings, each kind with its range.

use jiff::{SignedDuration, Span, SpanRelativeTo};

/// The life that is asked for a certificate.
pub fn certificate_duration(text: &str) -> Result<SignedDuration, String> {
    let duration = duration(text, "720h or 30d")?;
    if (SignedDuration::from_secs(600)..=SignedDuration::from_hours(365 * 24)).contains(&duration) {
        Ok(duration)
    } else {
        Err("out of range: 600s at least, 365d at most".into())
    }
}

/// The life of the certificate that a webhook is served with.
pub fn webhook_certificate_duration(text: &str) -> Result<SignedDuration, String> {
    let duration = duration(text, "720h or 90d")?;
    if (SignedDuration::from_secs(60)..=SignedDuration::from_hours(365 * 24)).contains(&duration) {
        Ok(duration)
    } else {
        Err("out of range: 1m at least, 365d at most".into())
    }
}

/// How often something is looked at that tells its changes by itself.
pub fn poll_interval(text: &str) -> Result<SignedDuration, String> {
    let duration = duration(text, "30s or 5m")?;
    if (SignedDuration::from_secs(1)..=SignedDuration::from_hours(1)).contains(&duration) {
        Ok(duration)
    } else {
        Err("out of range: 1s at least, 1h at most".into())
    }
}

fn duration(text: &str, example: &str) -> Result<SignedDuration, String> {
    let span: Span = text
        .parse()
        .map_err(|_| format!("not a duration; write for example {example}"))?;
    span.to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificates_life_is_between_ten_minutes_and_a_year() {
        for good in ["600s", "10m", "720h", "30d", "365d", "52w"] {
            assert!(certificate_duration(good).is_ok(), "{good}");
        }
        for bad in ["", "599s", "366d", "-30d", "30", "a month", "1y"] {
            assert!(certificate_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_webhooks_certificate_lives_between_a_minute_and_a_year() {
        for good in ["60s", "1m", "90d", "365d"] {
            assert!(webhook_certificate_duration(good).is_ok(), "{good}");
        }
        for bad in ["", "59s", "366d", "-1m", "90"] {
            assert!(webhook_certificate_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn b3_polls_are_between_each_second_and_each_hour() {
        for good in ["1s", "5m", "1h"] {
            assert!(poll_interval(good).is_ok(), "{good}");
        }
        for bad in ["0s", "61m", "-5m", "5", ""] {
            assert!(poll_interval(bad).is_err(), "{bad}");
        }
    }
}
