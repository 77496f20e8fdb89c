//! What is on disk after a kill, and what a later start makes of it.

use super::*;

/// Every write of taking up a handover and switching by it, in their order. After a kill behind any of them the next
/// start has a pair with the seed it is for, goes on with the handover until it was used, and takes nothing older up.
#[tokio::test]
async fn d1_after_a_kill_between_any_two_writes_of_a_move_the_next_start_goes_on() {
    type Write<'a> = Box<dyn Fn(&Store) + 'a>;
    for kept in 0..=11 {
        let fixture = Fixture::new();
        let (old, new) = (fixture.pair(), fixture.pair());
        fixture.store().switch_pair(&old, &fixture.key).unwrap();
        let (before, after) = (fixture.store().access().unwrap().unwrap(), fixture.access(NEW));
        let mut machine = fixture.machine();
        let message = fixture.good(&machine, order(3, 1));
        let guard = machine.guard().unwrap();
        let pending = guard.take(&message, machine.seal.as_ref().unwrap()).unwrap();
        let older = fixture.good(&machine, order(2, 9));
        machine.watch = None;
        drop(machine);
        let request = crate::store::new_request(&name(), &fixture.key, false, 3600).unwrap();
        let switching = Switching {
            serial: new.issued.serial.clone(),
            order: Some(pending.order()),
            previous: Some(before.clone()),
        };
        let writes: Vec<Write<'_>> = vec![
            Box::new(|store| store.write_handover(&pending).unwrap()),
            Box::new(|store| store.write_fence(&pending.fence).unwrap()),
            Box::new(|store| store.write_request(&request).unwrap()),
            Box::new(|store| store.write_switching(&switching).unwrap()),
            Box::new(|store| store.write_access(&after).unwrap()),
            Box::new(|store| store.switch_pair(&new, &fixture.key).unwrap()),
            Box::new(|store| store.install(&after).unwrap()),
            Box::new(|store| store.write_handled(&Handled::default()).unwrap()),
            Box::new(|store| store.remove_handover().unwrap()),
            Box::new(|store| store.remove_request().unwrap()),
            Box::new(|store| store.remove_switching().unwrap()),
        ];
        assert_eq!(writes.len(), 11);
        let store = fixture.store();
        writes.iter().take(kept).for_each(|write| write(&store));
        drop(store);

        let mut machine = fixture.machine();
        let switched = kept >= 6;
        let (pair, access) = if switched { (&new, &after) } else { (&old, &before) };
        assert_eq!(
            machine.pair.as_ref().unwrap().issued.serial,
            pair.issued.serial,
            "after {kept} writes"
        );
        assert_eq!(machine.access.as_ref(), Some(access), "after {kept} writes");
        assert_eq!(
            machine.handover.is_some(),
            (1..6).contains(&kept),
            "after {kept} writes"
        );
        assert_eq!(machine.state.handover.is_some(), machine.handover.is_some());
        assert_eq!(machine.key.as_ref().unwrap().public(), fixture.key.public());
        assert_eq!(machine.store.paths.switching().exists(), (4..6).contains(&kept));
        if (4..6).contains(&kept) {
            // The same switch again: what was written is not written anew.
            let written = fs::metadata(machine.store.paths.switching())
                .unwrap()
                .modified()
                .unwrap();
            machine.store.begin_switch(&switching, &after).unwrap();
            let found = fs::metadata(machine.store.paths.switching())
                .unwrap()
                .modified()
                .unwrap();
            assert_eq!(
                (machine.store.access().unwrap().as_ref(), found),
                (Some(&after), written)
            );
            machine.store.keep_access(&before).unwrap();
            assert!(!machine.store.paths.switching().exists());
        }
        if kept > 0 {
            assert_eq!(machine.fence.order, order(3, 1), "after {kept} writes");
            show(&mut machine, &older);
            assert!(
                machine.refused_handovers.contains_key("older than the one taken up"),
                "after {kept} writes"
            );
        }
        if switched {
            // Half a switch is brought to its end.
            let installed = machine.state.installed;
            assert_eq!(installed, kept >= 7);
            machine.install();
            assert!(machine.store.installed(&after));
        }
    }
}

#[tokio::test]
async fn a_handover_that_was_used_is_forgotten_and_its_number_is_not() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    let message = fixture.good(&machine, order(3, 1));
    show(&mut machine, &message);
    // The fence could not be written before.
    fs::remove_file(machine.store.paths.fence()).unwrap();
    machine.forget_handover().unwrap();
    machine.after(Event::Switched(Own {
        renew_at: Timestamp::MAX,
        not_after: Timestamp::MAX,
        token: false,
    }));
    assert!(!machine.store.paths.handover().exists());
    drop(machine);
    assert_eq!(fixture.machine().fence.order, order(3, 1));
}

#[tokio::test]
async fn a8_a_bootstrap_kubeconfig_that_is_there_already_is_not_new_and_another_one_is() {
    let fixture = Fixture::new();
    let put = |namespace: &str| {
        let text = kubeconfig("fw-1", namespace).write();
        crate::files::write(&fixture.paths().bootstrap(), &text, |_| Ok::<_, String>(())).unwrap();
    };
    put("shoot--p--s");
    let mut machine = fixture.machine();
    let seen = machine.look(Timestamp::now());
    assert!(seen.bootstrap && !seen.bootstrap_new);
    put("shoot--p--other");
    assert!(machine.look(Timestamp::now()).bootstrap_new);
    // Also for an agent that did not run when it came.
    drop(machine);
    assert!(fixture.machine().look(Timestamp::now()).bootstrap_new);
    // A machine that had none when it was first asked.
    let fixture = Fixture::new();
    drop(fixture.machine());
    let text = kubeconfig("fw-1", "shoot--p--s").write();
    crate::files::write(&fixture.paths().bootstrap(), &text, |_| Ok::<_, String>(())).unwrap();
    assert!(fixture.machine().look(Timestamp::now()).bootstrap_new);
}

#[tokio::test]
async fn state_files_of_before_are_read() {
    let fixture = Fixture::new();
    fs::write(fixture.paths().handled(), r#"{"renew":"v1","pending":true,"told":"x"}"#).unwrap();
    fs::set_permissions(
        fixture.paths().handled(),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let machine = fixture.machine();
    assert!(machine.handled.pending && machine.handled.renew.as_deref() == Some("v1"));
    assert_eq!(machine.fence, Fence::default());
}
