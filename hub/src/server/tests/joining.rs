//! Who is told how to join.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_join_link_is_told_under_the_visitors_origin_and_by_no_proxy() {
    let hub = TestHub::start().await;
    let told: Value = hub.get("/api/join?origin=http://10.0.0.7:8080").await.json().await.unwrap();
    assert_eq!(told["token"], TOKEN);
    assert_eq!(told["links"][0]["url"], format!("http://10.0.0.7:8080/join#{TOKEN}"));
    assert!(told["links"][0]["qr_svg"].as_str().unwrap().starts_with("<svg "), "{told}");
    assert_eq!(told["links"].as_array().unwrap().len(), 1, "a hub on loopback has no other address");
    let response = hub.get("/api/join").await;
    assert_eq!(response.headers()[header::CACHE_CONTROL], "no-store");
    assert_eq!(response.json::<Value>().await.unwrap()["links"], json!([]));
    for bad in ["javascript:alert(1)", "http://a/b", ""] {
        assert_error(hub.get(&format!("/api/join?origin={bad}")).await, 400, "invalid_value").await;
    }
    for path in ["/api/join", "/api/swarm", "/api/swarm/experts", "/metrics"] {
        let forwarded = hub.request(Method::GET, path).header("x-forwarded-for", "10.0.0.9").send().await;
        let said = assert_error(forwarded.unwrap(), 403, "forbidden").await;
        assert!(said.contains("--api-key") && !said.contains(TOKEN), "{said}");
    }
    hub.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_told_by_name_until_it_is_revoked() {
    let hub = TestHub::start().await;
    let path = "/api/join?origin=http://10.0.0.7:8080&name=anna";
    let told: Value = hub.get(path).await.json().await.unwrap();
    let token = moex_swarm::JoinToken::new(TOKEN).invitation("anna").unwrap();
    assert_eq!(told["token"], token);
    assert_eq!(told["links"][0]["url"], format!("http://10.0.0.7:8080/join#{token}"));
    for bad in ["", "an%20na", &"x".repeat(33)] {
        assert_error(hub.get(&format!("/api/join?name={bad}")).await, 400, "invalid_value").await;
    }
    let post = |body: &'static str| hub.request(Method::POST, "/api/join/revoked").body(body).send();
    for bad in ["", "{}", r#"{"name": 7}"#, r#"{"name": "an na"}"#] {
        assert_error(post(bad).await.unwrap(), 400, "invalid_value").await;
    }
    let none: Value = hub.get("/api/join/revoked").await.json().await.unwrap();
    assert_eq!(none, json!({ "revoked": [] }));
    for _ in 0..2 {
        let revoked: Value = post(r#"{"name": "anna"}"#).await.unwrap().json().await.unwrap();
        assert_eq!(revoked, json!({ "revoked": ["anna"] }));
    }
    let said = assert_error(hub.get(path).await, 400, "invalid_value").await;
    assert!(said.contains("anna was revoked"), "{said}");
    hub.stop().await;
}
