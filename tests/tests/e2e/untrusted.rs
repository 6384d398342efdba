//! Models that nobody has checked, and models that change under the hub.

use std::fs::{self, File};
use std::path::Path;

use moex_tests::chat;
use moex_tests::hub::{Hub, Moex};
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::data;

/// A copy of a small model.
fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(data("tiny-qwen3-moe")).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
    }
    folder
}

fn serve(folder: &Path, flags: &[&str]) -> Hub {
    Moex::under_test().hub(&[&["--model", folder.to_str().unwrap()], flags].concat()).unwrap()
}

async fn post(http: &Client, hub: &Hub, path: &str, body: &Value) -> (u16, String) {
    let answer = http.post(format!("{}{path}", hub.url)).json(body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_model_cut_short_is_an_error_that_names_the_file_and_the_hub_lives() {
    let folder = model();
    // The oracle reads the file itself in each step.
    let hub = serve(folder.path(), &["--activations", "f32"]);
    let http = chat::client().unwrap();
    let body = json!({"prompt": "Hi", "max_tokens": 4});
    assert_eq!(post(&http, &hub, "/v1/completions", &body).await.0, 200);

    let weights = folder.path().join("model.safetensors");
    File::options().write(true).open(&weights).unwrap().set_len(4096).unwrap();
    let (status, said) = post(&http, &hub, "/v1/completions", &body).await;
    assert!(said.contains("model.safetensors was cut short while it was in use"), "{said}");
    assert_eq!(status, 500);
    let health = http.get(format!("{}/health", hub.url)).send().await.unwrap();
    assert_eq!(health.status().as_u16(), 503);
    assert!(health.text().await.unwrap().contains("put it back whole, and start again"));
}

#[tokio::test]
async fn a_template_that_doubles_a_string_is_stopped_and_everything_else_goes_on() {
    let folder = model();
    let doubling = "{% set found = namespace(text='x') %}{% for _ in range(60) %}\
                    {% set found.text = found.text ~ found.text %}{% endfor %}{{ found.text | length }}";
    fs::write(folder.path().join("chat_template.jinja"), doubling).unwrap();
    let hub = serve(folder.path(), &[]);
    let http = chat::client().unwrap();
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4});
    for _ in 0..20 {
        let (status, said) = post(&http, &hub, "/v1/chat/completions", &body).await;
        assert!(said.contains("the chat template failed: it takes more than 512 MiB of memory"), "{said}");
        assert_eq!(status, 400);
    }
    let body = json!({"prompt": "Hi", "max_tokens": 4});
    assert_eq!(post(&http, &hub, "/v1/completions", &body).await.0, 200);
    #[cfg(target_os = "linux")]
    {
        let status = fs::read_to_string(format!("/proc/{}/status", hub.pid())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kilobytes < 800 << 10, "{resident}");
    }
}
