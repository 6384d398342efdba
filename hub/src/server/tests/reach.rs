//! By which ways a hub is reached, and what it says there before it is ready.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn while_a_hub_gets_ready_everybody_is_told_how_far_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shards = tempfile::tempdir().unwrap();
    let folder = Some(shards.path().to_owned());
    let config = HubConfig { token: TOKEN.to_owned(), shards: folder, ..HubConfig::default() };
    let server = Server::start(vec![Listener::plain(listener)], &config.reach()).unwrap();
    let loading = server.loading();
    moex_worker::native::install_crypto();
    let http = Client::new();
    let get = async |path: &str| http.get(format!("{url}{path}")).send().await.unwrap();

    let health = get("/health").await;
    assert_eq!(health.status(), StatusCode::SERVICE_UNAVAILABLE);
    let health: Value = health.json().await.unwrap();
    assert_eq!((&health["status"], &health["phase"]), (&json!("loading"), &json!("reading the model")));

    loading.packed(43, 100);
    let health: Value = get("/health").await.json().await.unwrap();
    assert_eq!(
        (&health["done"], &health["total"], &health["percent"]),
        (&json!(43), &json!(100), &json!(43))
    );
    assert!(health["eta_seconds"].is_number(), "{health}");
    for path in ["/", "/swarm", "/join"] {
        let page = get(path).await;
        assert_eq!(page.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(page.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        assert!(page.text().await.unwrap().contains("moex is loading: 43 %"), "{path}");
    }
    assert_eq!(get("/assets/loading.js").await.status(), StatusCode::OK);
    let asked = http.post(format!("{url}/v1/chat/completions")).json(&ask("Hi")).send().await.unwrap();
    assert!(asked.headers().contains_key(header::RETRY_AFTER));
    assert_error(asked, 503, "loading").await;
    assert_eq!(get("/ws").await.status(), StatusCode::SERVICE_UNAVAILABLE);

    let hub = Hub::open(config, move |done, total| loading.packed(done, total)).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.ready(hub).until(async move { drop(stopped.await) }));
    let deadline = Instant::now() + Duration::from_secs(20);
    while get("/health").await.status() != StatusCode::OK {
        assert!(Instant::now() < deadline, "it is ready");
    }
    assert!(!get("/").await.text().await.unwrap().contains("moex is loading"));
    drop(stop);
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_proxy_a_hub_is_asked_by_its_public_name() {
    let ask_as_moex_example = |hub: &TestHub| {
        hub.request(Method::POST, "/v1/chat/completions")
            .header(header::HOST, "moex.example")
            .header(header::ORIGIN, "https://moex.example")
            .json(&with(ask("Hi"), &json!({"max_tokens": 1})))
            .send()
    };
    let hub = TestHub::with(|config| config.public_url = Some("https://moex.example".parse().unwrap())).await;
    assert_eq!(ask_as_moex_example(&hub).await.unwrap().status(), StatusCode::OK);
    let other = hub.request(Method::GET, "/").header(header::HOST, "evil.example").send().await.unwrap();
    assert_eq!(other.status(), StatusCode::FORBIDDEN);
    hub.stop().await;
    let hub = TestHub::start().await;
    let refused = assert_error(ask_as_moex_example(&hub).await.unwrap(), 403, "forbidden").await;
    assert!(refused.contains("--public-url"), "{refused}");
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plain_port_lets_join_and_shows_the_way_to_the_rest() {
    let pages = axum::Router::new().route("/", axum::routing::get(async || "the setup page"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shards = tempfile::tempdir().unwrap();
    let folder = Some(shards.path().to_owned());
    let public_url = Some("http://setup.example".parse().unwrap());
    let config = HubConfig { token: TOKEN.to_owned(), shards: folder, public_url, ..HubConfig::default() };
    let hub = Hub::open(config, |_, _| {}).await.unwrap();
    let listener =
        Listener { tcp: listener, tls: None, surface: Surface::Plain(PlainPort::new(pages, 8443)) };
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(run(vec![listener], hub, async move { drop(stopped.await) }));
    moex_worker::native::install_crypto();
    let http = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let get = async |host: &str, path: &str| {
        http.get(format!("http://{address}{path}")).header(header::HOST, host).send().await.unwrap()
    };
    assert_eq!(get("setup.example", "/").await.text().await.unwrap(), "the setup page");
    for path in ["/join", "/join/join.js", "/health", "/assets/base.css"] {
        assert_eq!(get("setup.example", path).await.status(), StatusCode::OK, "{path}");
    }
    assert_eq!(get("setup.example", "/shards/absent").await.status(), StatusCode::UNAUTHORIZED);
    let elsewhere = get("setup.example", "/swarm?a=b").await;
    assert_eq!(elsewhere.status(), StatusCode::TEMPORARY_REDIRECT);
    assert_eq!(elsewhere.headers()[header::LOCATION], "https://setup.example:8443/swarm?a=b");
    for path in ["/v1/models", "/api/swarm", "/metrics"] {
        let refused = assert_error(get("setup.example", path).await, 403, "forbidden").await;
        assert!(refused.contains(&format!("https://setup.example:8443{path}")), "{refused}");
    }
    let own = address.to_string();
    assert_ne!(get(&own, "/").await.text().await.unwrap(), "the setup page");
    assert_eq!(get(&own, "/v1/models").await.status(), StatusCode::OK);
    drop(stop);
    serving.await.unwrap().unwrap();
}
