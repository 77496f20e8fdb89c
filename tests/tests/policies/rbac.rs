//! Roles and RoleBindings: the one shape that the approver's `escalate` and `bind` are for.

use contract::names;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{POLL, SHOOT, Site, firewall, refused, with};

#[tokio::test]
async fn a_role_opens_a_firewall_s_own_and_nothing_else() {
    let site = Site::new().await.unwrap();
    let good = serde_json::to_value(site.planned(&firewall("fw-role")).await.role).unwrap();
    let shape = "reads firewalls, and Secrets of one firewall";
    let rule = |index: usize, change: Value| {
        let mut rules = good["rules"].clone();
        rules[index] = with(&rules[index], &change);
        json!({ "rules": rules })
    };
    let names = |names: Value| rule(1, json!({ "resourceNames": names }));
    let mut one_more = good["rules"].clone();
    one_more
        .as_array_mut()
        .unwrap()
        .push(json!({ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }));
    let cases = [
        ("every verb", rule(0, json!({ "verbs": ["*"] })), shape),
        (
            "writing",
            rule(0, json!({ "verbs": ["get", "list", "watch", "patch"] })),
            shape,
        ),
        ("every resource", rule(0, json!({ "resources": ["*"] })), shape),
        ("every group", rule(0, json!({ "apiGroups": ["*"] })), shape),
        ("Secrets without names", names(Value::Null), shape),
        ("Secrets with an empty list of names", names(json!([])), shape),
        (
            "a Secret of the shoot's",
            names(json!(["fw-role.fw.metal-stack.io", "ca"])),
            shape,
        ),
        (
            "another firewall's Secret",
            names(json!(["fw-other.fw.metal-stack.io"])),
            shape,
        ),
        // A label says for which firewall: to one named `shoot-access-x`, what others name like this would be its own.
        (
            "what somebody else named after an agent",
            names(json!(["fw-role-agent"])),
            shape,
        ),
        (
            "a name that only begins like the template's",
            names(json!(["generic-token-kubeconfig-x/y"])),
            shape,
        ),
        (
            "writing Secrets",
            rule(1, json!({ "verbs": ["get", "list", "watch", "update"] })),
            shape,
        ),
        (
            "ConfigMaps",
            rule(1, json!({ "resources": ["secrets", "configmaps"] })),
            shape,
        ),
        (
            "Secrets of every group",
            rule(1, json!({ "apiGroups": ["", "*"] })),
            shape,
        ),
        ("one rule more", json!({ "rules": one_more }), shape),
        ("no rules", json!({ "rules": [] }), shape),
        (
            "no label",
            json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } }),
            "with the label",
        ),
        (
            "another firewall's",
            json!({ "metadata": { "labels": { names::FIREWALL_LABEL: "fw-other" } } }),
            "is named fw.metal-stack.io:<firewall>",
        ),
        (
            "a name that others give, too",
            json!({ "metadata": { "name": "fw-role" } }),
            "is named fw.metal-stack.io:<firewall>",
        ),
        (
            "nobody's",
            json!({ "metadata": { "labels": { names::FIREWALL_LABEL: null } } }),
            "is named fw.metal-stack.io:<firewall>",
        ),
        (
            "no owner",
            json!({ "metadata": { "ownerReferences": null } }),
            "is named fw.metal-stack.io:<firewall>",
        ),
    ];
    // Made new, and made of one that stands.
    for round in ["create", "update"] {
        for (case, change, words) in &cases {
            let what = format!("{round}: {case}");
            refused(
                &what,
                site.apply::<Role>(SHOOT, &with(&good, change)).await,
                "roles",
                words,
            );
        }
        site.apply::<Role>(SHOOT, &good).await.unwrap();
    }
    for namespace in [
        "kube-system",
        names::SERVICE_ACCOUNT_NAMESPACE,
        names::APPROVER_NAMESPACE,
    ] {
        refused(
            namespace,
            site.apply::<Role>(namespace, &good).await,
            "roles",
            "in a shoot's namespace",
        );
    }
    // Without its shoot's Secrets, as before the shoot's status is there; and with the template's bare name.
    for secrets in [
        json!(["fw-role.fw.metal-stack.io"]),
        json!(["fw-role.fw.metal-stack.io", names::GENERIC_KUBECONFIG_PREFIX]),
    ] {
        site.apply::<Role>(SHOOT, &with(&good, &names(secrets))).await.unwrap();
    }
}

#[tokio::test]
async fn somebody_else_s_role_cannot_be_changed_even_into_one_of_ours() {
    let site = Site::new().await.unwrap();
    let good = serde_json::to_value(site.planned(&firewall("fw-foreign-role")).await.role).unwrap();
    let foreign = with(
        &good,
        &json!({ "metadata": { "labels": null, "ownerReferences": null } }),
    );
    site.given::<Role>(SHOOT, &foreign).await;
    refused(
        "taking over",
        site.apply::<Role>(SHOOT, &good).await,
        "roles",
        "with the label",
    );
    let roles: Api<Role> = Api::namespaced(site.approver.clone(), SHOOT);
    let read = roles
        .patch(
            "fw.metal-stack.io:fw-foreign-role",
            &PatchParams::default(),
            &Patch::Merge(json!({})),
        )
        .await;
    refused("an empty patch", read, "roles", "with the label");
}

