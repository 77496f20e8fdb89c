//! One firewall's story in the logs of both programs: under one name, in order, and without a secret however much is said.

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::harness::eventually;
use tests::moves::{Leaves, Stage};
use tests::programs::{Machine, Program};
use tests::secrets::{below, shown, suspicious};
use tests::world::World;

use crate::moves::{EVENTUALLY, came_in, settled};

/// The lines of a log, each as its fields.
fn lines(log: &str) -> Vec<Value> {
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_default()
}

/// These messages, in this order, whatever stands between; each as the line that it was found in.
fn in_order<'a>(lines: &[&'a Value], messages: &[&str]) -> Vec<&'a Value> {
    let mut rest = lines.iter();
    let find = |message: &&str| {
        let found = rest.find(|line| text(line, "message").contains(message));
        *found.unwrap_or_else(|| panic!("no {message:?} at its place in {lines:#?}"))
    };
    messages.iter().map(find).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_name_finds_a_firewalls_story_in_both_programs_and_trace_tells_no_secret() {
    let stage = Stage::new("shoot--story--whole").await.unwrap();
    let loud = ["--log-level", "trace"];
    let approvers = [
        stage.a.approver_with(&loud).unwrap(),
        stage.b.approver_with(&loud).unwrap(),
    ];
    let machine = stage.a.machine("00001").await.unwrap();
    let agent = machine
        .start_with(&["--log-level", "trace", "--log-format", "json"])
        .unwrap();
    settled(&stage.a, &machine).await;
    let (_other, _its_agent) = came_in(&stage.a, "00002").await;
    // What the machine holds before and after: a file that is gone by then was a secret, too.
    let mut secrets = below(machine.path());
    let since = stage.a.move_to(&stage.b, Leaves::Namespace).await.unwrap();
    stage.b.has(&machine, since, EVENTUALLY).await.unwrap();
    settled(&stage.b, &machine).await;
    eventually("the end of the story", EVENTUALLY, || async {
        ensure!(stage.b.home.log().contains("the firewall has come in anew"), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    secrets.extend(below(machine.path()));
    assert!(secrets.len() > 4, "{}", secrets.len());
    assert_eq!(agent.stop().await.unwrap(), Some(0));
    for approver in approvers {
        assert_eq!(approver.stop().await.unwrap(), Some(0));
    }

    let logs = [stage.a.home.log(), stage.b.home.log(), machine.log()];
    for log in &logs {
        assert!(log.contains("asked an API server"), "nothing of trace is there");
        assert_eq!(suspicious(log), None);
        assert_eq!(shown(log, &secrets), None);
    }
    let [a, b, agent] = logs.each_ref().map(|log| lines(log));
    let name = format!("{}/{}", machine.namespace, machine.firewall);
    let of = |all: &'_ [Value]| -> Vec<Value> {
        all.iter()
            .filter(|line| text(line, "firewall") == name)
            .cloned()
            .collect()
    };
    // Whatever belongs to it says so: in the agent's log all but what is the process's own, in the approver's what names it.
    let own = ["asked an API server", "told to stop"];
    let is_own = |line: &Value| own.iter().any(|word| text(line, "message").starts_with(word));
    for line in agent.iter().filter(|line| !is_own(line)) {
        assert_eq!(text(line, "firewall"), name, "{line}");
    }
    for line in a.iter().chain(&b).filter(|line| !is_own(line)) {
        let named = line.to_string().contains(machine.firewall.as_str());
        assert_eq!(named, text(line, "firewall") == name, "{line}");
    }

    let [a, b, agent] = [a, b, agent].map(|all| of(&all));
    let [a, b, agent] = [&a, &b, &agent].map(|all| all.iter().collect::<Vec<_>>());
    let asked = [
        "request sent",
        "issued",
        "works: the seed knows us",
        "switched to the new",
    ];
    let mut told = vec!["started, bootstrapping", "key made"];
    told.extend(asked);
    told.extend(["report sent", "handover taken up"]);
    told.extend(asked);
    told.push("report sent");
    let agents = in_order(&agent, &told);
    let in_a = in_order(
        &a,
        &[
            "a bootstrap credential is allotted",
            "approved",
            "the firewall reported",
        ],
    );
    let in_b = in_order(
        &b,
        &[
            "the firewall has to come in anew",
            "handover written",
            "approved",
            "the firewall has come in anew",
        ],
    );
    // The numbers by which one goes from one log to the other.
    let (requests, handover): (Vec<_>, _) = (
        [agents[2], agents[8]]
            .iter()
            .map(|line| text(line, "request").to_owned())
            .collect(),
        text(agents[7], "handover"),
    );
    assert!(
        requests[0].starts_with("firewall-") && requests[0] != requests[1],
        "{requests:?}"
    );
    assert_eq!(requests, [text(in_a[1], "request"), text(in_b[2], "request")]);
    assert!(!handover.is_empty());
    assert_eq!(handover, text(in_b[1], "handover"));
    // And by time, where one follows from the other.
    let story = [agents[1], in_a[1], in_a[2], in_b[0], agents[7], in_b[2], in_b[3]];
    let times: Vec<_> = story.map(|line| text(line, "timestamp")).into();
    assert!(times.is_sorted(), "{times:?}");
}

async fn says(program: &Program, word: &str) {
    eventually(word, EVENTUALLY, || async {
        ensure!(program.log().contains(word), "not yet");
        Ok(())
    })
    .await
    .with_context(|| program.log())
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_makes_either_program_say_more_and_less_while_it_runs() {
    const ASKED: &str = "asked an API server";
    let world = World::new("shoot--story--level").await.unwrap();
    let approver = world.approver().unwrap();
    let (machine, agent): (Machine, Program) = came_in(&world, "00001").await;
    for program in [&approver, &agent] {
        assert!(!program.log().contains(ASKED), "{}", program.log());
        program.signal(Signal::USR1).unwrap();
        says(program, "the log level is Debug now").await;
        says(program, ASKED).await;
        program.signal(Signal::USR1).unwrap();
        says(program, "the log level is Trace now").await;
        program.signal(Signal::USR1).unwrap();
        says(program, "the log level is Info now").await;
    }
    // Something that both talk of, and nothing beside it.
    let quiet = |program: &Program| {
        let log = program.log();
        let (_, after) = log.rsplit_once("the log level is Info now").unwrap();
        after.to_owned()
    };
    assert!(machine.command("renew", &[]).unwrap().status.success());
    eventually("the renewal", EVENTUALLY, || async {
        ensure!(quiet(&agent).contains("switched to the new certificate"), "not yet");
        ensure!(quiet(&approver).contains("\"approved\""), "not yet");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
    for program in [&approver, &agent] {
        // What was on its way when the level changed may still be told.
        assert!(quiet(program).matches(ASKED).count() == 0, "{}", quiet(program));
    }
}
