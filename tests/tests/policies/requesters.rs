//! Requests as they are made: whoever comes as a firewall asks our signer, and no other. Tried with each of its three
//! kinds of identity, on a seed where all of them are allowed to ask.

use contract::csr;
use contract::key::PrivateKey;
use contract::names;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tests::harness::{Cluster, client_from};

use super::requests::{create, foreign_subject, identity};
use super::{Site, firewall, refused};

const POLICY: &str = "requesters";
const WORDS: &str = "asks for certificates of the signer kubernetes.io/kube-apiserver-client only";
const OTHERS: [&str; 3] = [
    "kubernetes.io/kube-apiserver-client-kubelet",
    "kubernetes.io/kubelet-serving",
    "example.com/signer",
];

fn request() -> String {
    csr::write(&firewall("fw"), &PrivateKey::generate().unwrap()).unwrap()
}

/// For the wait until the policies are in force.
pub async fn ask_another(cluster: &Cluster) -> anyhow::Result<kube::Result<CertificateSigningRequest>> {
    let firewall = cluster.kubeconfig_for("fw.metal-stack.io:fw", &[names::ORGANIZATION])?;
    Ok(create(&client_from(&firewall).await?, OTHERS[2], &request()).await)
}

#[tokio::test]
async fn p24_a_firewall_asks_our_signer_and_no_other_whatever_its_credential() {
    let site = Site::new().await.unwrap();
    for (user, groups) in [
        (
            "system:bootstrap:abcdef",
            ["system:bootstrappers", names::BOOTSTRAP_GROUP],
        ),
        (
            "system:serviceaccount:firewall-bootstrap:fw",
            ["system:serviceaccounts", names::SERVICE_ACCOUNT_GROUP],
        ),
        ("fw.metal-stack.io:fw", ["system:authenticated", names::ORGANIZATION]),
    ] {
        let client = identity(&site, user, &groups).await;
        for signer in OTHERS {
            for text in [request(), foreign_subject("system:nodes", "system:node:one")] {
                let asked = create(&client, signer, &text).await;
                refused(&format!("{user} asks {signer}"), asked, POLICY, WORDS);
            }
        }
        // By a name that the server makes, too.
        let mut object = create(&site.admin, OTHERS[2], &request()).await.unwrap();
        object.metadata = ObjectMeta {
            generate_name: Some("request-".to_owned()),
            ..ObjectMeta::default()
        };
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        refused(
            user,
            requests.create(&PostParams::default(), &object).await,
            POLICY,
            WORDS,
        );
        create(&client, names::SIGNER, &request()).await.unwrap();
        let mut of_ours = create(&site.admin, names::SIGNER, &request()).await.unwrap();
        of_ours.metadata = ObjectMeta {
            generate_name: Some("request-".to_owned()),
            ..ObjectMeta::default()
        };
        for (what, spoil, words) in TOO_LARGE {
            let mut object = of_ours.clone();
            spoil(&mut object);
            let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
            let asked = requests.create(&PostParams::default(), &object).await;
            refused(&format!("{user}: {what}"), asked, POLICY, words);
        }
        // What `kubectl` and others leave on an object is no reason.
        of_ours.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        of_ours.metadata.annotations = Some([("a".to_owned(), "b".repeat(4_000))].into());
        let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
        requests.create(&PostParams::default(), &of_ours).await.unwrap();
    }
}

type Spoil = fn(&mut CertificateSigningRequest);

/// P30: a hundred of these would be more than whoever lists them has memory for.
const TOO_LARGE: [(&str, Spoil, &str); 5] = [
    (
        "a request of 20 KiB",
        |csr| csr.spec.request.0.splice(0..0, vec![b'\n'; 20 * 1024]).for_each(drop),
        "bytes at most",
    ),
    (
        "a hundred labels",
        |csr| csr.metadata.labels = Some((0..100).map(|n| (format!("l{n}"), String::new())).collect()),
        "few short labels",
    ),
    (
        "a long annotation",
        |csr| csr.metadata.annotations = Some([("a".to_owned(), "b".repeat(9_000))].into()),
        "few short labels",
    ),
    (
        "a finalizer",
        |csr| csr.metadata.finalizers = Some(vec!["example.com/a".to_owned()]),
        "no finalizers",
    ),
    (
        "an owner",
        |csr| {
            let owner: OwnerReference = serde_json::from_value(serde_json::json!({
                "apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b",
            }))
            .unwrap();
            csr.metadata.owner_references = Some(vec![owner]);
        },
        "no owners",
    ),
];

#[tokio::test]
async fn p24_nobody_else_is_kept_from_any_signer() {
    let site = Site::new().await.unwrap();
    let kubeadm = "system:bootstrappers:kubeadm:default-node-token";
    for client in [
        identity(&site, "system:bootstrap:kubeaa", &[kubeadm, "system:masters"]).await,
        identity(
            &site,
            "system:serviceaccount:kube-system:x",
            &["system:serviceaccounts", "system:masters"],
        )
        .await,
        site.admin.clone(),
    ] {
        for signer in OTHERS {
            create(&client, signer, &foreign_subject("system:nodes", "system:node:one"))
                .await
                .unwrap_or_else(|error| panic!("{signer}: {error}"));
        }
    }
}
