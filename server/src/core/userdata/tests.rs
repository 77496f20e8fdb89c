use proptest::prelude::*;
use serde_json::Map;

use super::*;

/// As upstream's provider writes it, with somebody's spaces, a number that no float holds, and keys of versions to come.
const TEMPLATE: &str = r#"
{
  "ignition": {"version": "2.3.0", "config": {}, "x-later": 12345678901234567890123},
  "passwd": { },
  "storage": {
    "files": [
      {"filesystem":"root", "path":"/etc/firewall-controller/.seed-kubeconfig","contents":{"source":"data:,a%20b","verification":{}},"mode":384 }
    ] },
  "systemd": { "units": [ {"contents": "[Unit]\n", "name": "droptailer.service", "enabled": true}
  ] }
}
"#;

fn kubeconfig(text: &str) -> SecretString {
    text.to_owned().into()
}

fn baked(kubeconfig: &SecretString) -> Baked<'_> {
    Baked {
        bootstrap_kubeconfig: kubeconfig,
        settings: &[],
        download: None,
    }
}

fn download() -> Download {
    Download {
        url: "https://images.example/firewall-agent".into(),
        sha512: "ab".repeat(64),
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn an_empty_userdata_becomes_a_config_of_its_own() {
    let text = kubeconfig("one");
    for empty in ["", " \n"] {
        let value = parsed(&render(empty, &baked(&text)).unwrap());
        assert_eq!(value["ignition"]["version"], "2.3.0");
        assert_eq!(
            value["storage"]["files"],
            json!([{ "filesystem": "root", "path": BOOTSTRAP_KUBECONFIG, "mode": 384,
                     "contents": { "source": "data:;base64,b25l" } }])
        );
        assert_eq!(
            value["systemd"]["units"],
            json!([{ "name": UNIT_NAME, "enabled": true, "contents": UNIT }])
        );
    }
}

#[test]
fn what_was_rendered_is_found_again() {
    for template in ["", TEMPLATE] {
        let rendered = render(template, &baked(&kubeconfig("one\n"))).unwrap();
        assert_eq!(bootstrap_kubeconfig(&rendered).unwrap().expose_secret(), "one\n");
    }
    for without in ["", "{}", "x", TEMPLATE] {
        assert!(bootstrap_kubeconfig(without).is_none());
    }
}

#[test]
fn what_is_not_ours_stays_to_the_byte() {
    let text = kubeconfig("one");
    let rendered = render(TEMPLATE, &baked(&text)).unwrap();
    let ours = |value: &Value| format!(",{value}");
    let made = parsed(&rendered);
    let without = rendered.replacen(&ours(&made["storage"]["files"][1]), "", 1).replacen(
        &ours(&made["systemd"]["units"][1]),
        "",
        1,
    );
    assert_eq!(without, TEMPLATE);
    assert_eq!(render(&rendered, &baked(&text)).unwrap(), rendered);
}

#[test]
fn what_of_ours_is_old_is_replaced_where_it_stands() {
    let (one, two) = (kubeconfig("one"), kubeconfig("two"));
    let old = render(TEMPLATE, &baked(&one)).unwrap();
    let new = render(TEMPLATE, &baked(&two)).unwrap();
    assert_ne!(old, new);
    assert_eq!(render(&old, &baked(&two)).unwrap(), new);
}

#[test]
fn each_version_of_ignition_is_written_in_its_own_way() {
    let (text, download) = (kubeconfig("one"), download());
    let of = |version: &str| {
        let config = json!({ "ignition": { "version": version } }).to_string();
        let settings = [("NO_PROXY".to_owned(), "a\"\\ b".to_owned())];
        let what = Baked {
            settings: &settings,
            download: Some(&download),
            ..baked(&text)
        };
        parsed(&render(&config, &what).unwrap())
    };
    for version in ["2.0.0", "2.1.0", "2.4.0"] {
        let value = of(version);
        let files = value["storage"]["files"].as_array().unwrap();
        assert_eq!(files.len(), 3, "{version}");
        assert!(
            files
                .iter()
                .all(|file| file["filesystem"] == "root" && file.get("overwrite").is_none())
        );
        assert_eq!(value["systemd"]["units"][0].get("enable").is_some(), version == "2.0.0");
        assert_eq!(
            value["systemd"]["units"][0].get("enabled").is_some(),
            version != "2.0.0"
        );
    }
    for version in ["3.0.0", "3.5.0", "3.6.0-experimental"] {
        let value = of(version);
        let files = value["storage"]["files"].as_array().unwrap();
        assert!(
            files
                .iter()
                .all(|file| file["overwrite"] == true && file.get("filesystem").is_none())
        );
        assert_eq!(
            files[2],
            json!({ "path": PROGRAM, "mode": 0o755, "overwrite": true, "contents": {
                "source": download.url, "verification": { "hash": format!("sha512-{}", download.sha512) } } })
        );
        let settings = files[1]["contents"]["source"].as_str().unwrap();
        let settings = STANDARD
            .decode(settings.strip_prefix("data:;base64,").unwrap())
            .unwrap();
        assert_eq!(
            settings,
            br#"NO_PROXY="a\"\\ b""#.iter().chain(b"\n").copied().collect::<Vec<u8>>()
        );
    }
}

#[test]
fn what_somebody_appends_to_a_file_of_ours_is_his() {
    let text = kubeconfig("one");
    let config = json!({ "ignition": { "version": "2.2.0" }, "storage": { "files": [
        { "filesystem": "root", "path": BOOTSTRAP_KUBECONFIG, "append": true, "contents": { "source": "data:,x" } } ] } });
    let value = parsed(&render(&config.to_string(), &baked(&text)).unwrap());
    assert_eq!(value["storage"]["files"].as_array().unwrap().len(), 2);
    assert_eq!(value["storage"]["files"][0], config["storage"]["files"][0]);
}

#[test]
fn what_is_no_ignition_config_or_not_clear_is_refused_without_a_word_of_it() {
    let text = kubeconfig("one");
    let secret = "a-word-of-somebodys";
    let ignition = r#""ignition":{"version":"2.3.0"}"#;
    let file = format!(r#"{{"path":"{BOOTSTRAP_KUBECONFIG}"}}"#);
    for (userdata, wanted) in [
        (format!("#cloud-config\n{secret}: 1"), "no JSON"),
        (format!(r#"{{"a": "{secret}" "b"}}"#), "no JSON: at line 1, column"),
        (format!(r#"["{secret}"]"#), "no JSON: it is no object"),
        (format!(r#"{{{ignition}}} "{secret}""#), "no JSON"),
        (format!(r#"{{"{secret}":1}}"#), "no Ignition config"),
        (format!(r#"{{"ignition":"{secret}"}}"#), "no Ignition config"),
        (r#"{"ignition":{"version":3}}"#.into(), "no Ignition config"),
        (r#"{"ignition":{"version":"1.0.0"}}"#.into(), "\"1.0.0\""),
        (r#"{"ignition":{"version":"4.0.0"}}"#.into(), "\"4.0.0\""),
        (r#"{"ignition":{"version":"2"}}"#.into(), "\"2\""),
        (
            format!(r#"{{"ignition":{{"version":"3.3.0","config":{{"replace":{{"source":"{secret}"}}}}}}}}"#),
            "replace",
        ),
        (
            format!(r#"{{{ignition},"storage":"{secret}"}}"#),
            "`storage` is no object",
        ),
        (
            format!(r#"{{{ignition},"storage":{{"files":{{}}}}}}"#),
            "`storage.files` is no list",
        ),
        (
            format!(r#"{{{ignition},"systemd":{{}},"systemd":{{}}}}"#),
            "`systemd` stands there twice",
        ),
        (
            format!(r#"{{{ignition},"Storage":{{}}}}"#),
            "`storage` stands there twice, or once in other letters",
        ),
        (
            format!(r#"{{{ignition},"storage":{{"files":[{file},{file}]}}}}"#),
            "twice",
        ),
    ] {
        let said = render(&userdata, &baked(&text)).unwrap_err().to_string();
        assert!(said.contains(wanted) && !said.contains(secret), "{userdata}: {said}");
    }
}

#[test]
fn a_list_that_is_null_or_empty_or_not_there_gets_its_first() {
    let text = kubeconfig("one");
    for more in [
        "",
        r#","storage":null,"systemd":{}"#,
        r#","storage":{"files":null},"systemd":{"units":[ ]}"#,
        r#","storage":{ "x":1 },"systemd":null"#,
    ] {
        let config = format!(r#"{{"ignition":{{"version":"3.3.0"}}{more}}}"#);
        let rendered = render(&config, &baked(&text)).unwrap();
        let value = parsed(&rendered);
        assert_eq!(
            value["storage"]["files"].as_array().map(Vec::len),
            Some(1),
            "{rendered}"
        );
        assert_eq!(
            value["systemd"]["units"].as_array().map(Vec::len),
            Some(1),
            "{rendered}"
        );
        assert_eq!(render(&rendered, &baked(&text)).unwrap(), rendered);
    }
}

#[test]
fn the_other_languages_carry_the_same() {
    let text = kubeconfig("apiVersion: v1\nkind: \"Config\"\n# ü\n");
    let download = download();
    let settings = [("HTTPS_PROXY".to_owned(), "http://proxy.example:3128".to_owned())];
    let what = Baked {
        bootstrap_kubeconfig: &text,
        settings: &settings,
        download: Some(&download),
    };
    let butane = butane(&what).unwrap();
    let butane: Value = serde_saphyr::from_str(butane.expose_secret()).unwrap();
    let files = &butane["storage"]["files"];
    assert_eq!(files[0]["contents"]["inline"], text.expose_secret());
    assert_eq!(files[0]["mode"], 0o600);
    assert_eq!(
        files[1]["contents"]["inline"],
        "HTTPS_PROXY=\"http://proxy.example:3128\"\n"
    );
    assert_eq!(
        files[2]["contents"]["verification"]["hash"],
        format!("sha512-{}", download.sha512)
    );
    assert_eq!(butane["systemd"]["units"][0]["contents"], UNIT);

    let cloud = cloud_config(&what).unwrap();
    assert!(cloud.expose_secret().starts_with("#cloud-config\n"));
    let cloud: Value = serde_saphyr::from_str(cloud.expose_secret()).unwrap();
    let files = &cloud["write_files"];
    assert_eq!(files[0]["path"], BOOTSTRAP_KUBECONFIG);
    assert_eq!(files[0]["content"], text.expose_secret());
    // A number to YAML, as which it would be another mode.
    assert_eq!(files[0]["permissions"], "0600");
    assert_eq!(files[2]["content"], UNIT);
    let script = cloud["runcmd"][0].as_array().unwrap();
    assert!(script.contains(&json!(download.sha512)) && script.contains(&json!(download.url)));
    assert_eq!(cloud["runcmd"][2], json!(["systemctl", "enable", "--now", UNIT_NAME]));
}

#[test]
fn p24_what_is_too_large_is_not_read() {
    let text = kubeconfig("one");
    let zeros = "0,".repeat(130 * 1024);
    let large = format!(r#"{{"ignition":{{"version":"2.3.0","config":[{zeros}0]}}}}"#);
    assert_eq!(render(&large, &baked(&text)), Err(UserdataError::TooLarge(large.len())));
    assert!(bootstrap_kubeconfig(&large).is_none());
}

#[test]
fn what_an_operator_puts_beside_the_unit_stays() {
    let text = kubeconfig("one");
    let drop_ins = json!([{ "name": "proxy.conf", "contents": "[Service]\n" }]);
    let unit = json!({ "name": UNIT_NAME, "contents": "another", "dropins": drop_ins });
    let config = json!({ "ignition": { "version": "2.2.0" }, "systemd": { "units": [unit] } });
    let rendered = render(&config.to_string(), &baked(&text)).unwrap();
    let made = &parsed(&rendered)["systemd"]["units"];
    assert_eq!(
        *made,
        json!([{ "name": UNIT_NAME, "enabled": true, "contents": UNIT, "dropins": drop_ins }])
    );
    assert_eq!(render(&rendered, &baked(&text)).unwrap(), rendered);
}

fn entry(id: &'static str) -> impl Strategy<Value = Value> {
    ("/?[a-z./-]{1,12}", any::<Option<u16>>()).prop_map(move |(name, more)| json!({ id: name, "more": more }))
}

fn list(section: &'static str, list: &'static str, id: &'static str) -> impl Strategy<Value = Map<String, Value>> {
    let entries = prop::option::of(prop::option::of(prop::collection::vec(entry(id), 0..4)));
    entries.prop_map(move |entries| {
        let mut map = Map::new();
        match entries {
            None => {}
            Some(None) => drop(map.insert(section.into(), Value::Null)),
            Some(Some(entries)) => drop(map.insert(section.into(), json!({ list: entries, "other": [] }))),
        }
        map
    })
}

proptest! {
    #[test]
    fn twice_is_as_good_as_once_and_nothing_is_lost(
        version in prop::sample::select(vec!["2.0.0", "2.3.0", "3.3.0"]),
        files in list("storage", "files", "path"),
        units in list("systemd", "units", "name"),
        pretty: bool,
    ) {
        let mut config = Map::new();
        config.extend(files);
        config.insert("ignition".into(), json!({ "version": version }));
        config.extend(units);
        let config = Value::Object(config);
        let text = if pretty { format!("{config:#}") } else { config.to_string() };
        let (one, two) = (kubeconfig("one"), kubeconfig("two"));
        let rendered = render(&text, &baked(&one)).unwrap();
        prop_assert_eq!(&render(&rendered, &baked(&one)).unwrap(), &rendered);
        prop_assert_eq!(render(&rendered, &baked(&two)).unwrap(), render(&text, &baked(&two)).unwrap());
        let mut made = parsed(&rendered);
        for (section, list, id, name) in
            [("storage", "files", "path", BOOTSTRAP_KUBECONFIG), ("systemd", "units", "name", UNIT_NAME)]
        {
            let there = made[section][list].as_array_mut().unwrap();
            let before = there.len();
            there.retain(|entry| entry[id] != name);
            prop_assert_eq!(there.len() + 1, before);
            let wanted = config[section][list].as_array().cloned().unwrap_or_default();
            prop_assert_eq!(&*there, &wanted);
        }
    }

    #[test]
    fn whatever_it_is_it_is_answered(userdata in "\\PC{0,60}") {
        let text = kubeconfig("one");
        let _ = render(&userdata, &baked(&text));
    }
}
