//! What may stand as the address of an API server: https, a host, perhaps a port, and nothing else.

pub(super) fn check_server(server: &str) -> Result<(), &'static str> {
    let authority = server.strip_prefix("https://").ok_or("does not begin with https://")?;
    if authority.contains('@') {
        return Err("carries a user; only host and port belong there");
    }
    if authority.contains(['/', '?', '#', '\\']) {
        return Err("carries a path, query or fragment; only host and port belong there");
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let digits = |port: &str| !port.starts_with('0') && port.bytes().all(|byte| byte.is_ascii_digit());
    if port.is_some_and(|port| !digits(port) || port.parse::<u16>().is_err()) {
        return Err("has a port that is none");
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let fits = match bracketed {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.contains(':') && is_host(host),
    };
    if fits {
        Ok(())
    } else {
        Err("has a host that is neither a DNS name nor an address")
    }
}

/// A DNS name, or an address without brackets.
pub(super) fn is_host(host: &str) -> bool {
    let label = |label: &str| {
        let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        (1..=63).contains(&label.len()) && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    host.parse::<std::net::IpAddr>().is_ok() || (host.len() <= 253 && host.split('.').all(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_a_seed_can_have_are_taken() {
        for good in [
            "https://api.seed.example.org",
            "https://api.seed.example.org:6443",
            "https://10.0.0.1",
            "https://10.0.0.1:443",
            "https://[2001:db8::1]",
            "https://[2001:db8::1]:6443",
            "https://localhost:1",
        ] {
            assert_eq!(check_server(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn whatever_else_an_address_could_say_is_refused() {
        for bad in [
            "",
            "https://",
            "http://api.example.org",
            "HTTPS://api.example.org",
            "api.example.org",
            "https://user@api.example.org",
            "https://user:password@api.example.org",
            "https://api.example.org/path",
            "https://api.example.org?query",
            "https://api.example.org#fragment",
            "https://api.example.org\\@evil.example.org",
            "https://api.example.org:",
            "https://api.example.org:0",
            "https://api.example.org:99999",
            "https://api.example.org:+443",
            "https://api.example.org:443:443",
            "https://[2001:db8::1",
            "https://2001:db8::1",
            "https://[10.0.0.1]",
            "https://[::1%25eth0]",
            "https://api..example.org",
            "https://-api.example.org",
            "https://api example.org",
            "https://äpi.example.org",
            "https://api.example.org\n",
        ] {
            assert!(check_server(bad).is_err(), "{bad}");
        }
    }
}
