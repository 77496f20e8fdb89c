//! Calls with a deadline and a named failure. Watches are the only requests that may last: they have their own idle
//! timeout.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Class, Failure};

/// No call takes longer: a stalled server would otherwise hold whoever asks for ever.
pub const DEADLINE: Duration = Duration::from_secs(5);

/// Runs one request. `what` says what is attempted on which object ("get Secret shoot--a/firewall-bootstrap").
pub async fn call<T>(what: impl Into<String>, request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Failure::of(what, &error)),
        Err(_) => Err(Failure::late(what, DEADLINE.as_secs())),
    }
}

/// As `call`, for objects that may be absent.
pub async fn call_opt<T>(
    what: impl Into<String>,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<Option<T>, Failure> {
    match call(what, request).await {
        Ok(answer) => Ok(Some(answer)),
        Err(failure) if failure.is(Class::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Server-side apply: creates the object, or changes what is ours in it and nothing else.
pub async fn apply<K>(api: &Api<K>, manager: &str, name: &str, object: &(impl Serialize + Debug)) -> Result<K, Failure>
where
    K: Clone + DeserializeOwned + Debug + kube::Resource<DynamicType = ()>,
{
    let what = format!("apply {} {name}", K::kind(&()));
    let params = PatchParams::apply(manager).force();
    call(what, api.patch(name, &params, &Patch::Apply(object))).await
}
