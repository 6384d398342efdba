//! Serves the pages and the worker bundle: embedded files, each with an ETag of its bytes.
//!
//! It renders nothing and answers no data requests (`/api`, `/v1`, `/ws`).

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::{Embed, EmbeddedFile};

use crate::api::ApiError;

/// The chat and swarm pages and their shared files.
#[derive(Embed)]
#[folder = "src/web/assets"]
struct Assets;

/// The join page and its files, besides the bundle.
#[derive(Embed)]
#[folder = "src/web/join"]
struct Join;

/// The page that measures a browser.
#[derive(Embed)]
#[folder = "src/web/bench"]
struct Bench;

/// The worker bundle, built by `cargo xtask worker`; the build warns if it is missing.
#[derive(Embed)]
#[folder = "src/web/worker"]
#[allow_missing = true]
struct Worker;

/// Routes of every page and file.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    files()
        .route("/", page::<Assets, S>("index.html"))
        .route("/swarm", page::<Assets, S>("swarm.html"))
        .route("/join", page::<Join, S>("index.html"))
        .route("/bench", page::<Bench, S>("index.html"))
}

/// The page shown while the hub is loading; the text takes the place of `{progress}`.
pub fn loading_page() -> Option<String> {
    String::from_utf8(Assets::get("loading.html")?.data.into_owned()).ok()
}

/// Routes of the pages' files.
pub fn files<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/assets/{*path}", folder::<Assets, S>())
        .route("/join/{*path}", folder::<Join, S>())
        .route("/bench/{*path}", folder::<Bench, S>())
        .route("/worker/{*path}", folder::<Worker, S>())
        .route("/reached", get(reached))
}

/// An empty answer: if the plain port's page receives it, the certificate is trusted.
async fn reached() -> Response {
    (
        StatusCode::NO_CONTENT,
        [(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"), (header::CACHE_CONTROL, "no-store")],
    )
        .into_response()
}

fn page<E: Embed, S: Clone + Send + Sync + 'static>(name: &'static str) -> axum::routing::MethodRouter<S> {
    get(async move |headers: HeaderMap| respond::<E>(name, &headers))
}

fn folder<E: Embed, S: Clone + Send + Sync + 'static>() -> axum::routing::MethodRouter<S> {
    get(async move |Path(path): Path<String>, headers: HeaderMap| respond::<E>(&path, &headers))
}

/// The file, or 304 if the client has it already. What is embedded as `PATH.gz` is sent so: every browser takes gzip.
fn respond<E: Embed>(path: &str, request: &HeaderMap) -> Response {
    let plain = E::get(path).map(|file| (file, None));
    let gzipped =
        || E::get(&format!("{path}.gz")).map(|file| (file, Some([(header::CONTENT_ENCODING, "gzip")])));
    let Some((file, encoding)) = plain.or_else(gzipped) else {
        return ApiError::no_such_path(path).into_response();
    };
    let etag = etag(&file);
    let known = request.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    // `no-cache` stores a copy but revalidates it, so that after an update no page uses an old script.
    let shared = [(header::ETAG, etag.clone()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    if known.is_some_and(|known| known.split(',').any(|tag| tag.trim().trim_start_matches("W/") == etag)) {
        return (StatusCode::NOT_MODIFIED, shared).into_response();
    }
    (shared, encoding, [(header::CONTENT_TYPE, content_type(path))], file.data).into_response()
}

/// 128 bits of the content's hash, in quotes.
fn etag(file: &EmbeddedFile) -> String {
    let hash = file.metadata.sha256_hash();
    let hex: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("json" | "map") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_that_has_the_file_gets_304() {
        let first = respond::<Assets>("index.html", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(respond::<Assets>("index.html", &headers).status(), StatusCode::NOT_MODIFIED);
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"another\""));
        assert_eq!(respond::<Assets>("index.html", &headers).status(), StatusCode::OK);
    }

    #[test]
    fn a_bundle_is_sent_as_it_is_embedded() {
        for name in ["moex_worker", "moex_worker_relaxed"] {
            for (end, content_type) in
                [(".js", "text/javascript; charset=utf-8"), ("_bg.wasm", "application/wasm")]
            {
                let response = respond::<Worker>(&format!("{name}{end}"), &HeaderMap::new());
                assert_eq!(response.status(), StatusCode::OK, "{name}");
                assert_eq!(response.headers()[header::CONTENT_TYPE], content_type);
                assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
            }
        }
    }

    #[test]
    fn nothing_outside_the_folder_is_served() {
        for path in ["../../lib.rs", "/etc/passwd", "..", "", "absent.js"] {
            assert!(Assets::get(path).is_none(), "{path}");
        }
    }

    #[test]
    fn a_browser_is_measured_with_the_experts_of_qwen3_30b_a3b() {
        use moex_kernels::{ExpertShape, WeightFormat};

        let shape = ExpertShape::uniform(2048, 768, WeightFormat::Int4G128);
        let number = WeightFormat::ALL.iter().position(|format| *format == WeightFormat::Int4G128).unwrap();
        let layer = format!(
            "{{ nExperts: 8, hidden: {}, inner: {}, blockBytes: {}, format: {} }}",
            shape.hidden,
            shape.inner,
            shape.block_bytes(),
            number | number << 8
        );
        let script = Bench::get("cpu.js").unwrap();
        assert!(std::str::from_utf8(&script.data).unwrap().contains(&layer), "{layer}");
    }

    #[test]
    fn pages_load_only_what_is_embedded() {
        for page in ["index.html", "swarm.html", "loading.html"] {
            let file = Assets::get(page).unwrap();
            let text = std::str::from_utf8(&file.data).unwrap().to_owned();
            for reference in text.split('"').filter_map(|part| part.strip_prefix("/assets/")) {
                assert!(Assets::get(reference).is_some(), "{page} names {reference}");
            }
        }
    }

    #[test]
    fn every_page_has_the_one_inline_script_that_the_policy_allows() {
        let page = |file: Option<EmbeddedFile>| String::from_utf8(file.unwrap().data.into_owned()).unwrap();
        let pages = [
            page(Assets::get("index.html")),
            page(Assets::get("swarm.html")),
            page(Assets::get("loading.html")),
            page(Join::get("index.html")),
            page(Bench::get("index.html")),
            include_str!("../access/page/setup.html").to_owned(),
        ];
        let inline = |page: &str| {
            let (_, rest) = page.split_once("<script>").unwrap();
            rest.split_once("</script>").unwrap().0.to_owned()
        };
        for page in &pages {
            assert_eq!(inline(page), inline(&pages[0]));
            assert_eq!(
                page.matches("<script").count(),
                1 + page.matches("<script type=\"module\" src=").count()
            );
        }
    }
}
