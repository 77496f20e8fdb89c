//! Requests as they are made: whoever comes as a firewall asks our signer, and no other. Tried with each of its three
//! kinds of identity, on a seed where all of them are allowed to ask.

use contract::csr;
use contract::key::PrivateKey;
use contract::names;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
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
    }
}

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
