//! One AdmissionReview: read, answered, counted. Only whoever knows the path is read at all, for the answer holds a
//! credential: the path is told to API servers and nobody else.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use contract::digest::sha256_hex;
use contract::names;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use serde_json::Value;
use tower_http::timeout::TimeoutLayer;

use super::Hook;
use super::baking::Wanted;
use super::configured::PATH;
use crate::core::admit::{self, Answer, Asked, Need, Problem};

/// An object has a megabyte and a half at most, and of one that is changed there are two.
const BODY_MAX: usize = 4 * 1024 * 1024;
/// Before the API server gives up (timeoutSeconds in manifests/webhook): what is the matter is said by us.
const CREATED_WITHIN: Duration = Duration::from_secs(8);
const CHANGED_WITHIN: Duration = Duration::from_secs(4);
/// A turn is nobody's to keep.
const READ_WITHIN: Duration = Duration::from_secs(2);
const ANSWERED_WITHIN: Duration = Duration::from_secs(12);

pub fn router(hook: Arc<Hook>) -> Router {
    Router::new()
        .route(&format!("{PATH}/{{key}}"), post(mutate))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::SERVICE_UNAVAILABLE,
            ANSWERED_WITHIN,
        ))
        .with_state(hook)
}

async fn mutate(State(hook): State<Arc<Hook>>, Path(key): Path<String>, body: Body) -> Response {
    let known = hook
        .looked()
        .stored
        .map(|stored| sha256_hex(stored.path_key.as_bytes()));
    // Compared by digests: how far a guess is right is not to be measured.
    if known != Some(sha256_hex(key.as_bytes())) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let Ok(_turn) = hook.turns.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let Ok(body) = tokio::time::timeout(READ_WITHIN, to_bytes(body, BODY_MAX)).await else {
        return StatusCode::REQUEST_TIMEOUT.into_response();
    };
    let Ok(body) = body else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    let review: Result<AdmissionReview<DynamicObject>, _> = serde_json::from_slice(&body);
    let request = review.ok().and_then(|review| review.try_into().ok());
    let Some(request): Option<AdmissionRequest<DynamicObject>> = request else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let review = hook.review(&request).await.into_review();
    match serde_json::to_vec(&review) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl Hook {
    async fn review(&self, request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
        let response = AdmissionResponse::from(request);
        let ours = request.resource.group == names::API_GROUP && request.resource.resource == "firewalls";
        let asks = matches!(request.operation, Operation::Create | Operation::Update);
        let Some(object) = request
            .object
            .as_ref()
            .filter(|_| ours && asks && request.sub_resource.is_none())
        else {
            return response;
        };
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let asked = Asked {
            create: request.operation == Operation::Create,
            namespace,
            name: &request.name,
            userdata: userdata(object),
            annotated: object.metadata.annotations.is_some(),
            epoch: object.annotations().get(names::BOOTSTRAP_EPOCH).map(String::as_str),
            created: object.creation_timestamp().map(|created| created.0),
            deleting: object.metadata.deletion_timestamp.is_some(),
            served: self.serves(namespace),
        };
        let answer = self.answer(&asked, request).await;
        self.metrics.admitted(asked.create, answer.as_str());
        let firewall = format!("{namespace}/{}", request.name);
        match &answer {
            Answer::Refuse(why) => tracing::warn!(%firewall, %why, "this Firewall is refused"),
            Answer::Warn(why) if asked.create => tracing::warn!(%firewall, %why, "this Firewall is taken as it is"),
            answer => {
                tracing::debug!(%firewall, create = asked.create, dry_run = request.dry_run, answer = answer.as_str(), "asked about its userdata");
            }
        }
        match answer {
            Answer::Nothing => response,
            Answer::Warn(why) => {
                let mut response = response;
                response.warnings = Some(vec![why]);
                response
            }
            Answer::Refuse(why) => response.deny(why),
            Answer::Patch(patch) => {
                let patch = serde_json::from_value(Value::Array(patch));
                match patch.ok().and_then(|patch| response.clone().with_patch(patch).ok()) {
                    Some(patched) => patched,
                    None if asked.create => response.deny("the patch of its userdata cannot be written"),
                    None => response,
                }
            }
        }
    }

    async fn answer(&self, asked: &Asked<'_>, request: &AdmissionRequest<DynamicObject>) -> Answer {
        let within = if asked.create { CREATED_WITHIN } else { CHANGED_WITHIN };
        let answered = tokio::time::timeout(within, self.found_out(asked, request)).await;
        answered.unwrap_or_else(|_| {
            let why = format!("the seed did not answer within {} s, try again", within.as_secs());
            admit::answer(asked, Err(Problem::Other(why)))
        })
    }

    async fn found_out(&self, asked: &Asked<'_>, request: &AdmissionRequest<DynamicObject>) -> Answer {
        let mut need = admit::need(asked, Timestamp::now());
        if let Need::Credential(name, _) = &need {
            match self.standing(name).await {
                Ok(standing) => need = admit::against(need, asked, &standing),
                Err(problem) => return admit::answer(asked, Err(problem)),
            }
        }
        let (name, epoch) = match need {
            Need::Nothing => return Answer::Nothing,
            Need::Refuse(why) => return Answer::Refuse(why),
            Need::Credential(name, epoch) => (name, epoch),
        };
        let wanted = Wanted {
            create: asked.create,
            dry_run: request.dry_run,
            namespace: asked.namespace,
            name: &name,
            epoch,
            userdata: asked.userdata.unwrap_or_default(),
            before: request.old_object.as_ref().and_then(userdata),
        };
        admit::answer(asked, self.bake(&wanted).await)
    }
}

fn userdata(firewall: &DynamicObject) -> Option<&str> {
    firewall.data.get("spec")?.get("userdata")?.as_str()
}