#[tokio::test]
async fn a_role_binding_gives_a_firewall_s_role_to_that_firewall_alone() {
    let site = Site::new().await.unwrap();
    let plan = site.planned(&firewall("fw-binding")).await;
    let good = serde_json::to_value(plan.role_binding.unwrap()).unwrap();
    let subject = |change: Value| json!({ "subjects": [with(&good["subjects"][0], &change)] });
    let group = "rbac.authorization.k8s.io";
    let account = json!([{ "kind": "ServiceAccount", "name": "default", "namespace": "default" }]);
    let mut two = good["subjects"].clone();
    two.as_array_mut()
        .unwrap()
        .push(json!({ "kind": "User", "apiGroup": group, "name": "fw.metal-stack.io:fw-other" }));
    let (role, subjects) = ("binds a Role of its own name", "has the subject user");
    // The reference to a Role cannot be changed once it stands, so each case is one that does not stand yet.
    for (case, change, words) in [
        (
            "another Role",
            json!({ "roleRef": { "name": "fw.metal-stack.io:fw-other" } }),
            role,
        ),
        (
            "another firewall",
            subject(json!({ "name": "fw.metal-stack.io:fw-other" })),
            subjects,
        ),
        ("another user", subject(json!({ "name": "system:admin" })), subjects),
        ("a group", subject(json!({ "kind": "Group" })), subjects),
        ("a ServiceAccount", json!({ "subjects": account }), subjects),
        ("two subjects", json!({ "subjects": two }), subjects),
        ("no subject", json!({ "subjects": [] }), subjects),
        (
            "no label",
            json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } }),
            "with the label",
        ),
        (
            "another firewall's",
            json!({ "metadata": { "labels": { names::FIREWALL_LABEL: "fw-other" } } }),
            "is named fw.metal-stack.io:<firewall>",
        ),
        (
            "no owner",
            json!({ "metadata": { "ownerReferences": null } }),
            "is named fw.metal-stack.io:<firewall>",
        ),
    ] {
        refused(
            case,
            site.apply::<RoleBinding>(SHOOT, &with(&good, &change)).await,
            "rolebindings",
            words,
        );
    }
    refused(
        "kube-system",
        site.apply::<RoleBinding>("kube-system", &good).await,
        "rolebindings",
        "in a shoot's namespace",
    );
    site.apply::<RoleBinding>(SHOOT, &good).await.unwrap();
    refused(
        "one more subject",
        site.apply::<RoleBinding>(SHOOT, &with(&good, &json!({ "subjects": two })))
            .await,
        "rolebindings",
        subjects,
    );
    let bindings: Api<RoleBinding> = Api::namespaced(site.approver.clone(), SHOOT);
    bindings
        .delete("fw.metal-stack.io:fw-binding", &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn b6_a_firewall_makes_tokens_of_its_own_account_and_of_no_other() {
    let site = Site::new().await.unwrap();
    let record = contract::record::Record {
        tokens: true,
        ..Default::default()
    };
    let plan = site.planned_with(&firewall("fw-tokens"), &record).await;
    let tokens = plan.tokens.unwrap();
    let role = serde_json::to_value(&tokens.role).unwrap();
    let rule = |change: Value| json!({ "rules": [with(&role["rules"][0], &change)] });
    let words = "makes tokens of that firewall";
    for (case, change) in [
        ("another's", rule(json!({ "resourceNames": ["fw-other"] }))),
        ("one more", rule(json!({ "resourceNames": ["fw-tokens", "fw-other"] }))),
        ("everybody's", rule(json!({ "resourceNames": null }))),
        ("the account itself", rule(json!({ "resources": ["serviceaccounts"] }))),
        ("another verb", rule(json!({ "verbs": ["create", "get"] }))),
        ("another group", rule(json!({ "apiGroups": ["*"] }))),
        (
            "what it reads elsewhere",
            json!({ "rules": serde_json::to_value(&plan.role).unwrap()["rules"].clone() }),
        ),
        ("no rule", json!({ "rules": [] })),
    ] {
        let applied = site.apply::<Role>(names::ACCESS_NAMESPACE, &with(&role, &change)).await;
        refused(case, applied, "roles", words);
    }
    // In a shoot's namespace it would be somebody's own account of that name.
    let owned = json!({ "metadata": serde_json::to_value(&plan.role.metadata).unwrap() });
    refused(
        "in a shoot's namespace",
        site.apply::<Role>(SHOOT, &with(&role, &owned)).await,
        "roles",
        "reads firewalls",
    );
    site.apply::<Role>(names::ACCESS_NAMESPACE, &role).await.unwrap();

    let words = "has the subject user";
    for (place, binding) in [
        (SHOOT, plan.role_binding.unwrap()),
        (names::ACCESS_NAMESPACE, tokens.role_binding.unwrap()),
    ] {
        let good = serde_json::to_value(binding).unwrap();
        let second = |change: Value| json!({ "subjects": [good["subjects"][0], with(&good["subjects"][1], &change)] });
        for (case, change) in [
            ("another firewall's account", second(json!({ "name": "fw-other" }))),
            ("of another namespace", second(json!({ "namespace": SHOOT }))),
            (
                "its bootstrap account",
                second(json!({ "namespace": names::SERVICE_ACCOUNT_NAMESPACE })),
            ),
            (
                "all accounts",
                second(
                    json!({ "kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": names::ACCESS_GROUP, "namespace": null }),
                ),
            ),
        ] {
            let applied = site.apply::<RoleBinding>(place, &with(&good, &change)).await;
            refused(&format!("{case} in {place}"), applied, "rolebindings", words);
        }
        site.apply::<RoleBinding>(place, &good).await.unwrap();
    }
}

#[tokio::test]
async fn a_role_that_was_there_before_is_not_bound_to_a_firewall_of_its_name() {
    let site = Site::new().await.unwrap();
    // Anything can be a firewall's name, and the label and the owner are what the approver says they are.
    let role = "machine-controller-manager";
    let secrets = json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["*"] }]);
    site.given::<Role>(SHOOT, &json!({ "metadata": { "name": role }, "rules": secrets }))
        .await;
    let ours = serde_json::to_value(site.planned(&firewall(role)).await.role_binding.unwrap()).unwrap();
    let user = format!("{}{role}", names::USER_PREFIX);
    assert_eq!(ours["subjects"][0]["name"], user);
    let to_role = json!({ "roleRef": { "name": role } });
    let named = json!({ "metadata": { "name": role } });
    let itself = json!({ "subjects": [with(&ours["subjects"][0], &named["metadata"])] });
    for (case, change, words) in [
        (
            "under its own name",
            with(&named, &to_role),
            "is named fw.metal-stack.io:<firewall>",
        ),
        (
            "to a user of its own name",
            with(&with(&named, &to_role), &itself),
            "is named fw.metal-stack.io:<firewall>",
        ),
        ("under the firewall's name", to_role, "binds a Role of its own name"),
    ] {
        let attack = site.apply::<RoleBinding>(SHOOT, &with(&ours, &change)).await;
        refused(case, attack, "rolebindings", words);
    }
    // Nor can that Role be made into one that is bound.
    let good = serde_json::to_value(site.planned(&firewall(role)).await.role).unwrap();
    refused(
        "the Role itself",
        site.apply::<Role>(SHOOT, &with(&good, &named)).await,
        "roles",
        "with the label",
    );
    site.apply::<Role>(SHOOT, &good).await.unwrap();
    site.apply::<RoleBinding>(SHOOT, &ours).await.unwrap();
}

