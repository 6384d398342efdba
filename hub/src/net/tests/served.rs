//! The files that workers load their blocks from.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn shards_are_served_by_range() {
    let running = start(|_| {}).await;
    let bearer = format!("Bearer {TOKEN}");
    let auth = ("authorization", bearer.as_str());
    let block = Block { layer: LayerId(1), expert: ExpertId(3) };
    let source = running.store.source(block).unwrap();
    let range = format!("bytes={}-{}", source.start, source.end - 1);
    let id = WorkerId(9).to_string();
    let response = running.get(&source.url, &[auth, ("range", &range), ("x-moex-worker", &id)]).await;
    assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
    let length = running.store.file("layer-01.safetensors").unwrap().bytes.len();
    let content_range = format!("bytes {}-{}/{length}", source.start, source.end - 1);
    assert_eq!(response.headers()[header::CONTENT_RANGE], content_range);
    assert_eq!(response.headers()[header::ACCEPT_RANGES], "bytes");
    assert!(response.headers()[header::CACHE_CONTROL].to_str().unwrap().contains("immutable"));
    let etag = response.headers()[header::ETAG].to_str().unwrap().to_owned();
    assert_eq!(response.bytes().await.unwrap(), running.store.block(block).unwrap());
    assert_eq!(running.server.handle().status().await.weights_served_bytes, source.end - source.start);

    // A download in two halves, as after an interruption.
    let mut whole = Vec::new();
    for range in ["bytes=0-99", "bytes=100-"] {
        let response = running.get(&source.url, &[auth, ("range", range)]).await;
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        whole.extend(response.bytes().await.unwrap());
    }
    let file = running.store.file("layer-01.safetensors").unwrap().bytes.clone();
    assert_eq!(whole, file);
    let response = running.get(&source.url, &[auth]).await;
    assert_eq!((response.status(), response.bytes().await.unwrap()), (StatusCode::OK, file));

    let beyond = format!("bytes={length}-");
    let other = source.url.replace("?v=", "?v=0");
    for (path, headers, status) in [
        (source.url.as_str(), &[auth, ("range", beyond.as_str())][..], StatusCode::RANGE_NOT_SATISFIABLE),
        (&source.url, &[auth, ("if-none-match", &etag)], StatusCode::NOT_MODIFIED),
        (&source.url, &[auth, ("range", "bytes=0-1"), ("if-range", "\"old\"")], StatusCode::OK),
        (&other, &[auth], StatusCode::NOT_FOUND),
        ("/shards/layer-09.safetensors", &[auth], StatusCode::NOT_FOUND),
        ("/shards/..%2Fmanifest.json", &[auth], StatusCode::NOT_FOUND),
    ] {
        assert_eq!(running.get(path, headers).await.status(), status, "{path} {headers:?}");
    }
}
