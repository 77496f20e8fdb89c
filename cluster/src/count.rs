//! How many requests this process has sent to API servers, by verb and code. Counted below every client of
//! `cluster::client`, so that nobody who asks has to think of it; watches and connections that fail are counted too.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use tower::Service;

/// Both from fixed lists: a server, which may be a tenant's, cannot make them many.
pub type Kind = (&'static str, &'static str);

static SENT: Mutex<BTreeMap<Kind, u64>> = Mutex::new(BTreeMap::new());

/// What was sent so far.
pub fn sent() -> BTreeMap<Kind, u64> {
    SENT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn count(kind: Kind) {
    *SENT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(kind)
        .or_default() += 1;
}

fn verb<B>(request: &Request<B>) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    let watches = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
    match *request.method() {
        Method::GET if watches => "watch",
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        101 => "101",
        200 => "200",
        201 => "201",
        202 => "202",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        409 => "409",
        410 => "410",
        415 => "415",
        422 => "422",
        429 => "429",
        500 => "500",
        502 => "502",
        503 => "503",
        504 => "504",
        _ => "other",
    }
}

/// A service that counts what goes through it to one server, and tells it to whoever debugs: never more than a line of
/// access logs holds.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    pub(crate) inner: S,
    pub(crate) server: String,
}

impl<S, B, A> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Who gives up waiting drops this: it is counted all the same.
        let unanswered = Unanswered(Some(verb(&request)));
        let told =
            tracing::enabled!(tracing::Level::DEBUG).then(|| (self.server.clone(), request.uri().path().to_owned()));
        let (verb, sent) = (verb(&request), Instant::now());
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            unanswered.ended(status);
            if let Some((server, path)) = told {
                let (code, ms) = (status.map(|status| status.as_u16()), sent.elapsed().as_millis());
                tracing::debug!(verb, server, path, code, ms, "asked an API server");
            }
            answer
        })
    }
}

/// A request that no answer came to yet.
struct Unanswered(Option<&'static str>);

impl Unanswered {
    fn ended(mut self, status: Option<StatusCode>) {
        if let Some(verb) = self.0.take() {
            count((verb, status.map_or("none", code)));
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(verb) = self.0.take() {
            count((verb, "none"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn request(method: Method, uri: &str) -> Request<()> {
        Request::builder().method(method).uri(uri).body(()).unwrap()
    }

    #[test]
    fn verbs_and_codes_are_few_whatever_a_server_answers() {
        assert_eq!(verb(&request(Method::GET, "/api/v1/pods?limit=5&watch=true")), "watch");
        assert_eq!(verb(&request(Method::GET, "/api/v1/pods?watch=false")), "get");
        assert_eq!(verb(&request(Method::PATCH, "/x")), "patch");
        assert_eq!(verb(&request(Method::from_bytes(b"STRANGE").unwrap(), "/x")), "other");
        let codes: BTreeSet<_> = (100..1000).map(|n| code(StatusCode::from_u16(n).unwrap())).collect();
        assert_eq!(codes.len(), 18);
    }

    #[tokio::test]
    async fn a_request_is_counted_once_by_its_answer_or_by_its_lack() {
        let answer = |status: Option<u16>| {
            let inner = tower::service_fn(move |_: Request<()>| async move {
                match status {
                    Some(0) => std::future::pending().await,
                    Some(status) => Ok(Response::builder().status(status).body(()).unwrap()),
                    None => Err("refused"),
                }
            });
            let server = "https://seed".to_owned();
            Counted { inner, server }
        };
        let put = || request(Method::PUT, "/x");
        let before = sent();
        answer(Some(409)).call(put()).await.unwrap();
        answer(None).call(put()).await.unwrap_err();
        let late = tokio::time::timeout(std::time::Duration::from_millis(1), answer(Some(0)).call(put()));
        late.await.unwrap_err();
        let more = |kind: Kind| sent().get(&kind).unwrap_or(&0) - before.get(&kind).unwrap_or(&0);
        assert_eq!((more(("put", "409")), more(("put", "none"))), (1, 2));
    }
}