#[tokio::test]
async fn no_cluster_role_is_bound_even_if_somebody_gave_the_right_to() {
    let site = Site::new().await.unwrap();
    let good = serde_json::to_value(site.planned(&firewall("fw-cluster-role")).await.role_binding.unwrap()).unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(site.approver.clone(), SHOOT);
    let bind = async |role: &str| {
        let bad = with(&good, &json!({ "roleRef": { "kind": "ClusterRole", "name": role } }));
        bindings
            .create(&PostParams::default(), &serde_json::from_value(bad).unwrap())
            .await
    };
    let Err(kube::Error::Api(status)) = bind("cluster-admin").await else {
        panic!("it was bound")
    };
    assert_eq!(status.code, 403, "{status:?}");
    site.give_too_much("rbac.authorization.k8s.io", "clusterroles", "bind")
        .await;
    for role in ["cluster-admin", "fw.metal-stack.io:fw-cluster-role"] {
        // The right takes a moment to be known.
        let answer = loop {
            match bind(role).await {
                Err(kube::Error::Api(status)) if status.code == 403 => tokio::time::sleep(POLL).await,
                answer => break answer,
            }
        };
        refused(role, answer, "rolebindings", "binds a Role of its own name");
    }
}

#[tokio::test]
async fn somebody_else_s_role_binding_can_be_neither_changed_nor_deleted() {
    let site = Site::new().await.unwrap();
    let good = serde_json::to_value(
        site.planned(&firewall("fw-foreign-binding"))
            .await
            .role_binding
            .unwrap(),
    )
    .unwrap();
    let foreign = with(
        &good,
        &json!({ "metadata": { "labels": null, "ownerReferences": null } }),
    );
    site.given::<RoleBinding>(SHOOT, &foreign).await;
    refused(
        "taking over",
        site.apply::<RoleBinding>(SHOOT, &good).await,
        "rolebindings",
        "with the label",
    );
    let bindings: Api<RoleBinding> = Api::namespaced(site.approver.clone(), SHOOT);
    refused(
        "deleting",
        bindings
            .delete("fw.metal-stack.io:fw-foreign-binding", &DeleteParams::default())
            .await,
        "rolebindings",
        "with the label",
    );
}
