//! Which VRF a systemd unit's command begins in, as `ip vrf exec <name> …` says it. Pure: texts in, a name out. What
//! cannot be read with certainty is said to be so: an agent that guesses wrong talks to nobody.

/// Of the unit's text and those of its drop-ins, in the order in which systemd reads them.
pub fn vrf_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Option<String>, String> {
    let mut commands: Vec<String> = Vec::new();
    for text in texts {
        let mut service = false;
        for line in lines(text) {
            if line.starts_with('[') {
                service = line == "[Service]";
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            if !service || key.trim_end() != "ExecStart" {
                continue;
            }
            match value.trim() {
                // What was said before is taken back.
                "" => commands.clear(),
                command => commands.push(command.to_owned()),
            }
        }
    }
    for command in &commands {
        if let Some(name) = vrf_of_command(command)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// As the kernel names interfaces. What begins with a dash is an option to `ip`.
pub fn is_vrf_name(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    !name.is_empty() && name.len() <= 15 && name != "." && name != ".." && !name.starts_with('-') && !name.contains(odd)
}

/// Lines as systemd reads them: without comments, those that a backslash continues joined.
fn lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines() {
        let line = line.trim();
        // Also in the midst of a line that is continued.
        if line.starts_with(['#', ';']) {
            continue;
        }
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            begun += line.get(..line.len() - 1).unwrap_or_default();
            begun.push(' ');
            continue;
        }
        begun += line;
        lines.push(std::mem::take(&mut begun));
    }
    lines.push(begun);
    lines
}

fn vrf_of_command(command: &str) -> Result<Option<String>, String> {
    let unclear = |why: &str| Err(format!("ExecStart={command}: {why}"));
    let words = words(command.trim_start_matches(['@', '-', ':', '+', '!', '|']));
    for (place, word) in words.iter().enumerate() {
        if word.rsplit('/').next() != Some("ip") {
            continue;
        }
        let mut rest = words.iter().skip(place + 1).map(String::as_str).peekable();
        // Where `@` was, the program's own name for itself stands before its arguments.
        if place == 0 && command.starts_with('@') {
            rest.next();
        }
        while let Some(option) = rest.next_if(|word| word.starts_with('-')) {
            if option.starts_with("-n") {
                return unclear("another network namespace is beyond this program");
            }
        }
        let exec = |word: &str| !word.is_empty() && "exec".starts_with(word);
        if rest.next() != Some("vrf") || !rest.next().is_some_and(exec) {
            continue;
        }
        return match rest.next() {
            Some("default") => Ok(None),
            Some(name) if name.contains(['$', '%']) => unclear("its VRF is a variable"),
            Some(name) if is_vrf_name(name) => Ok(Some(name.to_owned())),
            _ => unclear("it names no VRF that there can be"),
        };
    }
    // In a shell's command, for one.
    if command.contains("vrf exec") {
        return unclear("its VRF stands where it cannot be read with certainty");
    }
    Ok(None)
}

/// Words with systemd's quotes taken off.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = command.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', _) => word.get_or_insert_default().extend(characters.next()),
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str) -> Result<Option<String>, String> {
        vrf_of([format!("[Unit]\nDescription=x\n[Service]\n{command}\n").as_str()])
    }

    #[test]
    fn the_vrf_is_read_as_systemd_and_ip_would() {
        for (unit, wanted) in [
            // Upstream's.
            (
                "ExecStart=/bin/ip vrf exec vrf104009 /usr/local/bin/firewall-controller",
                Some("vrf104009"),
            ),
            ("ExecStart=ip vrf exec vrf1 x", Some("vrf1")),
            ("ExecStart = /sbin/ip  vrf\texec   vrf1   x", Some("vrf1")),
            ("  ExecStart=-/sbin/ip -4 -o vrf e vrf1 x", Some("vrf1")),
            ("ExecStart=+!/sbin/ip vrf exec \"vrf1\" 'x y'", Some("vrf1")),
            ("ExecStart=@/sbin/ip it vrf exec vrf1 x", Some("vrf1")),
            ("ExecStart=@-/sbin/ip it vrf exec vrf1 x", Some("vrf1")),
            ("ExecStart=/usr/bin/nice -n 5 /bin/ip vrf exec vrf1 x", Some("vrf1")),
            (
                "ExecStart=/bin/ip \\\n# a word\n; another\n  vrf exec \\\n vrf1 x",
                Some("vrf1"),
            ),
            ("ExecStart=/bin/a\nExecStart=/bin/ip vrf exec vrf1 x", Some("vrf1")),
            ("ExecStart=/bin/ip vrf exec a.b-c_1 x", Some("a.b-c_1")),
            ("ExecStart=/bin/ip vrf exec vrf1 x\\", Some("vrf1")),
            // None of them is in one.
            ("", None),
            ("ExecStart=/usr/local/bin/firewall-controller", None),
            ("ExecStart=/usr/local/bin/firewall-controller --vrf exec", None),
            ("ExecStart=/bin/ip vrf exec default x", None),
            ("ExecStart=/bin/ip link set up dev vrf1", None),
            ("ExecStart=/bin/ip vrf show vrf1", None),
            ("ExecStart=/bin/zip vrf show vrf1", None),
            ("# ExecStart=/bin/ip vrf exec vrf1 x", None),
            ("ExecStartPre=/bin/ip vrf exec vrf1 x", None),
            ("ExecStart=/bin/ip vrf exec vrf1 x\nExecStart=\nExecStart=/bin/x", None),
            ("[Install]\nExecStart=/bin/ip vrf exec vrf1 x", None),
            ("ExecStart=/bin/x \\\n[Service] \\\n", None),
            ("ExecStart", None),
            ("ExecStart=\"", None),
            ("ExecStart=\\", None),
        ] {
            if unit.contains("--vrf exec") {
                assert!(of(unit).is_err(), "{unit}");
            } else {
                assert_eq!(of(unit), Ok(wanted.map(str::to_owned)), "{unit}");
            }
        }
    }

    #[test]
    fn what_is_not_certain_is_said_to_be_so() {
        for unit in [
            "ExecStart=/bin/ip vrf exec $VRF x",
            "ExecStart=/bin/ip vrf exec ${VRF} x",
            "ExecStart=/bin/ip vrf exec vrf%i x",
            "ExecStart=/bin/ip vrf exec",
            "ExecStart=/bin/ip vrf exec -x y",
            "ExecStart=/bin/ip vrf exec a/b y",
            "ExecStart=/bin/ip vrf exec sixteen-letters- y",
            "ExecStart=/bin/ip -n other vrf exec vrf1 x",
            "ExecStart=/bin/sh -c 'exec ip vrf exec vrf1 x'",
        ] {
            let said = of(unit).unwrap_err();
            assert!(said.starts_with("ExecStart="), "{unit}: {said}");
        }
    }

    #[test]
    fn a_drop_in_is_read_after_the_unit_and_may_take_back_what_it_says() {
        let unit = "[Service]\nExecStart=/bin/ip vrf exec vrf1 x\n";
        let other = "[Service]\nExecStart=\nExecStart=/bin/ip vrf exec vrf2 x\n";
        let none = "[Service]\nExecStart=\nExecStart=/bin/x\n";
        // A section ends with its file.
        let loose = "ExecStart=\n";
        assert_eq!(vrf_of([unit, other]), Ok(Some("vrf2".to_owned())));
        assert_eq!(vrf_of([unit, none]), Ok(None));
        assert_eq!(vrf_of([unit, other, none]), Ok(None));
        assert_eq!(vrf_of([unit, loose]), Ok(Some("vrf1".to_owned())));
        assert_eq!(vrf_of([]), Ok(None));
    }
}
